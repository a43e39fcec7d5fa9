"""Vectors of length 1. Used by the distances that ignore how long a hidden state is."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

EPS = 1e-8  # under the norm: a state of zeros stays one


def unit(h_BTH: Tensor) -> Tensor:
    """[B, T, H] → [B, T, H] in float32, each token's vector over its Euclidean norm."""
    return F.normalize(h_BTH.float(), dim=-1, eps=EPS)
