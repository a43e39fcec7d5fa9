"""Stages of a trial: their keys, and what its record says of them. Pure."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sweeps.space.definition import Space, Value
from sweeps.space.stages import Stages
from sweeps.trials import storable
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]{64}")
_NAME_CHARACTERS = 100


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A stage in a `result.json`. None: the program does not say.

    Args:
        name: of the stage.
        key: of its end; "" if it is never shared.
        reused: whether a snapshot took the place of computing it.
        cost: in the unit of the sweep's `stages`.
        seconds: that computing it took the trial that computed it.
        usd: dollars, likewise.
    """

    name: str
    key: str = ""
    reused: bool = False
    cost: float | None = None
    seconds: float | None = None
    usd: float | None = None


def keys(space: Space, stages: Stages, parameters: Mapping[str, Value]) -> dict[str, str]:
    """Return the key of the end of each stage but the last, for a command or a function.

    Args:
        space: of the sweep.
        stages: of the space.
        parameters: of one trial.
    """
    return {
        name: _digest(
            {
                "program": asdict(space.program),
                "parameters": {n: v for n, v in parameters.items() if stages.of(n) <= position},
                "stage": name,
            }
        )
        for position, name in enumerate(stages.names[:-1])
    }


def _digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document as canonical JSON."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse(document: Any, where: str) -> tuple[Reported, ...]:
    """Return the `stages` of a result; none, with a warning, if they cannot be read: the metrics still count.

    Args:
        document: the parsed JSON, None for no stages.
        where: the file, for the warning.
    """
    if document is None:
        return ()
    entries = document if isinstance(document, list) else [None]
    stages = {stage.name: stage for entry in entries if (stage := _entry(entry)) is not None}
    if len(stages) < len(entries):
        log.warning("%s: stages is not a list of objects with one name each; it is ignored", where)
        return ()
    return tuple(stages.values())


def _entry(entry: Any) -> Reported | None:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name or storable.line(name, _NAME_CHARACTERS) != name:
        return None
    key = entry.get("key")
    return Reported(
        name=name,
        key=key if isinstance(key, str) and _KEY.fullmatch(key) else "",
        reused=entry.get("reused") is True,
        cost=amount(entry.get("cost")),
        seconds=amount(entry.get("seconds")),
        usd=amount(entry.get("usd")),
    )


def amount(value: Any) -> float | None:
    """Return the value if it is a finite number from 0, else None."""
    if isinstance(value, bool | str):
        return None
    number = storable.number(value)
    return number if number is not None and number >= 0 else None


def publisher(records: Iterable[Trial], key: str, trial: int) -> Trial | None:
    """Return whose snapshot of this key is stored, by the records: the trial itself, or the first one."""
    found = [r for r in records if any(run.snapshot and run.key == key for run in r.stages)]
    return min(found, key=lambda record: (record.trial != trial, record.trial), default=None)


def origin(records: Iterable[Trial], key: str, trial: int) -> int | None:
    """Return which other trial has computed the stage of this key; None if no record says.

    A snapshot may have been removed since a trial started from it, so those that are stored only come first.
    """
    found = sorted(
        (not run.snapshot, record.trial if run.reused_from is None else run.reused_from)
        for record in records
        for run in record.stages
        if run.key == key
    )
    return next((index for _, index in found if index != trial), None)


def finished(
    reported: Sequence[Reported],
    known: Mapping[str, StageRun],
    names: Sequence[str],
    costs: Mapping[str, float],
    metrics: Mapping[str, float | None],
) -> tuple[StageRun, ...]:
    """Return all stages of a trial that has completed, in order.

    What its program reports decides; for stages that it does not mention, what was fetched and published.

    Args:
        reported: stages in its result; of a reused one, `known` has the origin.
        known: stages that were fetched, and stages that ended while this worker watched.
        names: of the sweep's stages.
        costs: of the sweep's stages; empty if the space does not say.
        metrics: of its result, perhaps with `seconds.STAGE`.
    """
    stated = {stage.name: stage for stage in reported}
    ordered = dict.fromkeys((*names, *stated))
    return tuple(_finished(name, stated.get(name), known.get(name), costs, metrics) for name in ordered)


def _finished(
    name: str,
    stage: Reported | None,
    run: StageRun | None,
    costs: Mapping[str, float],
    metrics: Mapping[str, float | None],
) -> StageRun:
    key = stage.key if stage is not None else ""
    if run is None or (key and key != run.key):
        run = StageRun(name=name, key=key, cost=0.0)
    if stage is None:
        stage = Reported(name=name, reused=run.reused_from is not None)
    seconds = _first(stage.seconds, run.seconds, amount(metrics.get(f"seconds.{name}")))
    return replace(
        run,
        cost=_first(stage.cost, costs.get(name), run.cost or None, seconds) or 0.0,
        reused_from=run.reused_from if stage.reused else None,
        seconds=seconds,
        usd=_first(stage.usd, run.usd),
    )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
