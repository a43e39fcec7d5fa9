"""Places of a run that other runs can start from, and what is known there. Used by `stage_snapshot`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_ORDER = ("stage1_9", "stage2", "stage3", "recovery")


def position(stage: str, step: float) -> tuple[int, float]:
    """Return a key to sort by of a step in a stage, infinite at its end."""
    return _ORDER.index(stage), step


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a run that others can start from.

    Args:
        step: of a point of the stage's trunk, the steps until there; None: the end of the stage.
    """

    stage: str
    step: int | None
    key: str

    @property
    def folder(self) -> str:
        """Return the name of its folder."""
        return self.stage if self.step is None else f"{self.stage}@{self.step}"

    @property
    def order(self) -> tuple[int, float]:
        """Return a key to sort places along a run by."""
        return position(self.stage, math.inf if self.step is None else self.step)

    def __str__(self) -> str:
        return f"the end of {self.stage}" if self.step is None else f"step {self.step} of {self.stage}"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Properties that a run shares with the snapshot that it starts from.

    Args:
        teacher: digest of its weights, or of what a teacher that runs train themselves depends on.
    """

    key: str
    data_sha256: str
    teacher: str
    device: str
    dtype: str


@dataclass(frozen=True, kw_only=True)
class StageNumbers:
    """Numbers of a stage until a place.

    Args:
        usd: dollars; None: the price is not known.
        metrics: of the result, as far as they are known at the end of the stage.
        evaluation: settings of the held-out losses that were measured on the way.
        usd_of_earlier: dollars of the stages before, by name.
    """

    seconds: float
    usd: float | None
    metrics: Mapping[str, float | None]
    evaluation: Mapping[str, int]
    usd_of_earlier: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The part of a stage that a run took from a snapshot.

    Args:
        reused: whether that is all of it.
        steps: its steps, of a part.
        seconds: of training it took the run that computed a part.
        usd: dollars, likewise; of all of it too. None: not known.
    """

    reused: bool = False
    steps: int = 0
    seconds: float = 0.0
    usd: float | None = None
