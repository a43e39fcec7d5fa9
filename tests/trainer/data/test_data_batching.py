"""trainer.data.batching: every window once per epoch, and the same batches after a restore and on many ranks."""

from __future__ import annotations

import hashlib
import json
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.state import State, StateError
from trainer.data.batching import WindowFeed, eval_batches, eval_documents
from trainer.data.feed import Feed
from trainer.errors import DataError, TrainerError


def batches(tokens: np.ndarray, **arguments: Any) -> Feed:
    return WindowFeed(tokens, text="a digest", **arguments)


def numbered(tokens: int) -> np.ndarray:
    """Tokens that equal their positions, so that a batch shows its origin."""
    return np.arange(tokens, dtype=np.uint32)


sizes = st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(0, 8))
"""Sequence length, whole windows, and tokens left over (some of them too many: they make another window)."""
seeds = st.integers(0, 2**63)


@given(size=sizes, batch_size=st.integers(1, 50), seed=seeds)
def test_every_epoch_shows_every_window_once(size: tuple[int, int, int], batch_size: int, seed: int) -> None:
    sequence_length, windows, rest = size
    tokens = numbered(sequence_length * windows + rest)
    windows = len(tokens) // sequence_length
    stream = batches(tokens, batch_size=batch_size, sequence_length=sequence_length, seed=seed)
    enough = -(-3 * windows // batch_size)
    rows = torch.cat(list(islice(stream, enough)))
    for epoch in range(3):
        starts = rows[epoch * windows : (epoch + 1) * windows, 0]
        assert sorted(starts.tolist()) == [window * sequence_length for window in range(windows)]


@given(size=sizes, batch_size=st.integers(1, 50), seed=seeds)
def test_a_row_is_a_run_of_consecutive_tokens(size: tuple[int, int, int], batch_size: int, seed: int) -> None:
    sequence_length, windows, rest = size
    stream = batches(
        numbered(sequence_length * windows + rest),
        batch_size=batch_size,
        sequence_length=sequence_length,
        seed=seed,
    )
    batch = next(stream)
    assert batch.shape == (batch_size, sequence_length)
    assert batch.dtype == torch.int64
    assert torch.equal(batch, batch[:, :1] + torch.arange(sequence_length))


@given(size=sizes, batch_size=st.integers(1, 50), seed=seeds, taken=st.integers(0, 40))
def test_a_feed_goes_on_where_another_stood(
    size: tuple[int, int, int], batch_size: int, seed: int, taken: int
) -> None:
    sequence_length, windows, rest = size

    def feed() -> Feed:
        return batches(
            numbered(sequence_length * windows + rest),
            batch_size=batch_size,
            sequence_length=sequence_length,
            seed=seed,
        )

    unbroken = feed()
    for _ in range(taken):
        next(unbroken)
    kept = State(values=json.loads(json.dumps(unbroken.state().values)))
    resumed = feed()
    next(resumed)
    resumed.restore(kept)
    assert resumed.state() == unbroken.state()
    for _ in range(3):
        assert torch.equal(next(resumed), next(unbroken))


def test_a_far_place_costs_no_more_than_a_near_one() -> None:
    feed = batches(numbered(1000), batch_size=4, sequence_length=10, seed=0)
    feed.restore(State(values={"text": "a digest", "rows": 10**15}))
    assert next(feed).shape == (4, 10)  # the test's time limit is the proof


@pytest.mark.parametrize(
    ("values", "error", "problem"),
    [
        ({"text": "another digest", "rows": 8}, DataError, r"its digest was another dige, now it is a digest"),
        ({"rows": 8}, StateError, "is no position"),
        ({"text": "a digest"}, StateError, "is no position"),
        ({"text": "a digest", "rows": -1}, StateError, "is no position"),
        ({"text": "a digest", "rows": "8"}, StateError, "is no position"),
        ({"text": "a digest", "rows": True}, StateError, "is no position"),
        ({"position": 3}, StateError, "is no position"),
    ],
    ids=["another-text", "no-text", "no-rows", "negative", "words", "boolean", "an-earlier-format"],
)  # fmt: skip
def test_a_state_that_is_none_is_refused(
    values: dict[str, Any], error: type[TrainerError], problem: str
) -> None:
    feed, untouched = (batches(numbered(100), batch_size=4, sequence_length=10, seed=0) for _ in range(2))
    with pytest.raises(error, match=problem):
        feed.restore(State(values=values))
    assert torch.equal(next(feed), next(untouched))


@given(world=st.integers(1, 4), per_rank=st.integers(1, 5), windows=st.integers(1, 30), seed=seeds)
def test_the_rows_of_all_ranks_are_the_batch_of_one(
    world: int, per_rank: int, windows: int, seed: int
) -> None:
    def feed(rank: int, of: int) -> Feed:
        return batches(
            numbered(windows * 3),
            batch_size=per_rank * world,
            sequence_length=3,
            seed=seed,
            rank=rank,
            world=of,
        )

    alone, together = feed(0, 1), [feed(rank, world) for rank in range(world)]
    for _ in range(3):
        batch = next(alone)
        for rank, mine in enumerate(together):
            assert torch.equal(next(mine), batch[rank::world])
            assert mine.state() == alone.state()


def test_the_order_is_what_it_always_was() -> None:
    """Results of finished sweeps depend on it: the digest was taken before feeds had positions."""
    feed = batches(numbered(640), batch_size=6, sequence_length=10, seed=7)
    drawn = torch.cat(list(islice(feed, 30)))
    assert hashlib.sha256(drawn.numpy().tobytes()).hexdigest()[:16] == "205c7b5f68b95194"


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int) -> list[list[int]]:
        stream = batches(numbered(640), batch_size=64, sequence_length=10, seed=seed)
        return [batch[:, 0].tolist() for batch in islice(stream, 2)]

    (first, second), (other, _) = order(0), order(1)
    assert first != second
    assert first != other
    assert order(0) == [first, second]


@given(
    sequence_length=st.integers(1, 9),
    batch_size=st.integers(1, 6),
    count=st.integers(1, 6),
    spare=st.integers(0, 30),
)
def test_evaluation_windows_are_distinct_and_evenly_spread(
    sequence_length: int, batch_size: int, count: int, spare: int
) -> None:
    wanted = batch_size * count
    tokens = numbered((wanted + spare) * sequence_length)
    found = eval_batches(tokens, batch_size=batch_size, sequence_length=sequence_length, batches=count)
    assert [tuple(batch.shape) for batch in found] == [(batch_size, sequence_length)] * count
    starts = sorted(torch.cat(found)[:, 0].tolist())
    gaps = {(after - before) // sequence_length for before, after in pairwise(starts)}
    assert starts[0] == 0
    assert all(gap >= 1 for gap in gaps)
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_evaluation_batches_are_the_same_every_time() -> None:
    first, second = (
        eval_batches(numbered(1000), batch_size=3, sequence_length=10, batches=4) for _ in range(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_evaluation_windows_know_the_document_of_their_middle() -> None:
    """Documents end with token 0, at 4, 5 and 19; windows are 0-3, 4-7, …, 16-19, taken in turn."""
    tokens = np.array([9, 9, 9, 9, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 9, 9], dtype=np.uint16)
    sizes = {"batch_size": 2, "sequence_length": 4, "batches": 2}
    first, second = eval_batches(np.arange(22, dtype=np.uint16), **sizes)
    assert [first[:, 0].tolist(), second[:, 0].tolist()] == [[0, 8], [4, 12]]
    assert eval_documents(tokens, 0, **sizes) == (0, 2, 2, 2)
    assert eval_documents(tokens, None, **sizes) == ()


def test_more_evaluation_windows_than_there_are_is_refused() -> None:
    with pytest.raises(DataError, match=r"4 batches of 3 .*11 of 10"):
        eval_batches(numbered(119), batch_size=3, sequence_length=10, batches=4)


@pytest.mark.parametrize(
    ("tokens", "arguments", "problem"),
    [
        (9, {}, "9 tokens, not one window of 10"),
        (0, {}, "0 tokens"),
        (100, {"world": 3}, "batch_size is 2; it must be a multiple of the 3"),
    ],
    ids=["too-short", "empty", "uneven"],
)
def test_a_stream_that_cannot_be_is_refused_when_asked_for(
    tokens: int, arguments: dict[str, int], problem: str
) -> None:
    wanted = {"batch_size": 2, "sequence_length": 10, "seed": 0} | arguments
    with pytest.raises(DataError, match=problem):
        batches(numbered(tokens), **wanted)


def test_a_batch_is_a_copy_that_may_be_written_to() -> None:
    tokens = numbered(20)
    tokens.flags.writeable = False
    next(batches(tokens, batch_size=1, sequence_length=10, seed=0)).zero_()
    assert tokens.sum() == 190
