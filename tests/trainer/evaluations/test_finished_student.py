"""Continuations and log-likelihoods of a finished student, against transformers and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from pretrained import save_stand_in
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from trainer.api import check
from trainer.data.encoder import Encoder
from trainer.devices.device import open_device
from trainer.devices.sdpa import register
from trainer.evaluations.student import FinishedStudent
from trainer.models.causal_lm import load_pretrained, run

SMALL = {
    "vocab_size": 280,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,  # likelihoods of the usual weights are almost equal, processed or not
}
PROMPTS = ["the cat", "a", "dogs and cats and birds sing", "the cat sat"]


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> FinishedStudent:
    folder = save_stand_in(tmp_path_factory.mktemp("model"), "smollm2")
    config = check(["device=cpu", "device.threads=1", "device.dtype=float32"])
    encoder = Encoder.open(folder)
    return FinishedStudent(
        model=load_pretrained(str(folder), dtype="float32", attention=register()).eval(),
        tokenizer=encoder.backend,
        end=encoder.end,
        device=open_device(config.device),
        config=config,
        folder=folder,
        tokenizer_folder=folder,
    )


def greedy(student: FinishedStudent, prompt: str, tokens: int) -> str:
    """The continuation by one forward pass after the other, of this prompt alone."""
    ids = student.encode(prompt)
    added: list[int] = []
    for _ in range(tokens):
        logits = run(student.model, torch.tensor([ids + added])).logits
        added.append(int(logits[0, -1].argmax()))
        if added[-1] == student.end:
            return student.decode(added[:-1])
    return student.decode(added)


def test_batched_prompts_continue_as_each_alone(student: FinishedStudent) -> None:
    assert student.continuations(PROMPTS, 8) == [greedy(student, prompt, 8) for prompt in PROMPTS]


def test_continuation_ends_when_done_or_out_of_positions(student: FinishedStudent) -> None:
    (short,) = student.continuations(["the cat"], 8, done=lambda text: len(text) >= 3)
    (longer,) = student.continuations(["the cat"], 8)
    assert longer.startswith(short)
    assert 3 <= len(short) < len(longer)
    left = 64 - len(student.encode("the cat"))
    assert student.continuations(["the cat"], 500) == student.continuations(["the cat"], left)


def test_the_end_of_text_ends_a_continuation(student: FinishedStudent) -> None:
    first = student.encode(student.continuations(["the cat"], 1)[0])[0]
    ended = FinishedStudent(**{**student.__dict__, "end": first})
    assert ended.continuations(["the cat"], 8) == [""]


@pytest.mark.parametrize(
    "model",
    [
        None,
        lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=5.0)),
        lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=8.0)),
    ],
    ids=["plain", "capped", "scaled"],
)
def test_the_log_likelihood_is_the_sum_over_the_continuation(
    student: FinishedStudent, model: Callable[[], nn.Module] | None
) -> None:
    if model is not None:
        torch.manual_seed(0)
        student = replace(student, model=model().eval())
    context, target = student.encode("the cat"), student.encode(" sat there")
    logits = run(student.model, torch.tensor([context + target])).logits[0].float().log_softmax(-1)
    expected = sum(float(logits[len(context) - 1 + at, token].detach()) for at, token in enumerate(target))
    value, likeliest = student.log_likelihood(context, target)
    assert value == pytest.approx(expected, abs=1e-5)
    assert likeliest is False
    best = [int(logits[len(context) - 1].argmax())]
    assert student.log_likelihood(context, best)[1] is True


def test_a_context_beyond_the_positions_is_cut_at_its_start(student: FinishedStudent) -> None:
    positions = int(cast(Any, student.model).config.max_position_embeddings)
    context, target = student.encode("the cat") * 50, student.encode(" sat")
    kept = context[-(positions + 1 - len(target)) :]
    assert student.log_likelihood(context, target) == student.log_likelihood(kept, target)
