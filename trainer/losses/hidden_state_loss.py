"""The distances of all layers in one loss. Used by `stages.layerwise`.

Shapes: B sequences, T tokens, H hidden size, L layers; `h_BTH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.losses.distances import Distance


@dataclass(frozen=True, kw_only=True)
class HiddenLoss:
    """The weighted sum, 0-d, and the distances that it is made of, `by_layer` [L], without a graph."""

    total: Tensor
    by_layer: Tensor


def hidden_loss(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    *,
    distances: Sequence[Distance],
    weights: Sequence[float],
) -> HiddenLoss:
    """The sum over layers of weight times distance. Both sides are L outputs of layers [B, T, H], paired; the
    embeddings are not among them."""
    each = [far(s, t) for far, s, t in zip(distances, student, teacher, strict=True)]
    total = torch.stack([w * d for w, d in zip(weights, each, strict=True)]).sum()
    return HiddenLoss(total=total, by_layer=torch.stack([distance.detach() for distance in each]))
