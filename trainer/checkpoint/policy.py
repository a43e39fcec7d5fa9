"""What the loop and the pipeline know of checkpoints: `CheckpointPolicy`, and `NO_CHECKPOINTS`.

`checkpoints.Checkpoints` is the real one. The teacher is trained with `NO_CHECKPOINTS`: it belongs to the
cache, built whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from trainer.checkpoint.state import Stateful

Measured = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What there is to keep of a stage.

    Args:
        lasting: as long as the run: the weights, the random states.
        passing: as long as the stage: the optimizer, the position in the data, …
        trace: what the stage leaves behind when it is over.
    """

    lasting: Mapping[str, Stateful]
    passing: Mapping[str, Stateful]
    trace: Stateful


class StageCheckpoint(Protocol):
    """A stage while it runs."""

    @property
    def done(self) -> int:
        """Steps that were done before: the loop begins with the next one."""

    def after(self, step: int, told: Mapping[str, float]) -> bool:
        """The one-based `step` is done; `told` is what a person may want to read beside it. Tells whether a
        checkpoint was begun."""


class CheckpointPolicy(Protocol):
    """Keeps a run, and brings it back."""

    def stage(
        self, name: str, steps: int, parts: Callable[[], Parts]
    ) -> AbstractContextManager[StageCheckpoint]:
        """Around a stage's loop. On entry the parts are restored, if there is something to go on from."""

    def once(self, name: str, measure: Callable[[], Measured]) -> Measured:
        """What `measure` gives, now or in the attempt that got here first."""

    def peak(self, peak_memory_bytes: int) -> int:
        """The highest peak of all attempts."""

    def compiled(self, seconds: float) -> float:
        """What the compiler took in all attempts, with the seconds of this one."""


class _Forgotten:
    done = 0

    def after(self, step: int, told: Mapping[str, float]) -> bool:
        return False


class _NoCheckpoints:
    @contextmanager
    def stage(self, name: str, steps: int, parts: Callable[[], Parts]) -> Iterator[StageCheckpoint]:
        yield _Forgotten()

    def once(self, name: str, measure: Callable[[], Measured]) -> Measured:
        return measure()

    def peak(self, peak_memory_bytes: int) -> int:
        return peak_memory_bytes

    def compiled(self, seconds: float) -> float:
        return seconds


NO_CHECKPOINTS: CheckpointPolicy = _NoCheckpoints()
