"""Distances between hidden states against their definitions, written out, and against each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainer.losses.hidden_distances import WITHOUT_HEAD, cosine, inner_product, mse, mse_normalized

REFERENCES = {
    "mse_normalized": lambda s, t: sum((a - b) ** 2 for a, b in zip(_unit(s), _unit(t), strict=True)),
    "cosine": lambda s, t: 1 - sum(a * b for a, b in zip(_unit(s), _unit(t), strict=True)),
    "inner_product": lambda s, t: -sum(a * b for a, b in zip(_unit(s), _unit(t), strict=True)),
    "mse": lambda s, t: sum((a - b) ** 2 for a, b in zip(s, t, strict=True)) / len(s),
}


def _unit(vector: list[float]) -> list[float]:
    length = sum(x * x for x in vector) ** 0.5
    return [x / length for x in vector]


def pair(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 8).to(dtype), torch.randn(2, 3, 8).to(dtype)


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        ("mse_normalized", 0.4**2 + 0.8**2),
        ("cosine", 0.4),
        ("inner_product", -0.6),
        ("mse", (2**2 + 4**2) / 2),
    ],
)
def test_of_two_vectors_by_hand(distance: str, expected: float) -> None:
    student, teacher = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 0.0]]])
    assert WITHOUT_HEAD[distance](student, teacher).item() == pytest.approx(expected)


@pytest.mark.parametrize("distance", WITHOUT_HEAD)
def test_equals_the_mean_of_its_definition(distance: str) -> None:
    student, teacher = pair()
    tokens = zip(student.flatten(0, 1).tolist(), teacher.flatten(0, 1).tolist(), strict=True)
    expected = sum(REFERENCES[distance](s, t) for s, t in tokens) / 6
    assert WITHOUT_HEAD[distance](student, teacher).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("distance", WITHOUT_HEAD)
def test_bfloat16_distances_are_computed_in_float32(distance: str) -> None:
    student, teacher = pair(torch.bfloat16)
    measured = WITHOUT_HEAD[distance](student, teacher)
    assert measured.dtype == torch.float32
    assert torch.equal(measured, WITHOUT_HEAD[distance](student.float(), teacher.float()))


@pytest.mark.parametrize(
    ("distance", "counts"), [("mse_normalized", 0), ("cosine", 0), ("inner_product", -1)]
)
def test_the_angles_distances_ignore_the_scale(distance: str, counts: float) -> None:
    h, _ = pair()
    assert WITHOUT_HEAD[distance](h, 7 * h).item() == pytest.approx(counts, abs=1e-6)


def test_the_scale_counts_in_mse() -> None:
    h, _ = pair()
    assert mse(h, 7 * h).item() == pytest.approx(36 * h.square().mean().item(), rel=1e-5)


def test_cosine_distance_is_half_of_mse_normalized() -> None:
    a, b = pair()
    torch.testing.assert_close(2 * cosine(a, b), mse_normalized(a, b))
    torch.testing.assert_close(inner_product(a, b) + 1, cosine(a, b))


@pytest.mark.parametrize("distance", WITHOUT_HEAD)
def test_a_state_of_zeros_gives_finite_losses_and_gradients(distance: str) -> None:
    student = torch.zeros(1, 2, 4, requires_grad=True)
    loss = WITHOUT_HEAD[distance](student, torch.ones(1, 2, 4))
    loss.backward()
    assert loss.isfinite()
    assert student.grad is not None
    assert student.grad.isfinite().all()
