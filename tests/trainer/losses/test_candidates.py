"""The divergence from a teacher's likeliest tokens: the dense one with all of them, and sound with fewer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from trainer.losses.candidates import NOTHING, Candidates, candidate_divergence, candidate_losses
from trainer.losses.chunked import HeadInputs
from trainer.losses.distillation import tempered_divergence

B, T, V = 2, 4, 7


def random_logits(seed: int) -> Tensor:
    return 3 * torch.randn(B, T, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def reported(teacher_BTV: Tensor, count: int, *, repeated: int = 0) -> Candidates:
    """Return what a server reports of a teacher: the likeliest tokens, and some unused slots."""
    logprobs_BPV = F.log_softmax(teacher_BTV[:, :-1], dim=-1)
    top = logprobs_BPV.topk(count, dim=-1)
    rest_BP = (1 - top.values.exp().sum(dim=-1)).clamp(min=0).log().clamp(min=NOTHING)
    again = [top.indices, top.indices[..., :1].expand(-1, -1, repeated)]
    empty = torch.full((B, T - 1, repeated), NOTHING, dtype=torch.float64)
    return Candidates(
        ids=torch.cat(again, dim=-1),
        logprobs=torch.cat([top.values, empty], dim=-1),
        rest=torch.full_like(rest_BP, NOTHING) if count == V else rest_BP,
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 5.0])
def test_all_candidates_equal_the_dense_divergence(
    temperature: float,
) -> None:
    student, teacher = random_logits(1).requires_grad_(), random_logits(2)
    ours = candidate_divergence(student, reported(teacher, V), temperature=temperature)
    dense = tempered_divergence(student, teacher, temperature=temperature)
    torch.testing.assert_close(ours, dense)
    torch.testing.assert_close(*(torch.autograd.grad(loss, student)[0] for loss in (ours, dense)))


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_fewer_candidates_share_one_rest(temperature: float) -> None:
    student, teacher = random_logits(1), random_logits(2)
    total = 0.0
    for b in range(B):
        for t in range(T - 1):
            p, q = student[b, t].softmax(-1).tolist(), teacher[b, t].softmax(-1).tolist()
            top = sorted(range(V), key=lambda token: -q[token])[:3]
            buckets = [
                [
                    *(model[token] for token in top),
                    sum(model[token] for token in range(V) if token not in top),
                ]
                for model in (p, q)
            ]
            soft = [[x ** (1 / temperature) for x in bucket] for bucket in buckets]
            p, q = ([x / sum(bucket) for x in bucket] for bucket in soft)
            total += sum(y * math.log(y / x) for x, y in zip(p, q, strict=True)) / (B * (T - 1))
    ours = candidate_divergence(student, reported(teacher, 3), temperature=temperature)
    assert ours.item() == pytest.approx(total, rel=1e-10)


@given(st.integers(0, 2**31), st.integers(1, V), st.floats(0.25, 8))
def test_it_is_a_divergence(seed: int, count: int, temperature: float) -> None:
    student, teacher = random_logits(seed), random_logits(seed + 1)
    ours = candidate_divergence(student, reported(teacher, count), temperature=temperature)
    assert ours >= -1e-12
    agreed = candidate_divergence(teacher, reported(teacher, count), temperature=temperature)
    assert agreed.item() == pytest.approx(0, abs=1e-9)


@given(st.integers(0, 2**31))
def test_more_candidates_never_lower_the_divergence(seed: int) -> None:
    student, teacher = random_logits(seed), random_logits(seed + 1)
    losses = [
        candidate_divergence(student, reported(teacher, count), temperature=1.0).item()
        for count in range(1, V + 1)
    ]
    assert losses == pytest.approx(sorted(losses), rel=1e-9)


@pytest.mark.parametrize("count", [1, 3, V])
def test_slots_that_are_not_used_change_nothing(count: int) -> None:
    student, teacher = random_logits(1).requires_grad_(), random_logits(2)
    losses = [
        candidate_divergence(student, reported(teacher, count, repeated=repeated), temperature=5.0)
        for repeated in (0, 3)
    ]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, student)[0] for loss in losses))


def test_impossible_tokens_give_finite_losses() -> None:
    student, teacher = random_logits(1).float().requires_grad_(), random_logits(2).float()
    teacher[..., 0] = -math.inf
    candidates = reported(teacher.double(), V)
    candidates = Candidates(
        ids=candidates.ids,
        logprobs=candidates.logprobs.clamp(min=-9999.0).float(),
        rest=candidates.rest.float(),
    )  # as vLLM writes it
    loss = candidate_divergence(student, candidates, temperature=5.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite()
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_the_student_is_compared_in_float32() -> None:
    student, teacher = random_logits(1).bfloat16(), random_logits(2)
    candidates = reported(teacher, 3)
    candidates = Candidates(
        ids=candidates.ids, logprobs=candidates.logprobs.float(), rest=candidates.rest.float()
    )
    loss = candidate_divergence(student, candidates, temperature=5.0)
    assert loss.dtype == torch.float32
    exact = candidate_divergence(student.double(), reported(teacher, 3), temperature=5.0)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-4)


@pytest.mark.parametrize("elements", [V, 3 * V, 1000 * V])
@pytest.mark.parametrize("shape", [(B * (T - 1),), (B, T - 1)])
def test_in_chunks_losses_and_gradients_are_those_of_all_logits(
    elements: int, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(B, T, 5, dtype=torch.float64, generator=generator).requires_grad_()
    head = torch.randn(V, 5, dtype=torch.float64, generator=generator).requires_grad_()
    labels = torch.randint(V, (B, T - 1), generator=generator)
    answers = reported(random_logits(2), 3, repeated=1)
    logits = states @ head.T
    dense = (
        F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten()),
        candidate_divergence(logits, answers, temperature=5.0),
    )
    inputs = HeadInputs(states=states[:, :-1].reshape(*shape, 5), head=head)
    ours = candidate_losses(inputs, labels.view(shape), answers, temperature=5.0, chunk_elements=elements)
    torch.testing.assert_close(ours, dense)
    for one, other in zip(ours, dense, strict=True):
        torch.testing.assert_close(
            torch.autograd.grad(one, (states, head), retain_graph=True),
            torch.autograd.grad(other, (states, head), retain_graph=True),
        )
