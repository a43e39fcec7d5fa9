"""The record of one trial, `trials/000012.json`: the only truth about it.

`lifecycle` makes new records from old ones, `experiment` stores them, `optimizer` and `export` read them.
A record is frozen; every stored version carries a token of its own (`write`), by which a writer whose
response was lost recognises its own bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from sweeps.errors import UnstorableRecord
from sweeps.space.definition import Value
from sweeps.text import json_reader

SCHEMA = 1
PREFIX = "trials/"

Status = Literal["pending", "running", "completed", "failed", "early_stopped", "abandoned"]
STATUSES: tuple[Status, ...] = get_args(Status)
FINISHED: frozenset[Status] = frozenset(("completed", "failed", "early_stopped", "abandoned"))

Generator = Literal["baseline", "sobol", "botorch", "grid", "imported"]
"""Who proposed the parameters."""

Reason = Literal[
    "completed", "failed", "early_stopped", "abandoned", "released", "expired", "crashed", "given_up"
]
"""How an attempt ended. Released: its worker was told to go, or could not run anything; given up: its worker
failed over it, or its program ended as if told to go, though nobody had told the worker."""


Failure = Literal["diverged", "out_of_memory", "bad_config", "crashed", "lost"]
"""What a failed trial died of. Lost: its workers, as often as the sweep allows."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One claim of a trial by one worker. Times are seconds since the epoch by the store's clock."""

    attempt: int
    worker: str
    start: float
    end: float
    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        told = f"attempt {self.attempt} by {self.worker} {self.reason}"
        return f"{told}: {self.detail}" if self.detail else told


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial.

    Args:
        trial: its index, from 0, without gaps.
        status: see `lifecycle`.
        parameters: the active parameters and their values.
        generator: who proposed them.
        attempt: how many times the trial was claimed.
        metrics: what the completed objective reported, `<metric>_sem` beside `<metric>`.
        error: why the trial failed, one line and the last words, else None.
        failure: the kind of `error`, None where the trial has not failed.
        worker: who runs it now, else None.
        heartbeat: the store's time of the last sign of life of `worker`; None where nothing runs, or
            where the worker is a person's own loop (`sweep ask`), whose claim does not expire.
        progress: what the running program last said of itself (step, loss, …).
        curve: intermediate losses of the present or last attempt, as (step, loss) by ascending step.
        created, started, ended: the store's time; started is that of the present or last attempt.
        history: ended attempts, oldest first.
        forgiven: how many of them no longer count as lost, since a person asked for another try.
        write: a token that no other stored version of any record has.
    """

    trial: int
    status: Status
    parameters: Mapping[str, Value]
    generator: Generator
    attempt: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None
    failure: Failure | None = None
    worker: str | None = None
    heartbeat: float | None = None
    progress: Mapping[str, Value] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    history: tuple[Attempt, ...] = ()
    forgiven: int = 0
    write: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.status in FINISHED


def key(index: int) -> str:
    """The object's key: `trials/000012.json`."""
    return f"{PREFIX}{index:06d}.json"


def run_prefix(index: int, attempt: int) -> str:
    """Where an attempt's files lie: `runs/000012/attempt-1`."""
    return f"runs/{index:06d}/attempt-{attempt}"


def encode(record: Trial, token: str) -> bytes:
    """Return the record as it is stored, marked with `token`; `decode` has read these bytes.

    Raises:
        UnstorableRecord: nobody could read it: NaN, infinity, half a surrogate pair, a name that is no text.
    """
    try:
        data = _document(record, token)
        decode(data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UnstorableRecord(record.trial, " ".join(str(error).split())) from None
    return data


def _document(record: Trial, token: str) -> bytes:
    document = asdict(replace(record, write=token, parameters={}, metrics={}, progress={}))
    document |= {
        "parameters": dict(record.parameters),
        "metrics": dict(record.metrics),
        "progress": dict(record.progress),
    }
    # A field a line, as `indent` would write it, but through json's fast encoder.
    fields = ({"schema": SCHEMA} | document).items()
    lines = (f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields)
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode(data: bytes) -> Trial:
    """The inverse of `encode`.

    Raises:
        ValueError: with a clause that says what does not fit, for anything that `encode` does not write.
    """
    document = json_reader.parse(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error type for whatever is wrong
    if document.pop("schema", None) != SCHEMA:
        raise ValueError(f"schema is not {SCHEMA}")
    try:
        history = tuple(Attempt(**entry) for entry in document.pop("history"))
        curve = tuple((step, loss) for step, loss in document.pop("curve", ()))
        record = Trial(**document, history=history, curve=curve)
    except (KeyError, TypeError) as error:
        raise ValueError(f"unexpected or missing field: {error}") from None
    if problem := _problem(record):
        raise ValueError(problem)
    return replace(
        record,
        parameters=MappingProxyType(dict(record.parameters)),
        metrics=MappingProxyType(dict(record.metrics)),
        progress=MappingProxyType(dict(record.progress)),
    )


def _problem(record: Trial) -> str:
    """What is wrong with a record that a person may have edited; "" if nothing."""
    index: object = record.trial
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        return "trial is not an index"
    if record.status not in STATUSES:
        return f"status {record.status!r} is unknown"
    for name in ("attempt", "forgiven"):
        count = getattr(record, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            return f"{name} is not a count"
    for name in ("parameters", "metrics", "progress"):
        if not isinstance(getattr(record, name), dict):
            return f"{name} is not an object"
    if not all(isinstance(v, bool | str) or _is_finite(v) for v in record.parameters.values()):
        return "a parameter is neither a finite number, a string nor a boolean"
    if not all(v is None or _is_finite(v) for v in record.metrics.values()):
        return "a metric is not a finite number"
    if not all(isinstance(v, bool | str) or _is_finite(v) for v in record.progress.values()):
        return "progress is not texts and numbers"
    if record.status == "running" and not isinstance(record.worker, str):
        return "running without a worker"
    times = {"created": record.created, "heartbeat": record.heartbeat}
    times |= {"started": record.started, "ended": record.ended}
    for attempt_ in record.history:
        times |= {"start of an attempt": attempt_.start, "end of an attempt": attempt_.end}
    for name, value in times.items():
        if not (value is None or _is_finite(value)):
            return f"{name} is not a time"
    if not all(_is_finite(number) for point in record.curve for number in point):
        return "curve is not a list of steps and losses"
    for name in ("generator", "error", "failure", "worker", "write"):
        if not isinstance(getattr(record, name), str | None):
            return f"{name} is not a text"
    return ""


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _LARGEST  # false for NaN, and no error for an integer that no float can hold


_LARGEST = sys.float_info.max
