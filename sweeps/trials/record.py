"""Record of one trial, `trials/000012.json`: the single source of truth about it.

A record is frozen. Every stored version carries a unique token (`write`), by which a writer whose response
was lost recognises its own bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from sweeps.errors import UnstorableRecord
from sweeps.space import typed
from sweeps.space.definition import Count, Number, Value
from sweeps.space.typed import ReadOnly
from sweeps.text import json_reader
from sweeps.trials import stage_run
from sweeps.trials.stage_run import StageRun

SCHEMA = 1
PREFIX = "trials/"
QUARANTINE = "quarantine/"
"""Prefix of records and other objects that `sweep repair` moved away: name, hyphen, time."""
LOSS = "loss"
"""Kind of a curve of training losses, which all curves were at first."""

OPTIONAL: Mapping[str, Any] = {
    "curve_of": LOSS, "predicted": {}, "stages": (), "points": (), "nodes": 1
}  # fmt: skip
"""Fields that a stored record lacks at their defaults, which are these."""

Status = Literal["pending", "running", "completed", "failed", "early_stopped", "abandoned"]
STATUSES: tuple[Status, ...] = get_args(Status)
FINISHED: frozenset[Status] = frozenset(("completed", "failed", "early_stopped", "abandoned"))

Generator = Literal["baseline", "sobol", "botorch", "grid", "imported", "confirm", "enqueued", "fidelity"]
"""Origin of the parameters; "confirm": another trial's, with a fresh seed, also in imported results;
"enqueued": a user's own; "fidelity": the search's, below the target of a sweep with fidelities."""

Reason = Literal[
    "completed", "failed", "early_stopped", "abandoned", "released", "expired", "crashed", "given_up"
]
"""End of an attempt. Released: its worker was preempted, or could not run any trial; given up: its worker
failed because of it, or its program ended as if preempted, though the worker was not."""


Failure = Literal["diverged", "out_of_memory", "bad_config", "crashed", "lost"]
"""Cause of a trial's failure. Lost: its workers vanished as often as the sweep allows."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One claim of a trial by one worker. Times are seconds since the epoch by the store's clock."""

    attempt: Count
    worker: str
    start: float
    end: float
    reason: Reason
    detail: str = ""
    later: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def document(self) -> dict[str, Any]:
        """Return the attempt as JSON has it."""
        document = asdict(self)
        document |= document.pop("later")
        return document

    def __str__(self) -> str:
        message = f"attempt {self.attempt} by {self.worker} {self.reason}"
        return f"{message}: {self.detail}" if self.detail else message


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial. Times are seconds since the epoch by the store's clock.

    Args:
        trial: its index, from 0, without gaps.
        status: see `lifecycle`.
        attempt: number of claims so far.
        metrics: reported by the completed program, each `<metric>` possibly with its `<metric>_sem`.
        predicted: for a trial that was stopped early, what its metrics would most likely have become, each
            with its `<metric>_sem`: for the search alone, never a result.
        error: one line and the program's last output, None where the trial has not failed.
        failure: cause of the failure, None where the trial has not failed.
        heartbeat: time of the worker's last heartbeat; None without a worker, or for a user's own loop
            (`sweep ask`), whose claim does not expire.
        nodes: hosts that share the trial, by the worker that claimed it last.
        progress: last report of the running program (step, loss, …).
        curve: intermediate losses of the current or last attempt, as (step, loss) by ascending step.
        curve_of: which losses they are: `loss`, of training, or held-out ones of a stage. Curves of two kinds
            cannot be compared.
        stages: the stages that have ended, of the attempt that is the present or last one; an earlier
            attempt's whose snapshot is stored stay.
        points: of trunks, that trials of other lengths can branch off at; each is a part of a stage, and has
            its `step`. Ended stages and running ones have them.
        created, started, ended: times; `started` is that of the current or last attempt.
        history: ended attempts, oldest first.
        forgiven: number of attempts that no longer count as lost, since a user asked for a retry.
        write: token that no other stored version of any record has.
        later: what a later version has added, by name; it is kept, in attempts and stages, too.
    """

    trial: Count
    status: Status
    parameters: ReadOnly[Value]
    generator: Generator
    attempt: Count = 0
    metrics: ReadOnly[Number | None] = field(default_factory=dict)
    predicted: ReadOnly[Number | None] = field(default_factory=dict)
    error: str | None = None
    failure: Failure | None = None
    worker: str | None = None
    heartbeat: float | None = None
    nodes: Count = 1
    progress: ReadOnly[Value] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()
    curve_of: str = LOSS
    stages: tuple[StageRun, ...] = ()
    points: tuple[StageRun, ...] = ()
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    history: tuple[Attempt, ...] = ()
    forgiven: Count = 0
    write: str = ""
    later: ReadOnly[Any] = field(default_factory=dict)

    @property
    def snapshots(self) -> tuple[StageRun, ...]:
        """Return the ends of stages, and the points of trunks, that this trial has stored."""
        return tuple(run for run in (*self.stages, *self.points) if run.snapshot)

    @property
    def is_own(self) -> bool:
        """Return whether the run cap counts it: neither imported nor a repetition to confirm it."""
        return self.generator not in ("imported", "confirm")

    @property
    def is_imported(self) -> bool:
        """Return whether it ran elsewhere, as did a repeat of a confirmation without an attempt."""
        has_ended = self.status in ("completed", "failed")
        unattempted = self.generator == "confirm" and has_ended and not self.attempt
        return unattempted or self.generator == "imported"

    @property
    def finished(self) -> bool:
        """Return whether its status changes only if a user asks for that."""
        return self.status in FINISHED


def has_failed(record: Trial) -> bool:
    """Return whether the trial failed by its own parameters; a lost worker says nothing about them."""
    return record.status == "failed" and record.failure != "lost"


def key(index: int) -> str:
    """Return the key of a trial's record: `trials/000012.json`."""
    return f"{PREFIX}{index:06d}.json"


def runs_prefix(index: int) -> str:
    """Return the key prefix of the files of all attempts of a trial: `runs/000012/`."""
    return f"runs/{index:06d}/"


def run_prefix(index: int, attempt: int) -> str:
    """Return the key prefix of an attempt's files: `runs/000012/attempt-1`."""
    return f"{runs_prefix(index)}attempt-{attempt}"


def encode(record: Trial, token: str) -> bytes:
    """Return the record with `token` as JSON that `decode` can read.

    Raises:
        UnstorableRecord: it could not be read back: NaN, infinity, a lone surrogate, a name that is no text.
    """
    try:
        mappings = ("parameters", "metrics", "predicted", "progress", "later")
        empty: dict[str, Any] = {"history": (), "stages": (), "points": (), **{name: {} for name in mappings}}
        document = asdict(replace(record, write=token, **empty))
        document |= {
            "parameters": dict(record.parameters),
            "metrics": dict(record.metrics),
            "predicted": dict(record.predicted),
            "progress": dict(record.progress),
            "stages": stage_run.encode(record.stages),
            "points": stage_run.encode(record.points),
            "history": [attempt.document() for attempt in record.history],
        }
        del document["later"]
        document |= record.later
        for name, default in OPTIONAL.items():  # left out, so that earlier versions read it too
            if document[name] == (list(default) if isinstance(default, tuple) else default):
                del document[name]
        # One field per line, as `indent` would write it, but through json's fast encoder.
        fields = ({"schema": SCHEMA} | document).items()
        lines = (f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields)
        data = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
        decode(data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UnstorableRecord(record.trial, " ".join(str(error).split())) from None
    return data


def decode(data: bytes) -> Trial:
    """Return the record in the bytes that `encode` wrote.

    Raises:
        NewerFormat: it has a later schema.
        ValueError: `encode` does not write this; the message says what does not fit, as one clause.
    """
    document = json_reader.parse(data)
    json_reader.require_schema(document, SCHEMA)
    del document["schema"]
    if "history" not in document:
        raise ValueError("missing field: history")
    for name, kind in (("history", Attempt), ("stages", StageRun), ("points", StageRun)):
        if isinstance(entries := document.get(name), list):
            document[name] = [typed.with_later(kind, entry) for entry in entries]
    record = typed.read(Trial, typed.with_later(Trial, document))
    if problem := _contradiction(record):
        raise ValueError(problem)
    return record


def decode_each(batch: Mapping[int, bytes]) -> dict[int, Trial | ValueError]:
    """Return what `decode` returns or raises for each, by index; each must be of its index."""
    found: dict[int, Trial | ValueError] = {}
    for index, data in batch.items():
        try:
            record = decode(data)
        except ValueError as error:
            found[index] = error
        else:
            is_its_own = record.trial == index
            found[index] = record if is_its_own else ValueError(f"it says trial {record.trial}")
    return found


def _contradiction(record: Trial) -> str:
    """Return what is wrong with a record whose fields are of their types, or ""."""
    if record.status == "running" and record.worker is None:
        return "running without a worker"
    for run in (*record.stages, *record.points):
        if problem := stage_run.problem(run):
            return f"stage {run.name!r:.80}: {problem}"
    return ""
