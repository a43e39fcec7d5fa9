"""Batches of text with what a teacher said of each. Base of `remote_teacher.feed` and `teacher_cache.feed`.

The loop takes the text as from any feed; the objective takes what was said of the micro-batch in hand.
"""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

import torch

from trainer.data.feed import Feed


class Said(Protocol):
    """What a teacher said of a batch."""

    def rows(self, first: int, end: int) -> Self:
        """That of some of its sequences."""


S = TypeVar("S", bound=Said)


class Taught(Feed, Generic[S]):
    """A feed whose batches come with something more; whoever makes one calls `_hand_out`."""

    _said: S | None = None
    _used = 0

    @torch.compiler.disable  # type: ignore[untyped-decorator] # the place in the batch is no part of a graph
    def take(self, rows: int) -> S:
        """What was said of the next `rows` sequences of the batch that was handed out last."""
        if self._said is None:
            raise RuntimeError("no batch was taken yet")
        first, self._used = self._used, self._used + rows
        return self._placed(self._said.rows(first, self._used))

    def again(self) -> None:
        """From the batch's first sequence: its micro-batches are computed once more."""
        self._used = 0

    def _hand_out(self, said: S) -> None:
        self._said, self._used = said, 0

    def _placed(self, said: S) -> S:
        """Where the objective wants it; whoever has not put it there before overrides this."""
        return said
