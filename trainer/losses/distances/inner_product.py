"""Minus the inner product of the unit vectors: similarity, maximised.

    L = mean over tokens of -(s/‖s‖)·(t/‖t‖)        between -1 and 1

The research notebook's `inner_product`. It is `cosine` less 1 and has its gradient, to rounding: choose it to
repeat a run of the notebook, and `cosine` otherwise. Without the norms it would have no lower bound.

Shapes: B sequences, T tokens, H hidden size; `h_BTH`.
"""

from __future__ import annotations

from torch import Tensor

from trainer.losses.distances.unit import unit


def inner_product(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """0-d, float32."""
    return -(unit(student_BTH) * unit(teacher_BTH)).sum(dim=-1).mean()
