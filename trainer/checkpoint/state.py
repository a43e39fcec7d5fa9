"""What a part of a run has to say of itself so that it can go on elsewhere: tensors and plain values.

`Stateful` is what a checkpoint asks of an optimizer, a stream of batches or anything else that changes with
the steps. Implemented by `parts`, by the data and by `loop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trainer.errors import TrainerError

if TYPE_CHECKING:
    from torch import Tensor


class StateError(TrainerError):
    """A checkpoint holds something else than what the run has a place for: the program has changed.

    Args:
        part: what was to be restored.
        problem: what does not fit.
    """

    def __init__(self, part: str, problem: str) -> None:
        self.part, self.problem = part, problem
        super().__init__(
            f"the checkpoint does not fit this version of the program ({part}: {problem}); go on with the "
            "version that wrote it, or delete the run's checkpoints/ to start anew"
        )


@dataclass(frozen=True, kw_only=True)
class State:
    """One part's state.

    Args:
        tensors: the live ones, on whatever device; whoever keeps them makes the copy.
        values: what JSON can hold.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Stateful(Protocol):
    """A part of a run that changes with the steps."""

    def state(self) -> State:
        """What it is now, between two steps."""

    def restore(self, state: State) -> None:
        """Makes it what it was. Raises StateError for a state that does not fit; nothing has changed then."""
