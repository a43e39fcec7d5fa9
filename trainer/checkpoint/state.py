"""State of one part of a run, as tensors and plain values.

A checkpoint saves everything that changes with the steps through `Stateful`. Implemented by `parts`, by the
data and by `loop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trainer.errors import TrainerError

if TYPE_CHECKING:
    from torch import Tensor


class StateError(TrainerError):
    """A checkpoint whose state does not fit the run: the program has changed."""

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
        tensors: the live ones, on any device; the caller copies them.
        values: plain values, as JSON can hold them.
        per_process: names of those that map, and of which each process of a run has entries of its own; a
            checkpoint has the entries of all.
        in_place: whether a checkpoint was read into the tensors that the part asked for (`ReadInPlace`).
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    per_process: tuple[str, ...] = ()
    in_place: bool = False


@runtime_checkable
class Stateful(Protocol):
    """A part of a run that changes with the steps."""

    def state(self) -> State:
        """Return the present state, between two steps."""

    def restore(self, state: State) -> None:
        """Restore a state; raise StateError, before any change, for one that does not fit."""


@runtime_checkable
class ReadInPlace(Protocol):
    """A part that a sharded checkpoint is read straight into, so that no process holds more than its own."""

    def targets(self, saved: State) -> Mapping[str, Tensor]:
        """Return a tensor to read each saved one into: live, or new and kept by `restore`, sharded or not.

        Args:
            saved: its tensors have shape and dtype alone.

        Raises:
            StateError: it does not fit.
        """
