"""What a stage is fed with: batches without end, whose place in the text can be kept and come back to.

Every corpus makes feeds (`Corpus.batches`); the training loop takes from them, checkpoints keep their state.
Shapes: B batch size, T sequence length.

A batch does not depend on how many processes share the work: rank r of W gets its rows r, r+W, r+2W …, so the
rows of all ranks together are the batch that one process alone would have had.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from torch import Tensor

from trainer.checkpoint.state import State, StateError
from trainer.data.errors import DataError

BATCHES = "batches"  # the part of a run that a feed is, in words of the checkpoint


class Feed(Iterator[Tensor]):
    """Batches [B / world, T] of int64 token ids on the CPU, without end. A context manager.

    What comes after a state is a function of the text, of the state and of the arguments that the feed was
    opened with: another one, opened with them and restored to `state()`, gives what this one gives next.
    """

    @abstractmethod
    def state(self) -> State:
        """Where the batch that comes next begins: a few numbers and words, however far that is."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Goes to where a feed of the same arguments stood; takes no longer the farther that is.

        Raises:
            StateError: it is no state of such a feed.
            DataError: it is one in another text.
        """

    def wait(self) -> None:
        """Until the next batch is there, which it does not take: the state stays what it is. What went wrong
        with the batch is raised to whoever takes it."""

    def close(self) -> None:
        """Ends what runs in the background, within seconds. May be called twice; no batch comes after it."""

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def state_at(text: str, rows: int, **more: Any) -> State:
    """The state after that many rows, all ranks' together, of the text with that digest."""
    return State(values={"text": text, "rows": rows, **more})


def rows_before(state: State, text: str) -> int:
    """How many rows of the text lie before the state. Raises as `Feed.restore`."""
    rows, theirs = state.values.get("rows"), state.values.get("text")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0 or not isinstance(theirs, str):
        raise StateError(BATCHES, f"{dict(state.values)!r} is no place in a text")
    if theirs != text:
        raise DataError(
            f"the training text is not the one that the checkpoint was written with (its digest was "
            f"{theirs[:12]}, now it is {text[:12]}); restore its files, or delete the run's checkpoints/"
        )
    return rows


def rows_of(batch_size: int, rank: int, world: int) -> slice:
    """The rows of a batch of all ranks that are this rank's.

    Raises:
        DataError: the batch cannot be shared out evenly, or there is no such rank.
    """
    if not 0 <= rank < world:
        raise DataError(f"there is no rank {rank} among {world}")
    if batch_size < 1 or batch_size % world:
        raise DataError(f"batch_size is {batch_size}; it must be a multiple of the {world} processes")
    return slice(rank, batch_size, world)
