"""One stage of a trial, or a part of it: what it cost, and what of it was taken from other trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
        step: of a point of the stage's trunk, the steps until there; `key`, `cost`, `seconds` and `usd` are
            those of the part until there. None: the stage to its end.
        branched_from: trial at a point of whose trunk this trial began the stage; None: at its beginning.
        branched_at: steps of the stage until that point.
        saved: the part of `cost` until that point, which this trial did not pay.
    """

    name: str
    key: str
    cost: float
    reused_from: int | None = None
    snapshot: bool = False
    seconds: float | None = None
    usd: float | None = None
    step: int | None = None
    branched_from: int | None = None
    branched_at: int | None = None
    saved: float = 0.0


OPTIONAL: Mapping[str, Any] = {"step": None, "branched_from": None, "branched_at": None, "saved": 0.0}
"""Fields that a stored record lacks at their defaults, which are these."""


def encode(stages: Iterable[StageRun]) -> list[dict[str, Any]]:
    """Return the stages as a record's JSON has them."""
    entries = map(asdict, stages)
    return [{k: v for k, v in entry.items() if k not in OPTIONAL or v != OPTIONAL[k]} for entry in entries]


def nominal(stages: Iterable[StageRun]) -> float:
    """Return the cost of all stages, as if each had been computed."""
    return math.fsum(stage.cost for stage in stages)


def paid(stages: Iterable[StageRun], trial: int | None = None) -> float:
    """Return the cost of the stages, and parts of stages, that were computed.

    Args:
        stages: of one trial.
        trial: its index: what an earlier attempt of it has published, it has paid for.
    """
    return math.fsum(
        stage.cost - (0.0 if stage.branched_from in (None, trial) else stage.saved)
        for stage in stages
        if stage.reused_from in (None, trial)
    )


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
    if not isinstance(name, str) or not isinstance(key, str):
        return "a name or key is not a text"
    if not isinstance(snapshot, bool):
        return "snapshot is not true or false"
    for name_, count in (("reused_from", stage.reused_from), ("branched_from", stage.branched_from)):
        if not _is_count(count):
            return f"{name_} is not an index"
    if not _is_count(stage.step) or not _is_count(stage.branched_at):
        return "step or branched_at is not a number of steps"
    if not _is_amount(stage.saved) or (_is_amount(stage.cost) and stage.saved > stage.cost):
        return "saved is not a part of the cost"
    if not _is_amount(stage.cost):
        return "a cost is not a finite number from 0"
    if not all(value is None or _is_amount(value) for value in (stage.seconds, stage.usd)):
        return "seconds or usd is not a finite number from 0"
    return ""


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= 1.7976931348623157e308  # false for NaN, and no error for integers beyond floats
