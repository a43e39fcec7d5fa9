"""Mean squared difference of the hidden states: their scale counts.

    L = mean over tokens and features of (s - t)²

FitNets' hint loss without its regressor (arXiv:1412.6550): student and teacher are equally wide.

Shapes: B sequences, T tokens, H hidden size; `h_BTH`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def mse(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """0-d, float32."""
    return F.mse_loss(student_BTH.float(), teacher_BTH.float())
