"""Batches of token ids in memory: an endless shuffled feed for training, a fixed set for evaluation.

Used by `memory` and `inputs`. Shapes: B batch size, T sequence length, W windows, N tokens. A window
is T consecutive tokens; windows do not overlap, and a remainder shorter than T is dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sweeps.text.counted import counted
from trainer.checkpoint.state import State
from trainer.data.feed import Feed, rank_rows, rows_before, state_at
from trainer.errors import DataError

Tokens = npt.NDArray[np.unsignedinteger[Any]]


class WindowFeed(Feed):
    """Batches of the windows of an array.

    Each epoch has every window once, in an order of its own; a batch may span two epochs. Restoring costs no
    more than shuffling one epoch, at any position.

    Args:
        tokens: [N], read only as far as needed.
        batch_size: rows of all ranks together.
        sequence_length: T.

    Raises:
        DataError: `tokens` has no full window.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        text: str,
        batch_size: int,
        sequence_length: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._own_rows = rank_rows(batch_size, rank, world)
        self._windows = _windows(tokens, sequence_length)
        self._text, self._batch_size, self._seed = text, batch_size, seed
        self._rows = 0
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def state(self) -> State:
        return state_at(self._text, self._rows)

    def restore(self, state: State) -> None:
        self._rows = rows_before(state, self._text)

    def __next__(self) -> torch.Tensor:
        """Return the next batch; one that the end of the epoch falls into goes on with the next epoch."""
        chosen: list[npt.NDArray[np.int64]] = []
        missing = self._batch_size
        while missing:
            epoch, start = divmod(self._rows, len(self._windows))
            if epoch != self._epoch:
                # Determined by seed and epoch alone, so that a feed can be restored into any epoch.
                order = np.random.default_rng([self._seed, epoch]).permutation(len(self._windows))
                self._epoch, self._order = epoch, order
            chosen.append(self._order[start : start + missing])
            self._rows += len(chosen[-1])
            missing -= len(chosen[-1])
        rows = np.concatenate(chosen)[self._own_rows]
        return torch.from_numpy(self._windows[rows].astype(np.int64))


def open_tokens(path: Path, dtype: str) -> Tokens:
    """Return the token ids [N] of a file, memory-mapped; an empty file cannot be."""
    empty = path.stat().st_size == 0
    return np.empty(0, dtype=dtype) if empty else np.memmap(path, dtype=dtype, mode="r")


def eval_batches(
    tokens: Tokens, *, batch_size: int, sequence_length: int, batches: int, text: str = "held-out"
) -> list[torch.Tensor]:
    """Return a fixed set of int64 batches [B, T], with windows spread evenly over `tokens` [N].

    No window occurs twice, as that would understate the standard error over batches.

    Args:
        tokens: [N].
        sequence_length: T.
        text: what the tokens are of, for the error.

    Raises:
        DataError: `tokens` has fewer than `batches * batch_size` windows.
    """
    windows = _windows(tokens, sequence_length, f"{text} text")
    if batches * batch_size > len(windows):
        raise DataError(
            f"the evaluation asks for {counted(batches, 'batch', 'batches')} of "
            f"{counted(batch_size, 'window')}, but the {text} text has {len(windows)} of "
            f"{sequence_length} tokens; evaluate fewer batches or hold out more text"
        )
    chosen = _eval_rows(len(windows), batch_size, batches)
    return [torch.from_numpy(windows[rows].astype(np.int64)) for rows in chosen]


def eval_documents(
    tokens: Tokens, end: int | None, *, batch_size: int, sequence_length: int, batches: int
) -> tuple[int, ...]:
    """Return the number of the document in the middle of each window of `eval_batches`, in their order.

    Args:
        tokens: [N], as there.
        end: id of the token that ends a document; None: nothing tells them apart, and there are no numbers.
    """
    if end is None:
        return ()
    rows = np.concatenate(_eval_rows(len(tokens) // sequence_length, batch_size, batches))
    ends = np.flatnonzero(tokens == end)
    numbers: list[int] = np.searchsorted(ends, rows * sequence_length + sequence_length // 2).tolist()
    return tuple(numbers)


def _eval_rows(windows: int, batch_size: int, batches: int) -> list[npt.NDArray[np.int64]]:
    """Return which of so many windows are in each batch: [batch_size] of each."""
    wanted = batches * batch_size
    spread = np.arange(wanted) * windows // wanted
    # Strided, so that every batch samples the whole text and batch means differ only by chance.
    return [spread[first::batches] for first in range(batches)]


def _windows(tokens: Tokens, sequence_length: int, text: str = "text") -> Tokens:
    """Return a view [W, T] of the tokens [N]."""
    count = len(tokens) // sequence_length
    if count == 0:
        raise DataError(
            f"the {text} has {counted(len(tokens), 'token')}, not one window of {sequence_length}; "
            "lower data.sequence_length or take more text"
        )
    return tokens[: count * sequence_length].reshape(count, sequence_length)
