"""Losses against torch's own and against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from trainer.losses.combined import combined_loss
from trainer.losses.hidden import DISTANCES, cosine, hidden_loss, layer_weights, mse, mse_normalized
from trainer.losses.logits import next_token_loss, teacher_divergence


def test_mse_normalized_is_the_squared_distance_of_unit_vectors() -> None:
    student, teacher = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 0.0]]])
    assert mse_normalized(student, teacher).item() == pytest.approx(0.4**2 + 0.8**2)


def test_mse_normalized_ignores_the_scale_and_mse_does_not() -> None:
    h = torch.randn(2, 3, 8)
    assert mse_normalized(h, 7 * h).item() == pytest.approx(0, abs=1e-10)
    assert mse(h, 7 * h).item() == pytest.approx(36 * h.square().mean().item(), rel=1e-5)


def test_cosine_is_half_of_mse_normalized() -> None:
    a, b = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    torch.testing.assert_close(2 * cosine(a, b), mse_normalized(a, b))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("uniform", [1 / 3] * 3),
        ("progressive", [1 / 6, 2 / 6, 3 / 6]),
        ("exponential", [2 / 14, 4 / 14, 8 / 14]),
    ],
)
def test_layer_weights(kind: str, expected: list[float]) -> None:
    assert layer_weights(kind, 3) == pytest.approx(expected)


def test_exponential_weights_of_many_layers_stay_finite() -> None:
    assert sum(layer_weights("exponential", 2000)) == pytest.approx(1)


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_hidden_loss_is_the_weighted_sum_over_layers(distance: str) -> None:
    ours, theirs = [torch.randn(2, 3, 8) for _ in range(2)], [torch.randn(2, 3, 8) for _ in range(2)]
    expected = 0.25 * DISTANCES[distance](ours[0], theirs[0]) + 0.75 * DISTANCES[distance](ours[1], theirs[1])
    torch.testing.assert_close(hidden_loss(ours, theirs, distance=distance, weights=[0.25, 0.75]), expected)


def test_next_token_loss_of_uniform_predictions_is_the_log_of_the_vocabulary() -> None:
    loss = next_token_loss(torch.zeros(2, 5, 11), torch.randint(11, (2, 5)))
    assert loss.item() == pytest.approx(math.log(11))


def test_next_token_loss_predicts_the_following_token() -> None:
    ids = torch.tensor([[1, 2, 0, 2]])
    logits = torch.full((1, 4, 3), -30.0)
    logits[0, torch.arange(3), ids[0, 1:]] = 30.0
    assert next_token_loss(logits, ids).item() == pytest.approx(0, abs=1e-6)


def test_teacher_divergence_agrees_with_torch() -> None:
    student, teacher = torch.randn(2, 5, 7), torch.randn(2, 5, 7)
    expected = F.kl_div(
        student[:, :-1].flatten(0, 1).log_softmax(-1),
        teacher[:, :-1].flatten(0, 1).log_softmax(-1),
        log_target=True,
        reduction="batchmean",
    )
    torch.testing.assert_close(teacher_divergence(student, teacher), expected)
    assert teacher_divergence(student, student).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 1.0), (1.0, 5.0), (0.25, 2.0)])
def test_the_combined_loss(weight: float, expected: float) -> None:
    loss = combined_loss(
        distill=torch.tensor(1.0), ce=torch.tensor(4.0), kl=torch.tensor(6.0), lm_loss_weight=weight
    )
    assert loss.item() == pytest.approx(expected)
