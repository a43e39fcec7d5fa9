"""When a run writes checkpoints, and how many it keeps. Read by `trainer.checkpoint`."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Count, NonNegative, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckpointConfig:
    """Whichever of the two intervals is over first; a run that is told to go writes one in any case.

    Args:
        every_steps: optimizer steps, counted over all stages; 0 is never.
        every_seconds: of the clock on the wall, since the last one; 0 is never.
        keep: so many of the newest stay in the run's folder. With one alone, nothing is left to fall back on
            when it is damaged.
    """

    every_steps: Count
    every_seconds: NonNegative
    keep: Positive
