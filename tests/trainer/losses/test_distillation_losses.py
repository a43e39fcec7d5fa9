"""Stage 3's losses on predictions, against loops over plain numbers and against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from trainer.losses.distillation import tempered_divergence


def random_logits(seed: int) -> torch.Tensor:
    return 3 * torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 5.0])
def test_the_divergence_is_eq_8_of_eq_9(temperature: float) -> None:
    student, teacher = random_logits(1), random_logits(2)

    def softened(logits: torch.Tensor) -> list[float]:
        weights = [math.exp(float(z) / temperature) for z in logits]
        return [weight / sum(weights) for weight in weights]

    total = 0.0
    for b in range(2):
        for t in range(3):  # the last position predicts nothing that is known
            p, q = softened(student[b, t]), softened(teacher[b, t])
            total += sum(x * math.log(x / y) for x, y in zip(q, p, strict=True)) / 6
    ours = tempered_divergence(student, teacher, temperature=temperature)
    assert ours.item() == pytest.approx(total, rel=1e-12)


def test_the_divergence_agrees_with_torch() -> None:
    student, teacher = random_logits(1).float(), random_logits(2).float()
    expected = F.kl_div(
        student[:, :-1].flatten(0, 1).log_softmax(-1),
        teacher[:, :-1].flatten(0, 1).log_softmax(-1),
        log_target=True,
        reduction="batchmean",
    )
    torch.testing.assert_close(tempered_divergence(student, teacher, temperature=1.0), expected)
    assert tempered_divergence(student, student, temperature=1.0).item() == pytest.approx(0, abs=1e-6)


def test_bfloat16_logits_are_compared_in_float32() -> None:
    student, teacher = random_logits(1).bfloat16(), random_logits(2).bfloat16()
    ours = tempered_divergence(student, teacher, temperature=5.0)
    expected = F.kl_div(
        (student[:, :-1].double() / 5).log_softmax(-1).flatten(0, 1),
        (teacher[:, :-1].double() / 5).log_softmax(-1).flatten(0, 1),
        log_target=True,
        reduction="batchmean",
    )
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)
