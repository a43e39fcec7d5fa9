"""Distances between a student's and its teacher's hidden states, layer by layer. Used by `stages.layerwise`.

Shapes: B sequences, T tokens, H hidden size, L layers; `h_BTH`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-8


def mse_normalized(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """Squared distance of the unit vectors, mean over tokens; between 0 and 4 (OneBit, arXiv:2402.11295)."""
    return (_unit(student_BTH) - _unit(teacher_BTH)).square().sum(dim=-1).mean()


def cosine(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """One minus the cosine of the angle, mean over tokens; half of `mse_normalized`."""
    return (1 - F.cosine_similarity(student_BTH.float(), teacher_BTH.float(), dim=-1, eps=EPS)).mean()


def mse(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """Mean squared difference: the scale counts."""
    return F.mse_loss(student_BTH.float(), teacher_BTH.float())


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse_normalized": mse_normalized,
    "cosine": cosine,
    "mse": mse,
}


def layer_weights(kind: str, layers: int) -> list[float]:
    """Weights of layers 1..L, summing to 1: uniform, progressive (1, 2, …, L) or exponential (2, 4, …, 2^L).

    Later layers count more because that is where distillation helps most (BitDistill, arXiv:2510.13998).
    """
    raw = {
        "uniform": [1.0] * layers,
        "progressive": [float(layer) for layer in range(1, layers + 1)],
        "exponential": [2.0 ** (layer - layers) for layer in range(1, layers + 1)],
    }[kind]
    return [weight / sum(raw) for weight in raw]


def hidden_loss(
    student: Sequence[Tensor], teacher: Sequence[Tensor], *, distance: str, weights: Sequence[float]
) -> Tensor:
    """Weighted sum of the layers' distances. Takes the L outputs of the layers, without the embeddings."""
    measure = DISTANCES[distance]
    per_layer = [measure(s, t) for s, t in zip(student, teacher, strict=True)]
    return torch.stack([w * d for w, d in zip(weights, per_layer, strict=True)]).sum()


def _unit(h_BTH: Tensor) -> Tensor:
    return F.normalize(h_BTH.float(), dim=-1, eps=EPS)
