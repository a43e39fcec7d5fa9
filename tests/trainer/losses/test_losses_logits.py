"""Losses of predictions against torch's own and against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.losses.next_token import next_token_loss


def test_uniform_predictions_cost_log_of_vocabulary() -> None:
    loss = next_token_loss(torch.zeros(2, 5, 11), torch.randint(11, (2, 5)))
    assert loss.item() == pytest.approx(math.log(11))


def test_next_token_loss_predicts_the_following_token() -> None:
    ids = torch.tensor([[1, 2, 0, 2]])
    logits = torch.full((1, 4, 3), -30.0)
    logits[0, torch.arange(3), ids[0, 1:]] = 30.0
    assert next_token_loss(logits, ids).item() == pytest.approx(0, abs=1e-6)
