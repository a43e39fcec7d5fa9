"""Stages of a trial as the exported table holds them: what each costs, and which were shared.

This module imports no pandas: `sweep status` has to be quick.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of a trial.

    Args:
        key: of its end, equal for trials that share it; "" if it cannot be shared.
        cost: of computing it, in the unit of the sweep.
        reused_from: trial whose snapshot took the place of computing it; None: this trial computed it.
        seconds: that it took the trial that computed it; None: unknown.
        usd: dollars, likewise.
        branched_from: trial at a point of whose trunk this trial began the stage; None: at its beginning.
        branched_at: steps of the stage until that point.
        saved: the part of `cost` until that point, which this trial did not pay.
    """

    name: str
    key: str
    cost: float
    reused_from: int | None = None
    seconds: float | None = None
    usd: float | None = None
    branched_from: int | None = None
    branched_at: int | None = None
    saved: float = 0.0

    @property
    def paid(self) -> float:
        """Return the cost of what this trial computed of the stage."""
        return self.cost - self.saved if self.reused_from is None else 0.0

    def not_paid(self, amount: float | None) -> float | None:
        """Return the part of an amount for all of the stage that others paid; None if it is not known.

        Seconds and dollars of the beginning of a stage are taken to be as large a part as its cost.
        """
        if amount is None or self.reused_from is not None:
            return amount
        return amount * self.saved / self.cost if self.cost else 0.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a stage's trunk that a trial published, for trials of other lengths to branch off at.

    Args:
        key: equal for trials that share the trunk.
        step: of the stage, until there.
        cost: of the stage until there.
        stored: whether it is still there.
        branched_from: trial at a point of whose trunk the one that published this began the stage; None: at
            its beginning.
    """

    stage: str
    key: str
    step: int
    cost: float
    stored: bool = False
    branched_from: int | None = None


def parse(cell: object, trial: object = None) -> tuple[Stage, ...]:
    """Return the stages in a cell of column `stages`: a list, or JSON in a text.

    A cell that holds anything else counts as one of a trial without stages, of which there may be some.

    Args:
        trial: index of its trial; what that takes from its own earlier attempt counts as computed.
    """
    stages = [_stage(entry, trial) for entry in _entries(cell)]
    return tuple(stage for stage in stages if stage is not None) if None not in stages else ()


def parse_points(cell: object) -> tuple[Point, ...]:
    """Return the points in a cell of column `trunk_points`: a list, or JSON in a text.

    An entry that is none does not count: a point is drawn, and nothing is computed from it.
    """
    points = map(_point, _entries(cell))
    return tuple(point for point in points if point is not None)


def _entries(cell: object) -> list[Any]:
    """Return the entries of a cell; none if it holds no list."""
    if isinstance(cell, str):
        try:
            cell = from_json(cell)
        except ValueError:
            return []
    return list(cell) if isinstance(cell, list | tuple) else []


def reused(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the stages that another trial has computed."""
    return tuple(stage for stage in stages if stage.reused_from is not None)


def branched(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the stages that this trial began at a point of another's trunk."""
    return tuple(stage for stage in computed(stages) if stage.branched_from is not None)


def computed(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the stages that this trial has computed."""
    return tuple(stage for stage in stages if stage.reused_from is None)


def total(values: Iterable[float | None]) -> float:
    """Return the sum of the values that are known."""
    return math.fsum(value for value in values if value is not None)


def _stage(entry: Any, trial: object) -> Stage | None:
    if not isinstance(entry, dict):
        return None
    name, key, cost = entry.get("name"), entry.get("key", ""), _amount(entry.get("cost"))
    if not isinstance(name, str) or not isinstance(key, str) or cost is None:
        return None
    source, trunk, step = (entry.get(name) for name in ("reused_from", "branched_from", "branched_at"))
    if any(isinstance(value, bool) or not isinstance(value, int | None) for value in (source, trunk, step)):
        return None
    saved = _amount(entry.get("saved", 0.0))
    if saved is None or saved > cost:
        return None
    own = trunk is None or trunk == trial
    return Stage(
        name=name,
        key=key,
        cost=cost,
        reused_from=None if source == trial else source,
        seconds=_amount(entry.get("seconds")),
        usd=_amount(entry.get("usd")),
        branched_from=None if own else trunk,
        branched_at=None if own else step,
        saved=0.0 if own else saved,
    )


def _point(entry: Any) -> Point | None:
    if not isinstance(entry, dict):
        return None
    stage, key, step = (entry.get(name) for name in ("name", "key", "step"))
    cost = _amount(entry.get("cost"))
    if not (isinstance(stage, str) and isinstance(key, str) and key) or cost is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        return None
    source = entry.get("branched_from")
    return Point(
        stage=stage,
        key=key,
        step=step,
        cost=cost,
        stored=entry.get("snapshot") is True,
        branched_from=source if isinstance(source, int) else None,
    )


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1.7976931348623157e308 else None  # not for NaN
