"""One minus the cosine of the angle between the hidden states.

    L = mean over tokens of 1 - s·t / (‖s‖ ‖t‖)        between 0 and 2

Half of `mse_normalized`, since ‖a - b‖² = 2 - 2·a·b for unit vectors: it differs from it only in how much it
weighs beside the other parts of the loss. DistilBERT's L_cos (arXiv:1910.01108).

Shapes: B sequences, T tokens, H hidden size; `h_BTH`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from trainer.losses.distances.unit import EPS


def cosine(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """0-d, float32."""
    return (1 - F.cosine_similarity(student_BTH.float(), teacher_BTH.float(), dim=-1, eps=EPS)).mean()
