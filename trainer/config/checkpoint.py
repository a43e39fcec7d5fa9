"""Configuration of checkpoints and of snapshots. Read by `trainer.checkpoint`."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Count, NonNegative, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckpointConfig:
    """Intervals between checkpoints, whichever ends first; a preempted run writes one in any case.

    Args:
        every_steps: optimizer steps between two, counted over all stages; 0 is never.
        every_seconds: wall time between two; 0 is never.
        keep: newest checkpoints that stay in the run's folder. With 1 there is no fallback if it is damaged.
    """

    every_steps: Count
    every_seconds: NonNegative
    keep: Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SnapshotsConfig:
    """Snapshots of finished stages. One that is in the run's folder is used in any case.

    Args:
        write: write one at the end of Stage 1.9, for other runs to start from.
    """

    write: bool
