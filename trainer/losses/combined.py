"""Stage 1.9's loss: hidden states, true tokens and the teacher's predictions in one sum."""

from __future__ import annotations

from torch import Tensor


def combined_loss(*, distill: Tensor, ce: Tensor, kl: Tensor, lm_loss_weight: float) -> Tensor:
    """(1-a)·distill + a·(CE + KL)/2, with a the `lm_loss_weight`."""
    return (1 - lm_loss_weight) * distill + lm_loss_weight * 0.5 * (ce + kl)
