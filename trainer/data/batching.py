"""Token ids to batches: an endless shuffled stream for training, a fixed set for evaluation.

Called by the training loop and by the evaluation. Shapes: B batch size, T sequence length, W windows.
A window is T consecutive tokens; windows do not overlap, and a remainder shorter than T is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from trainer.checkpoint.state import State
from trainer.data.corpus import Tokens
from trainer.data.errors import DataError


class BatchStream(Iterator[torch.Tensor]):
    """Batches without end, and how many of them were taken: a checkpoint keeps that number.

    Args:
        start: the batches from a position on, at a cost that does not grow with it.
        position: where to begin.
    """

    def __init__(self, start: Callable[[int], Iterator[torch.Tensor]], position: int = 0) -> None:
        self._start, self._position = start, position
        self._batches = start(position)

    def __next__(self) -> torch.Tensor:
        batch = next(self._batches)
        self._position += 1
        return batch

    def state(self) -> State:
        return State(values={"position": self._position})

    def restore(self, state: State) -> None:
        self._position = int(state.values["position"])
        self._batches = self._start(self._position)


def batches(
    tokens: Tokens, *, batch_size: int, sequence_length: int, seed: int, skip: int = 0
) -> BatchStream:
    """Batches without end: int64 tensors [B, T] on the CPU.

    Each epoch shows every window once, in an order of its own; a batch may straddle two epochs. The stream
    is a function of the arguments alone, and `skip` starts it that many batches later at no more than the
    cost of shuffling one epoch: a resumed run sees exactly what it would have seen.

    Raises:
        DataError: no whole window fits into `tokens`, or an argument is out of range.
    """
    _require_at_least(1, batch_size=batch_size)
    _require_at_least(0, seed=seed, skip=skip)
    windows = _windows(tokens, sequence_length)
    return BatchStream(lambda position: _stream(windows, batch_size, seed, position), skip)


def eval_batches(
    tokens: Tokens, *, batch_size: int, sequence_length: int, batches: int
) -> list[torch.Tensor]:
    """The same `batches` int64 tensors [B, T] every time, their windows spread evenly over `tokens`.

    No window comes twice: that would make the standard error over batches look smaller than it is.

    Raises:
        DataError: `tokens` has fewer than `batches * batch_size` windows, or an argument is out of range.
    """
    _require_at_least(1, batch_size=batch_size, batches=batches)
    windows = _windows(tokens, sequence_length)
    wanted = batches * batch_size
    if wanted > len(windows):
        raise DataError(
            f"the evaluation asks for {batches} batches of {batch_size} windows, but the held-out text "
            f"has {len(windows)} of {sequence_length} tokens; evaluate fewer batches or hold out more text"
        )
    spread = np.arange(wanted) * len(windows) // wanted
    # Strided, so that every batch samples the whole text and batch means differ only by chance.
    return [_tensor(windows, spread[first::batches]) for first in range(batches)]


def _stream(windows: Tokens, batch_size: int, seed: int, skip: int) -> Iterator[torch.Tensor]:
    position = skip * batch_size
    epoch, order = -1, np.empty(0, dtype=np.int64)
    while True:
        chosen: list[npt.NDArray[np.int64]] = []
        missing = batch_size
        while missing:
            wanted_epoch, start = divmod(position, len(windows))
            if wanted_epoch != epoch:
                epoch, order = wanted_epoch, _epoch_order(len(windows), seed, wanted_epoch)
            chosen.append(order[start : start + missing])
            position += len(chosen[-1])
            missing -= len(chosen[-1])
        yield _tensor(windows, np.concatenate(chosen))


def _epoch_order(windows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """A permutation that depends on nothing but its arguments (so that any epoch can be entered at once)."""
    return np.random.default_rng([seed, epoch]).permutation(windows)


def _windows(tokens: Tokens, sequence_length: int) -> Tokens:
    """A view [W, T] of the tokens [N]."""
    _require_at_least(1, sequence_length=sequence_length)
    count = len(tokens) // sequence_length
    if count == 0:
        raise DataError(
            f"the text has {len(tokens)} tokens, not one window of {sequence_length}; "
            "lower data.sequence_length or take more text (data.max_bytes)"
        )
    return tokens[: count * sequence_length].reshape(count, sequence_length)


def _tensor(windows: Tokens, chosen: npt.NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(windows[chosen].astype(np.int64))


def _require_at_least(least: int, **arguments: int) -> None:
    for name, value in arguments.items():
        if value < least:
            raise DataError(f"{name} is {value}; it must be at least {least}")
