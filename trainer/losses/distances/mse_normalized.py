"""Squared distance of the unit vectors: the hidden-state term of OneBit.

    L = mean over tokens of ‖ s/‖s‖ - t/‖t‖ ‖²        between 0 and 4

The term that OneBit's knowledge transfer adds to the cross-entropy of the logits (arXiv:2402.11295), there
summed over layers and tokens, here a mean over tokens, so that it does not grow with the batch. The scale of
a layer's output does not count: the norm that follows it takes that away.

Shapes: B sequences, T tokens, H hidden size; `h_BTH`.
"""

from __future__ import annotations

from torch import Tensor

from trainer.losses.distances.unit import unit


def mse_normalized(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """0-d, float32."""
    return (unit(student_BTH) - unit(teacher_BTH)).square().sum(dim=-1).mean()
