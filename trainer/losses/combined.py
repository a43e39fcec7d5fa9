"""Stage 1.9's loss: hidden states, true tokens and the teacher's predictions in one sum. Used by
`stages.layerwise`."""

from __future__ import annotations

from torch import Tensor


def combined_loss(
    *, distill: Tensor, predictions: Tensor, lm_loss_weight: float, distill_weight: Tensor
) -> Tensor:
    """(1-a)·w·distill + a·predictions/2.

    Args:
        predictions: CE + KL.
        lm_loss_weight: a, the same in every step.
        distill_weight: w, 0-d, of this step (`distill_schedule`).
    """
    return (1 - lm_loss_weight) * (distill_weight * distill) + lm_loss_weight * 0.5 * predictions
