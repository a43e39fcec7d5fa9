"""Stages of a trial as the exported table holds them: what each costs, and which were reused.

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
        name: of the stage.
        key: of its end, equal for trials that share it; "" if it cannot be shared.
        cost: of computing it, in the unit of the sweep.
        reused_from: trial whose snapshot took the place of computing it; None: this trial computed it.
        seconds: that it took the trial that computed it; None: unknown.
        usd: dollars, likewise.
    """

    name: str
    key: str
    cost: float
    reused_from: int | None = None
    seconds: float | None = None
    usd: float | None = None


def parse(cell: object, trial: object = None) -> tuple[Stage, ...]:
    """Return the stages in a cell of column `stages`: a list, or JSON in a text.

    A cell that holds anything else counts as one of a trial without stages, of which there may be some.

    Args:
        cell: of the table or of an export document.
        trial: index of its trial; what that takes from its own earlier attempt counts as computed.
    """
    if isinstance(cell, str):
        try:
            cell = from_json(cell)
        except ValueError:
            return ()
    if not isinstance(cell, list | tuple):
        return ()
    stages = [_stage(entry, trial) for entry in cell]
    return tuple(stage for stage in stages if stage is not None) if None not in stages else ()


def reused(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the stages that another trial has computed."""
    return tuple(stage for stage in stages if stage.reused_from is not None)


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
    source = entry.get("reused_from")
    if isinstance(source, bool) or not isinstance(source, int | None):
        return None
    seconds, usd = _amount(entry.get("seconds")), _amount(entry.get("usd"))
    taken = None if source == trial else source
    return Stage(name=name, key=key, cost=cost, reused_from=taken, seconds=seconds, usd=usd)


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1.7976931348623157e308 else None  # not for NaN
