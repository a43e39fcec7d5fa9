"""One stage of a trial: what it cost, and whether it was computed or taken from another trial's snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """A stage of a trial, finished or taken over.

    Args:
        name: of the stage.
        key: of its end, 64 hexadecimal digits; equal keys mean equal weights. "": never shared.
        cost: of computing it, in the unit of the sweep's `stages` (effective steps of the trainer).
        reused_from: trial whose snapshot took the place of computing it; None: this trial computed it.
        snapshot: whether this trial has published its end under `key` and it is still stored.
        seconds: of training that it took the trial that computed it; None: unknown.
        usd: dollars, likewise.
    """

    name: str
    key: str
    cost: float
    reused_from: int | None = None
    snapshot: bool = False
    seconds: float | None = None
    usd: float | None = None


def nominal(stages: Iterable[StageRun]) -> float:
    """Return the cost of all stages, as if each had been computed."""
    return math.fsum(stage.cost for stage in stages)


def paid(stages: Iterable[StageRun]) -> float:
    """Return the cost of the stages that were computed."""
    return math.fsum(stage.cost for stage in stages if stage.reused_from is None)


def decode(document: Any) -> tuple[StageRun, ...]:
    """Return the stages in a record's JSON.

    Raises:
        ValueError: they are none; the message is one clause.
        TypeError: a field is unknown or missing.
    """
    if not isinstance(document, Sequence) or not all(isinstance(entry, dict) for entry in document):
        raise ValueError("stages is not a list of objects")
    stages = tuple(StageRun(**entry) for entry in document)
    if problem := next(filter(None, map(_problem, stages)), ""):
        raise ValueError(f"stages: {problem}")
    return stages


def _problem(stage: StageRun) -> str:
    """Return what is wrong with a stage that a user may have edited, or ""."""
    name: object = stage.name
    key: object = stage.key
    snapshot: object = stage.snapshot
    trial: object = stage.reused_from
    if not isinstance(name, str) or not isinstance(key, str):
        return "a name or key is not a text"
    if not isinstance(snapshot, bool):
        return "snapshot is not true or false"
    if trial is not None and (not isinstance(trial, int) or isinstance(trial, bool) or trial < 0):
        return "reused_from is not an index"
    if not _is_amount(stage.cost):
        return "a cost is not a finite number from 0"
    if not all(value is None or _is_amount(value) for value in (stage.seconds, stage.usd)):
        return "seconds or usd is not a finite number from 0"
    return ""


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= 1.7976931348623157e308  # false for NaN, and no error for integers beyond floats
