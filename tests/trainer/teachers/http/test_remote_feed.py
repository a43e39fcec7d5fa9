"""Asking ahead: which batches are asked about and when, what belongs to which, and where a kept run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from fake_vllm import FakeVllm, bigrams, fails, waits
from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data import Feed
from trainer.errors import TeacherServerError
from trainer.teachers.http.feed import TaughtFeed
from trainer.teachers.http.request_thread import Asker

CPU = torch.device("cpu")
MakeAsker = Callable[..., Asker]


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
    """The first token of each batch that was asked about, once there are so many."""
    deadline = time.monotonic() + 20
    while len(server.bodies) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)  # were there more, they would come
    return sorted(body["prompt"][0][0] for body in server.bodies)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_no_more_are_asked_about_than_were_to_be_ahead(
    prefetch: int, asker: MakeAsker, server: FakeVllm
) -> None:
    taught = TaughtFeed(Counting(), asker(), prefetch=prefetch, device=CPU)
    assert asked(server, 0) == []
    next(taught)
    assert asked(server, 1 + prefetch) == list(range(1 + prefetch))
    next(taught)
    assert asked(server, 2 + prefetch) == list(range(2 + prefetch))


def test_the_next_answers_come_while_the_batch_in_hand_is_trained_on(
    asker: MakeAsker, server: FakeVllm
) -> None:
    taught = TaughtFeed(Counting(), asker(), prefetch=1, device=CPU)
    next(taught)
    asked(server, 2)
    server.troubles.append(waits(60))  # for the third
    began = time.monotonic()
    next(taught)
    assert time.monotonic() - began < 5


def test_each_batch_is_handed_out_with_what_was_said_of_it_whoever_answers_first(
    asker: MakeAsker, server: FakeVllm
) -> None:
    server.troubles.extend([waits(0.3), waits(0.0), fails(503)])
    taught = TaughtFeed(Counting(), asker(top_k=11), prefetch=2, device=CPU)
    for number in range(5):
        ids_BT = next(taught)
        assert ids_BT[0, 0] == number
        said = taught.take(2)
        expected = bigrams(ids_BT)[:, :-1].gather(-1, said.ids)
        torch.testing.assert_close(said.logprobs, expected)


def test_micro_batches_take_their_own_rows(asker: MakeAsker) -> None:
    taught = TaughtFeed(Counting(), asker(top_k=11), prefetch=0, device=CPU)
    ids_BT = next(taught)
    for row in range(2):
        said = taught.take(1)
        expected = bigrams(ids_BT[row : row + 1])[:, :-1].gather(-1, said.ids)
        torch.testing.assert_close(said.logprobs, expected)


def test_a_state_is_the_place_of_the_next_batch_and_not_of_those_asked_about(asker: MakeAsker) -> None:
    taught = TaughtFeed(Counting(), asker(), prefetch=3, device=CPU)
    assert taught.state().values == {"at": 0}
    next(taught)
    next(taught)
    assert taught.state().values == {"at": 2}
    other = TaughtFeed(Counting(), asker(), prefetch=3, device=CPU)
    next(other)  # what was asked about before is forgotten
    other.restore(taught.state())
    assert [int(next(other)[0, 0]) for _ in range(3)] == [2, 3, 4]
    assert other.state().values == {"at": 5}


def test_a_batch_without_an_answer_stays_the_next_one(asker: MakeAsker, server: FakeVllm) -> None:
    taught = TaughtFeed(Counting(), asker(), prefetch=0, device=CPU)
    next(taught)
    server.troubles.append(fails(400, "no"))
    with pytest.raises(TeacherServerError, match="400 Bad Request: no"):
        next(taught)
    assert taught.state().values == {"at": 1}


def test_taking_before_a_batch_is_a_mistake_of_the_program(asker: MakeAsker) -> None:
    with pytest.raises(RuntimeError, match="no batch"):
        TaughtFeed(Counting(), asker(), prefetch=0, device=CPU).take(1)
