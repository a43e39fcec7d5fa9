"""Stage 1.9's loss: distances of hidden states over all layers, weighted against the next-token losses.

Called by `stages.layerwise`. The distances are in `hidden_distances`, the next-token losses in `next_token`.

Shapes: B sequences, T tokens, H hidden size, L layers; `h_BTH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sweeps.text.counted import counted
from trainer.config import DistillScheduleConfig
from trainer.losses.hidden_distances import Distance
from trainer.quant.warmup import ramp


@dataclass(frozen=True, kw_only=True)
class HiddenLoss:
    """The distances of all layers.

    Args:
        total: their weighted sum, 0-d.
        by_layer: each without its weight, [L], without a graph.
    """

    total: Tensor
    by_layer: Tensor


def hidden_loss(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    *,
    distances: Sequence[Distance],
    weights: Sequence[float | Tensor],
) -> HiddenLoss:
    """Sum weight times distance over layers.

    Args:
        student: L outputs of layers [B, T, H]; the embeddings are not among them.
        teacher: the outputs that they are compared with, in the same order.
    """
    each = [distance(s, t) for distance, s, t in zip(distances, student, teacher, strict=True)]
    total = torch.stack([w * d for w, d in zip(weights, each, strict=True)]).sum()
    return HiddenLoss(total=total, by_layer=torch.stack([distance.detach() for distance in each]))


def layer_weights(kind: str | Sequence[float], layers: int) -> list[float]:
    """Return the weights of layers 1..L, summing to 1.

    Later layers count more by default, because distillation helps most there (BitDistill, arXiv:2510.13998
    §3.3, for attention relations; the research notebook took it over for hidden states).

    Args:
        kind: `uniform`; `progressive` (1, 2, …, L); `exponential` (2, 4, …, 2^L); or L numbers, of which
            only the ratios count.
        layers: L.

    Raises:
        ValueError: there are not L numbers.
    """
    if not isinstance(kind, str):
        raw = [float(weight) for weight in kind]
        if len(raw) != layers:
            raise ValueError(f"{counted(len(raw), 'weight')} for {counted(layers, 'layer')}")
    else:
        raw = {
            "uniform": [1.0] * layers,
            "progressive": [float(layer) for layer in range(1, layers + 1)],
            "exponential": [2.0 ** (layer - layers) for layer in range(1, layers + 1)],
        }[kind]
    return [weight / sum(raw) for weight in raw]


def distill_weight_at(config: DistillScheduleConfig, step: int, steps: int) -> float:
    """Return w at the zero-based `step` of a stage of `steps`.

    w goes from `initial` in the first step to `final` in the last, with x the completed share of the stage:

        linear   w = initial + (final - initial)·x
        cosine   w = final + (initial - final)·(1 + cos πx)/2

    A cosine from 0.5 to 0 is at 0.29 after 45 % of the stage, which is what the research notebook logged.
    """
    if config.type == "constant":
        return config.initial
    return ramp(config.type, config.initial, config.final, step / max(steps - 1, 1))


def combined_loss(
    *, distill: Tensor, predictions: Tensor, lm_loss_weight: float | Tensor, distill_weight: Tensor
) -> Tensor:
    """Return (1-a)·w·distill + a·predictions/2.

    Args:
        distill: weighted distances of hidden states, 0-d.
        predictions: CE + KL, 0-d.
        lm_loss_weight: a, the same in every step.
        distill_weight: w, 0-d, of this step (`distill_weight_at`).
    """
    return (1 - lm_loss_weight) * (distill_weight * distill) + lm_loss_weight * 0.5 * predictions
