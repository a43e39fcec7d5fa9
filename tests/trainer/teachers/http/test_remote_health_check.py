"""The health check of a server: a teacher with our tokenizer passes, others are refused before any training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_vllm import VOCABULARY, FakeVllm, answers, bigrams, fails
from torch import Tensor

from trainer.config import HttpTeacherConfig
from trainer.errors import ConfigError, TeacherServerError
from trainer.teachers.http.feed import RequestThread, check_teacher

OpenThread = Callable[..., RequestThread]
Configure = Callable[..., HttpTeacherConfig]


def text(model: Callable[[Tensor], Tensor], length: int = 40) -> Tensor:
    """Text [1, T] sampled from the model itself."""
    ids_BT, generator = torch.zeros(1, 1, dtype=torch.int64), torch.Generator().manual_seed(1)
    for _ in range(length):
        following = torch.multinomial(model(ids_BT)[:, -1].exp(), 1, generator=generator)
        ids_BT = torch.cat([ids_BT, following], dim=-1)
    return ids_BT


def test_a_teacher_of_this_text_passes(open_thread: OpenThread, configure: Configure) -> None:
    check_teacher(open_thread(), configure(), text(bigrams), vocab_size=VOCABULARY)


def test_so_does_one_that_knows_nothing(open_thread: OpenThread, configure: Configure) -> None:
    def even(ids_BT: Tensor) -> Tensor:
        return torch.zeros(*ids_BT.shape, VOCABULARY).log_softmax(-1)

    with FakeVllm(even, vocab_size=VOCABULARY) as server:
        check_teacher(open_thread(url=server.url), configure(), text(bigrams), vocab_size=VOCABULARY)


def test_and_one_that_holds_a_single_token_for_impossible(
    open_thread: OpenThread, configure: Configure
) -> None:
    ids_BT = text(bigrams)

    def sure(given_BT: Tensor) -> Tensor:
        logprobs_BTV = bigrams(given_BT)
        logprobs_BTV[0, 3, ids_BT[0, 4]] = -torch.inf
        return logprobs_BTV.log_softmax(-1)

    with FakeVllm(sure, vocab_size=VOCABULARY) as server:
        check_teacher(open_thread(url=server.url), configure(), ids_BT, vocab_size=VOCABULARY)


def test_a_teacher_whose_ids_mean_other_tokens_is_refused(
    open_thread: OpenThread, configure: Configure
) -> None:
    def other(ids_BT: Tensor) -> Tensor:
        """A confident model of another vocabulary."""
        return (8 * bigrams((ids_BT + 4) % VOCABULARY).roll(5, dims=-1)).log_softmax(-1)

    with (
        FakeVllm(other, vocab_size=VOCABULARY) as server,
        pytest.raises(ConfigError, match=r"^stage3.teacher.model: .* 2.40"),
    ):
        check_teacher(open_thread(url=server.url), configure(), text(bigrams), vocab_size=VOCABULARY)


def test_refusal_of_the_server_is_a_config_error(
    open_thread: OpenThread, configure: Configure, server: FakeVllm
) -> None:
    server.troubles.append(fails(404, "The model `x` does not exist."))
    with pytest.raises(ConfigError, match=r"^stage3.teacher: .*http://.*`x`"):
        check_teacher(open_thread(), configure(), text(bigrams), vocab_size=VOCABULARY)


def test_an_answer_that_is_none_is_the_servers_mistake(
    open_thread: OpenThread, configure: Configure, server: FakeVllm
) -> None:
    server.troubles.append(answers("hello"))
    with pytest.raises(TeacherServerError, match="not JSON: 'hello'"):
        check_teacher(open_thread(), configure(), text(bigrams), vocab_size=VOCABULARY)


def test_more_candidates_than_tokens_are_refused_without_asking(
    open_thread: OpenThread, configure: Configure, server: FakeVllm
) -> None:
    with pytest.raises(ConfigError, match=r"^stage3.teacher.top_k: 12 .*\(11\)"):
        check_teacher(open_thread(), configure(top_k=12), text(bigrams), vocab_size=VOCABULARY)
    assert not server.bodies
