"""Prefetching: which batches are requested when, which answer belongs to which, and resuming."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from fake_vllm import FakeVllm, bigrams, fails, waits
from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data.feed import Feed
from trainer.errors import TeacherServerError
from trainer.teachers.http.feed import HttpFeed, RequestThread

CPU = torch.device("cpu")
OpenThread = Callable[..., RequestThread]


class Counting(Feed):
    """Batches [2, 3]: (0 1 2, 3 4 5), (1 2 3, 4 5 6), …"""

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> Tensor:
        self.at += 1
        return (torch.arange(6).reshape(2, 3) + self.at - 1) % 11

    def state(self) -> State:
        return State(values={"at": self.at})

    def restore(self, state: State) -> None:
        self.at = state.values["at"]


def asked(server: FakeVllm, count: int) -> list[int]:
    """The first token of each requested batch, once there are so many."""
    deadline = time.monotonic() + 20
    while len(server.bodies) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)  # were there more, they would come
    return sorted(body["prompt"][0][0] for body in server.bodies)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_no_more_are_asked_about_than_were_to_be_ahead(
    prefetch: int, open_thread: OpenThread, server: FakeVllm
) -> None:
    feed = HttpFeed(Counting(), open_thread(), prefetch=prefetch, device=CPU)
    assert asked(server, 0) == []
    next(feed)
    assert asked(server, 1 + prefetch) == list(range(1 + prefetch))
    next(feed)
    assert asked(server, 2 + prefetch) == list(range(2 + prefetch))


def test_answers_are_prefetched(open_thread: OpenThread, server: FakeVllm) -> None:
    feed = HttpFeed(Counting(), open_thread(), prefetch=1, device=CPU)
    next(feed)
    asked(server, 2)
    server.troubles.append(waits(60))  # for the third
    began = time.monotonic()
    next(feed)
    assert time.monotonic() - began < 5


def test_batches_keep_their_answers(open_thread: OpenThread, server: FakeVllm) -> None:
    server.troubles.extend([waits(0.3), waits(0.0), fails(503)])
    feed = HttpFeed(Counting(), open_thread(top_k=11), prefetch=2, device=CPU)
    for number in range(5):
        ids_BT = next(feed)
        assert ids_BT[0, 0] == number
        answer = feed.take(2)
        expected = bigrams(ids_BT)[:, :-1].gather(-1, answer.ids)
        torch.testing.assert_close(answer.logprobs, expected)


def test_micro_batches_take_their_own_rows(open_thread: OpenThread) -> None:
    feed = HttpFeed(Counting(), open_thread(top_k=11), prefetch=0, device=CPU)
    ids_BT = next(feed)
    for row in range(2):
        answer = feed.take(1)
        expected = bigrams(ids_BT[row : row + 1])[:, :-1].gather(-1, answer.ids)
        torch.testing.assert_close(answer.logprobs, expected)


def test_state_is_that_of_the_next_batch(open_thread: OpenThread) -> None:
    feed = HttpFeed(Counting(), open_thread(), prefetch=3, device=CPU)
    assert feed.state().values == {"at": 0}
    next(feed)
    next(feed)
    assert feed.state().values == {"at": 2}
    other = HttpFeed(Counting(), open_thread(), prefetch=3, device=CPU)
    next(other)  # what was asked about before is forgotten
    other.restore(feed.state())
    assert [int(next(other)[0, 0]) for _ in range(3)] == [2, 3, 4]
    assert other.state().values == {"at": 5}


def test_a_batch_without_an_answer_stays_the_next_one(open_thread: OpenThread, server: FakeVllm) -> None:
    feed = HttpFeed(Counting(), open_thread(), prefetch=0, device=CPU)
    next(feed)
    server.troubles.append(fails(400, "no"))
    with pytest.raises(TeacherServerError, match="400 Bad Request: no"):
        next(feed)
    assert feed.state().values == {"at": 1}


def test_taking_before_a_batch_is_a_mistake_of_the_program(open_thread: OpenThread) -> None:
    with pytest.raises(RuntimeError, match="no batch"):
        HttpFeed(Counting(), open_thread(), prefetch=0, device=CPU).take(1)
