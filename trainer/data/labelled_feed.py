"""Batches of text with a teacher's predictions. Base of `teachers.http.feed` and `teachers.cached.feed`.

The loop takes the text as from any feed; the objective takes the predictions of the current micro-batch.
"""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

from trainer.data.feed import Feed


class Labels(Protocol):
    """A teacher's predictions for a batch."""

    def rows(self, first: int, end: int) -> Self:
        """Return those of the sequences first … end - 1."""


L = TypeVar("L", bound=Labels)


class LabelledFeed(Feed, Generic[L]):
    """A feed whose batches have labels; a subclass calls `set_labels` for each batch."""

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
