"""A reader of streamed text, from blocks to shuffled windows of tokens. Used by `stream`.

A lane packs the tokens of its documents back to back into windows of T tokens, across the ends of epochs, and
drops none. Windows are read and shuffled in chunks. The state of a lane is the position of its chunk and the
number of windows taken from it, so that restoring costs reading one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sweeps.text.counted import counted
from trainer.checkpoint.state import StateError
from trainer.data.encoder import Encoder, Ids
from trainer.data.feed import BATCHES
from trainer.errors import DataError

_START = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Position:
    """The position of the token that is packed next, all numbers counted from 0.

    Args:
        epoch: number of passes over the text so far.
        block: in the lane's order of the epoch.
        document: among the block's training documents.
        token: in the document.
    """

    epoch: int
    block: int
    document: int
    token: int


class Lane:
    """Endless windows [T], int64, of one lane's share of the text.

    Args:
        order: returns the lane's blocks in an epoch.
        documents: returns the training documents of a block.
        number: of the lane; with seed and number of the chunk it determines the shuffling.
        window: T.
        chunk: number of windows that are shuffled together.
        first: number of windows in the first chunk, which differs so that lanes do not all read at once.
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
        """Return epoch, block, document and token where the chunk begins, its number, and windows taken."""
        if self._windows_read == self._size_of(self._chunk):
            start, chunk, taken = self._position, self._chunk + 1, 0
        else:
            start, chunk, taken = self._start, self._chunk, self._windows_read
        return [start.epoch, start.block, start.document, start.token, chunk, taken]

    def restore(self, state: Sequence[int]) -> None:
        """Go to a state, or raise StateError; the chunk is read with its next window."""
        if len(state) != len(_START) or not all(type(part) is int and part >= 0 for part in state):
            raise StateError(BATCHES, f"{state!r} is no position in a lane")
        *start, chunk, taken = state
        if taken >= self._size_of(chunk):
            raise StateError(
                BATCHES, f"{counted(taken, 'window')} given out, of {self._size_of(chunk)} of a chunk"
            )
        self._start = self._position = Position(*start)
        self._chunk, self._windows_read = chunk, taken
        self._windows: npt.NDArray[np.int64] | None = None
        self._texts: Sequence[str] | None = None
        self._order: Sequence[int] | npt.NDArray[np.int64] | None = None

    def __next__(self) -> npt.NDArray[np.int64]:
        """Return the next window [T], or raise DataError."""
        if self._windows_read == self._size_of(self._chunk):
            self._start, self._chunk = self._position, self._chunk + 1
            self._windows_read, self._windows = 0, None
        if self._windows is None:
            self._windows = self._read_chunk()
        self._windows_read += 1
        window: npt.NDArray[np.int64] = self._windows[self._windows_read - 1]
        return window

    def _read_chunk(self) -> npt.NDArray[np.int64]:
        size = self._size_of(self._chunk)
        tokens = np.empty(size * self._window, dtype=np.int64)
        filled = 0
        while filled < len(tokens):
            ids = self._document()
            piece = ids[self._position.token : self._position.token + len(tokens) - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._advance(len(piece), len(ids))
        random = np.random.default_rng([self._seed, self._number, self._chunk])
        return tokens.reshape(size, self._window)[random.permutation(size)]

    def _size_of(self, chunk: int) -> int:
        return self._usual if chunk else self._first

    def _advance(self, tokens: int, length: int) -> None:
        """Move by `tokens` in the current document of that length."""
        at = self._position
        if at.token + tokens < length:
            self._position = replace(at, token=at.token + tokens)
        else:
            self._position = replace(at, document=at.document + 1, token=0)
            self._ids: Ids | None = None

    def _document(self) -> Ids:
        """Return the ids of the current document, moving on to the next block or epoch if necessary."""
        empty_blocks = 0
        while self._position.document >= len(self._block()):
            blocks = len(self._epoch())
            empty_blocks = empty_blocks + 1 if not self._position.document else 0
            if empty_blocks > 2 * blocks:
                raise DataError(
                    f"lane {self._number} of the training text has no document in its "
                    f"{counted(blocks, 'block')}; lower data.lanes, or take more text (near-copies of "
                    "measured text do not count)"
                )
            self._next_block(blocks)
        if self._ids is None:
            self._ids = next(self._encoded)
        return self._ids

    def _next_block(self, blocks: int) -> None:
        at = self._position
        self._texts = None
        if at.block + 1 < blocks:
            self._position = replace(at, block=at.block + 1, document=0, token=0)
        else:
            self._order = None
            self._position = Position(at.epoch + 1, 0, 0, 0)

    def _epoch(self) -> Sequence[int] | npt.NDArray[np.int64]:
        if self._order is None:
            self._order = self._order_of(self._position.epoch)
        return self._order

    def _block(self) -> Sequence[str]:
        if self._texts is None:
            order = self._epoch()
            if self._position.block >= len(order):
                raise StateError(BATCHES, f"there is no block {self._position.block} in lane {self._number}")
            self._texts = self._documents_of(int(order[self._position.block]))
            self._encoded: Iterator[Ids] = self._encode(self._texts[self._position.document :])
            self._ids = None
        return self._texts
