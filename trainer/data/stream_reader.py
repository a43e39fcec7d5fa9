"""One place at which streamed text is read: from blocks to shuffled windows of tokens. Used by `stream`.

A lane packs the tokens of its documents, one after the other, into windows of T tokens; nothing is left out,
also not where an epoch ends. Windows come in chunks: a chunk is read as a whole and given out in an order of
its own. The state of a lane is where its chunk begins, and how much of it is given out; to restore it is to
read that one chunk again, wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trainer.checkpoint.state import StateError
from trainer.data.encoder import Encoder, Ids
from trainer.data.errors import DataError
from trainer.data.feed import BATCHES
from trainer.text import counted

_START = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The token that is packed next: that of a document in a block of an epoch, all counted from 0.

    Args:
        block: in the lane's order of the epoch.
        document: among those of the block that are trained on.
    """

    epoch: int
    block: int
    document: int
    token: int


class Lane:
    """Endless windows [T] of one lane's share of the text.

    Args:
        order: the lane's blocks in the epoch that it is given.
        documents: the training documents of a block.
        number, seed: what its shuffling depends on, with the number of the chunk.
        window: T.
        chunk: windows that are shuffled together.
        first: windows in the first chunk, so that lanes that are read alike do not all begin one at once.
    """

    def __init__(
        self,
        order: Callable[[int], Sequence[int] | npt.NDArray[np.int64]],
        documents: Callable[[int], Sequence[str]],
        encode: Encoder,
        *,
        number: int,
        seed: int,
        window: int,
        chunk: int,
        first: int,
    ) -> None:
        self._order_of, self._documents_of, self._encode = order, documents, encode
        self._number, self._seed = number, seed
        self._window, self._usual, self._first = window, chunk, first
        self.restore(_START)

    def state(self) -> list[int]:
        """Epoch, block, document and token at which the chunk begins, its number, and windows given out."""
        if self._taken == self._size_of(self._chunk):
            place, chunk, taken = self._place, self._chunk + 1, 0
        else:
            place, chunk, taken = self._start, self._chunk, self._taken
        return [place.epoch, place.block, place.document, place.token, chunk, taken]

    def restore(self, state: Sequence[int]) -> None:
        """Goes there; the chunk is read when its next window is asked for. Raises StateError."""
        if len(state) != len(_START) or not all(type(part) is int and part >= 0 for part in state):
            raise StateError(BATCHES, f"{state!r} is no place in a lane")
        *place, chunk, taken = state
        if taken >= self._size_of(chunk):
            raise StateError(
                BATCHES, f"{counted(taken, 'window')} given out, of {self._size_of(chunk)} of a chunk"
            )
        self._start = self._place = Place(**dict(zip(Place.__annotations__, place, strict=True)))
        self._chunk, self._taken = chunk, taken
        self._windows: npt.NDArray[np.int64] | None = None
        self._texts: Sequence[str] | None = None
        self._order: Sequence[int] | npt.NDArray[np.int64] | None = None

    def __next__(self) -> npt.NDArray[np.int64]:
        """The next window. Raises DataError."""
        if self._taken == self._size_of(self._chunk):
            self._start, self._chunk, self._taken, self._windows = self._place, self._chunk + 1, 0, None
        if self._windows is None:
            self._windows = self._read_chunk()
        self._taken += 1
        window: npt.NDArray[np.int64] = self._windows[self._taken - 1]
        return window

    def _read_chunk(self) -> npt.NDArray[np.int64]:
        size = self._size_of(self._chunk)
        tokens = np.empty(size * self._window, dtype=np.int64)
        filled = 0
        while filled < len(tokens):
            ids = self._document()
            piece = ids[self._place.token : self._place.token + len(tokens) - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._go_on(len(piece), len(ids))
        random = np.random.default_rng([self._seed, self._number, self._chunk])
        return tokens.reshape(size, self._window)[random.permutation(size)]

    def _size_of(self, chunk: int) -> int:
        return self._usual if chunk else self._first

    def _go_on(self, taken: int, of: int) -> None:
        place = self._place
        if place.token + taken < of:
            self._place = replace(place, token=place.token + taken)
        else:
            self._place = replace(place, document=place.document + 1, token=0)
            self._ids: Ids | None = None

    def _document(self) -> Ids:
        """The ids of the document at the place, which moves on to the next block or epoch if it has to."""
        passed = 0
        while self._place.document >= len(self._block()):
            blocks = len(self._epoch())
            passed = passed + 1 if not self._place.document else 0
            if passed > 2 * blocks:
                raise DataError(
                    f"lane {self._number} of the training text has no document in its "
                    f"{counted(blocks, 'block')}; lower data.lanes, or take more text"
                )
            self._next_block(blocks)
        if self._ids is None:
            self._ids = next(self._encoded)
        return self._ids

    def _next_block(self, blocks: int) -> None:
        place = self._place
        self._texts = None
        if place.block + 1 < blocks:
            self._place = replace(place, block=place.block + 1, document=0, token=0)
        else:
            self._order = None
            self._place = Place(epoch=place.epoch + 1, block=0, document=0, token=0)

    def _epoch(self) -> Sequence[int] | npt.NDArray[np.int64]:
        if self._order is None:
            self._order = self._order_of(self._place.epoch)
        return self._order

    def _block(self) -> Sequence[str]:
        if self._texts is None:
            order = self._epoch()
            if self._place.block >= len(order):
                raise StateError(BATCHES, f"there is no block {self._place.block} in lane {self._number}")
            self._texts = self._documents_of(int(order[self._place.block]))
            self._encoded: Iterator[Ids] = self._encode(self._texts[self._place.document :])
            self._ids = None
        return self._texts
