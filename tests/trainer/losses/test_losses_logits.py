"""Losses of predictions against torch's own and against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from trainer.losses.logits import next_token_loss, teacher_divergence


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
