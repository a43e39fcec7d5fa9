"""trainer.data.stream_reader: no text is lost, shuffling is within a chunk, and restoring costs one chunk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain, count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.state import StateError
from trainer.data.stream_reader import Lane
from trainer.errors import DataError

Blocks = list[list[str]]

blocks = st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=5).filter(any)
"""Lengths of the documents of each block; some blocks are empty, not all."""


class Text:
    """Blocks of documents whose tokens are all different, and a record of what was read."""

    def __init__(self, lengths: Sequence[Sequence[int]]) -> None:
        fresh = count()
        self.ids = [[[next(fresh) for _ in range(length)] for length in block] for block in lengths]
        self.read: list[int] = []

    def documents(self, block: int) -> list[str]:
        self.read.append(block)
        return [" ".join(map(str, ids)) for ids in self.ids[block]]

    def order(self, epoch: int) -> list[int]:
        """The blocks, rotated by one with every epoch."""
        return [(number + epoch) % len(self.ids) for number in range(len(self.ids))]

    def lane(
        self, *, window: int, chunk: int, seed: int = 0, number: int = 0, first: int | None = None
    ) -> Lane:
        how = {"window": window, "chunk": chunk, "first": chunk if first is None else first}
        return Lane(self.order, self.documents, encode, number=number, seed=seed, **how)  # type: ignore[arg-type]

    def tokens(self) -> Iterator[int]:
        """All of the text, epoch by epoch, endlessly."""
        for epoch in count():
            for block in self.order(epoch):
                yield from chain.from_iterable(self.ids[block])


def encode(texts: Sequence[str]) -> Iterator[np.ndarray]:
    return (np.array(text.split(), dtype=np.int64) for text in texts)


def take(lane: Lane, windows: int) -> np.ndarray:
    return np.stack([next(lane) for _ in range(windows)])


@given(blocks, st.integers(1, 7), st.integers(1, 6), st.integers(1, 6), st.integers(0, 4))
def test_chunk_holds_the_next_tokens(
    lengths: list[list[int]], window: int, first: int, chunk: int, chunks: int
) -> None:
    text = Text(lengths)
    lane, tokens = text.lane(window=window, chunk=chunk, first=first), text.tokens()
    for size in (first, *[chunk] * chunks):
        in_order = np.array([[next(tokens) for _ in range(window)] for _ in range(size)])
        assert sorted(map(tuple, take(lane, size))) == sorted(map(tuple, in_order))


@given(
    blocks, st.integers(1, 7), st.integers(1, 6), st.integers(1, 6), st.integers(0, 25), st.integers(0, 2**32)
)
def test_a_lane_goes_on_where_another_stood(
    lengths: list[list[int]], window: int, first: int, chunk: int, taken: int, seed: int
) -> None:
    text = Text(lengths)
    unbroken = text.lane(window=window, chunk=chunk, first=first, seed=seed)
    for _ in range(taken):
        next(unbroken)
    resumed = text.lane(window=window, chunk=chunk, first=first, seed=seed)
    next(resumed)
    resumed.restore(json.loads(json.dumps(unbroken.state())))
    assert resumed.state() == unbroken.state()
    assert np.array_equal(take(resumed, 8), take(unbroken, 8))


@pytest.mark.parametrize("windows", [5, 50, 500])
def test_to_come_back_costs_one_chunk_wherever_it_is(windows: int) -> None:
    text = Text([[4, 4, 4]] * 100)  # a chunk of 2 * 6 tokens lies in 2 blocks at most
    lane = text.lane(window=6, chunk=2)
    take(lane, windows)
    state = lane.state()
    text.read.clear()
    resumed = text.lane(window=6, chunk=2)
    resumed.restore(state)
    next(resumed)
    assert 1 <= len(text.read) <= 2


def test_chunks_seeds_and_lanes_have_orders_of_their_own() -> None:
    def order(**who: int) -> list[list[int]]:
        taken = take(Text([[800]]).lane(window=2, chunk=40, **who), 80)[:, 0]
        return [np.argsort(part).tolist() for part in (taken[:40], taken[40:])]

    first, second = order(seed=1, number=0)
    assert len({tuple(o) for o in (first, second, order(seed=2)[0], order(seed=1, number=1)[0])}) == 4
    assert order(seed=1, number=0) == [first, second]


def test_a_lane_without_any_document_is_told() -> None:
    with pytest.raises(DataError, match=r"lane 3 .*data\.lanes"):
        next(Text([[], [], [], []]).lane(window=2, chunk=1, number=3))


@pytest.mark.parametrize(
    "state",
    [
        [],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 2],
        [0, 0, 0, -1, 0, 0],
        [0, 0, 0, True, 0, 0],
        [0, 0, 0, 1.0, 0, 0],
    ],
    ids=["none", "short", "beyond-the-chunk", "negative", "boolean", "fraction"],
)
def test_a_state_that_is_none_is_refused(state: list[int]) -> None:
    lane = Text([[5]]).lane(window=2, chunk=2)
    with pytest.raises(StateError):
        lane.restore(state)
    assert next(lane).shape == (2,)


def test_a_block_that_is_not_there_is_refused() -> None:
    lane = Text([[5]]).lane(window=2, chunk=2)
    lane.restore([0, 7, 0, 0, 0, 0])
    with pytest.raises(StateError, match="no block 7"):
        next(lane)
