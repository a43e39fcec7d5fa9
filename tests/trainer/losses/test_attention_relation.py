"""The attention-relation loss against BitDistill's equations, written as loops over plain numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.losses.attention_relation import Relation, relation_divergence

B, T = 2, 5


def states(seed: int, *widths: int) -> list[Tensor]:
    """Return queries, keys and values [B, T, D] in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, T, width, dtype=torch.float64, generator=generator) for width in widths]


def relation_row(state: Tensor, b: int, head: int, heads: int, t: int, kind: Relation) -> list[float]:
    """Eq. 12, or algorithm 1: how token t of one head relates to all tokens."""
    d = state.shape[-1] // heads
    rows = [[float(x) for x in state[b, u, head * d : (head + 1) * d]] for u in range(T)]
    if kind == "cosine":
        rows = [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in rows]
        scale = 1.0
    else:
        scale = math.sqrt(d)
    weights = [math.exp(sum(x * y for x, y in zip(rows[t], row, strict=True)) / scale) for row in rows]
    return [weight / sum(weights) for weight in weights]


def reference(student: list[Tensor], teacher: list[Tensor], heads: int, kind: Relation) -> float:
    """Eq. 11 with one layer and every alpha 1."""
    total = 0.0
    for s, t in zip(student, teacher, strict=True):
        for b in range(B):
            for head in range(heads):
                for token in range(T):
                    ours = relation_row(s, b, head, heads, token, kind)
                    theirs = relation_row(t, b, head, heads, token, kind)
                    kl = sum(q * math.log(q / p) for q, p in zip(theirs, ours, strict=True))
                    total += kl / (heads * T * B)
    return total


@pytest.mark.parametrize("kind", ["scaled", "cosine"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_equals_the_papers_sum_over_q_k_v(kind: Relation, heads: int) -> None:
    student, teacher = states(1, 8, 4, 4), states(2, 8, 4, 4)  # keys and values are shared by query heads
    ours = relation_divergence(student, teacher, heads=heads, relation=kind)
    assert ours.dtype == torch.float64
    assert ours.item() == pytest.approx(reference(student, teacher, heads, kind), rel=1e-12)


def test_student_and_teacher_may_have_different_widths() -> None:
    student, teacher = states(1, 8, 4, 4), states(2, 16, 8, 8)
    ours = relation_divergence(student, teacher, heads=2, relation="scaled")
    assert ours.item() == pytest.approx(reference(student, teacher, 2, "scaled"), rel=1e-12)


def test_cosine_is_the_papers_algorithm_but_for_its_mean() -> None:
    """Algorithm 1 as torch writes it: `batchmean` over sequences, heads and tokens at temperature 1."""
    student, teacher = states(3, 8, 8, 8), states(4, 8, 8, 8)
    total = torch.zeros((), dtype=torch.float64)
    for s, t in zip(student, teacher, strict=True):
        s, t = (F.normalize(x.reshape(B, T, 2, 4).transpose(1, 2), dim=-1) for x in (s, t))
        log_s = (s @ s.transpose(-2, -1)).reshape(-1, T).softmax(-1).log()
        total += F.kl_div(log_s, (t @ t.transpose(-2, -1)).reshape(-1, T).softmax(-1), reduction="batchmean")
    torch.testing.assert_close(relation_divergence(student, teacher, heads=2, relation="cosine"), total)


def test_equal_states_have_no_divergence() -> None:
    student, teacher = states(1, 8, 8, 8), states(2, 8, 8, 8)
    assert relation_divergence(student, student, heads=2, relation="scaled").item() == pytest.approx(
        0, abs=1e-12
    )
    for each in student:
        each.requires_grad_()
    relation_divergence(student, teacher, heads=2, relation="scaled").backward()
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in student)


def test_the_gradient_is_that_of_finite_differences() -> None:
    teacher = states(2, 4, 4, 4)
    student = [each.requires_grad_() for each in states(1, 4, 4, 4)]

    def loss(*ours: Tensor) -> Tensor:
        return relation_divergence(ours, teacher, heads=2, relation="scaled")

    assert torch.autograd.gradcheck(loss, student)


def test_relations_are_invariant_to_rotation() -> None:
    """A relation knows no basis: an orthogonal change of a head's features costs nothing."""
    teacher = states(1, 8, 8, 8)
    turn, _ = torch.linalg.qr(
        torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    turned = [each @ turn for each in teacher]
    assert relation_divergence(turned, teacher, heads=1, relation="scaled").item() == pytest.approx(
        0, abs=1e-12
    )


def test_bfloat16_states_under_autocast_are_compared_in_float32() -> None:
    student, teacher = states(1, 8, 8, 8), states(2, 8, 8, 8)
    half = [[each.bfloat16() for each in model] for model in (student, teacher)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = relation_divergence(half[0], half[1], heads=2, relation="scaled")
    assert ours.dtype == torch.float32
    exact = reference([each.double() for each in half[0]], [each.double() for each in half[1]], 2, "scaled")
    assert ours.item() == pytest.approx(exact, rel=1e-5)


def test_large_states_stay_finite() -> None:
    student, teacher = ([1e3 * each.float() for each in states(seed, 8, 8, 8)] for seed in (1, 2))
    assert relation_divergence(student, teacher, heads=2, relation="scaled").isfinite()
