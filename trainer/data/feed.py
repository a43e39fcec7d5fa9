"""Endless feeds of batches, with a position that checkpoints store and restore.

Every corpus creates feeds (`Corpus.batches`) for the training loop. Shapes: B batch size, T sequence length.

A batch does not depend on the number of processes: rank r of W gets its rows r, r+W, r+2W …, so the rows of
all ranks together are the batch that a single process would have.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from torch import Tensor

from trainer.checkpoint.state import State, StateError
from trainer.errors import DataError

BATCHES = "batches"  # the name of a feed's state in a checkpoint


class Feed(Iterator[Tensor]):
    """Endless batches [B / world, T] of int64 token ids on the CPU. A context manager.

    The text, the arguments of the feed and its state determine all later batches: another feed of the same
    arguments, restored to `state()`, continues exactly like this one.
    """

    @abstractmethod
    def state(self) -> State:
        """Return the position of the next batch, of constant size."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go to the position of a feed of the same arguments, in constant time.

        Raises:
            StateError: it is not the state of such a feed.
            DataError: it is a state in another text.
        """

    def wait(self) -> None:
        """Wait until the next batch is ready without taking it; its errors are raised by `__next__`."""

    def close(self) -> None:
        """End background work within seconds; there are no batches afterwards. May be called twice."""

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def state_at(text: str, rows: int, **per_process: Mapping[str, Any]) -> State:
    """Return the state after `rows` rows, of all ranks together, of the text with that digest.

    Args:
        per_process: entries of this process, as of `State`.
    """
    return State(values={"text": text, "rows": rows, **per_process}, per_process=tuple(per_process))


def rows_before(state: State, text: str) -> int:
    """Return the number of rows of the text before the state; raise the errors of `Feed.restore`."""
    rows, digest = state.values.get("rows"), state.values.get("text")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0 or not isinstance(digest, str):
        raise StateError(BATCHES, f"{dict(state.values)!r} is no position in a text")
    if digest != text:
        raise DataError(
            f"the training text is not the one that the checkpoint was written with (its digest was "
            f"{digest[:12]}, now it is {text[:12]}); restore its files, or delete the run's checkpoints/"
        )
    return rows


def rank_rows(batch_size: int, rank: int, world: int) -> slice:
    """Return this rank's rows of a batch of all ranks.

    Raises:
        DataError: `world` does not divide the batch size.
    """
    if batch_size % world:
        raise DataError(f"batch_size is {batch_size}; it must be a multiple of the {world} processes")
    return slice(rank, batch_size, world)


class Labels(Protocol):
    """A teacher's predictions for a batch."""

    def rows(self, first: int, end: int) -> Self:
        """Return those of the sequences first … end - 1."""


L = TypeVar("L", bound=Labels)


class LabelledFeed(Feed, Generic[L]):
    """A feed whose batches have a teacher's predictions; a subclass calls `set_labels` for each batch.

    The loop takes the text as from any feed; the objective takes the predictions of the current micro-batch.
    """

    _labels: L | None = None
    _used = 0

    def take(self, rows: int) -> L:
        """Return the labels of the next `rows` sequences of the last batch.

        A compiled objective calls `compilation.uncompiled(take)`: the position is no part of a graph.
        """
        if self._labels is None:
            raise RuntimeError("no batch was taken yet")
        first, self._used = self._used, self._used + rows
        return self.to_device(self._labels.rows(first, self._used))

    def rewind(self) -> None:
        """Go back to the batch's first sequence, so that its micro-batches can be computed again."""
        self._used = 0

    def set_labels(self, labels: L) -> None:
        """Set the labels of the batch that `__next__` is about to return."""
        self._labels, self._used = labels, 0

    def to_device(self, labels: L) -> L:
        """Move labels to the device; a subclass overrides this if `set_labels` gets them elsewhere."""
        return labels
