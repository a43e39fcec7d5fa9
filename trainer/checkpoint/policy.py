"""Checkpoints as the loop and the pipeline see them: `CheckpointPolicy`, and `NO_CHECKPOINTS`.

`checkpoints.Checkpoints` is the real one. The teacher is trained with `NO_CHECKPOINTS`: it belongs to the
cache, which builds it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from trainer.checkpoint.state import Stateful

Measured = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything to save of a stage, by lifetime.

    Args:
        lasting: for the run: the weights, the random states.
        passing: for the stage: the optimizer, the position in the data, …
        trace: results that remain when the stage is over.
    """

    lasting: Mapping[str, Stateful]
    passing: Mapping[str, Stateful]
    trace: Stateful


class StageCheckpoint:
    """Checkpoints of a running stage; this class itself writes none."""

    done = 0
    """Steps that were done before; the loop begins with the next one."""

    def after(self, step: int, details: Mapping[str, float]) -> bool:
        """Record that the one-based `step` is done; return whether a checkpoint was begun.

        Args:
            details: learning rate and the like of that step, for people.
        """
        return False


class CheckpointPolicy:
    """Saving and restoring of a run; this class itself does neither."""

    @contextmanager
    def stage(self, name: str, steps: int, parts: Callable[[], Parts]) -> Iterator[StageCheckpoint]:
        """Return a context for a stage's loop, which restores the parts if the run resumes there."""
        yield StageCheckpoint()

    def once(self, name: str, measure: Callable[[], Measured]) -> Measured:
        """Return the measurement of the first attempt that got here, or make it now."""
        return measure()

    def keep_names(self) -> None:
        """Save the weights of the stage that is over under their present names, whatever renames them now.

        To be called before layers are put around others. It holds until the next stage begins.
        """

    def peak(self, peak_memory_bytes: int) -> int:
        """Return the largest peak memory of all attempts, in bytes, given that of this one."""
        return peak_memory_bytes

    def compiled(self, seconds: float) -> float:
        """Return the seconds of compilation of all attempts, given those of this one."""
        return seconds


NO_CHECKPOINTS = CheckpointPolicy()
