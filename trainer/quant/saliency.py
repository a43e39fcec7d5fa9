"""The saliency curriculum of Stage 1.9: the most important weight columns become ternary last.

The saliency of a column is the exponential moving average of its L-infinity norm. The top fraction k of a
layer's columns stays in full precision, and k is annealed over the stage. Used by `stages.layerwise`; the
layers (`quant.ternary`) read the mask.

k is a tensor, and the mask compares ranks with it: a Python number in a top-k would compile a new graph each
time k changes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainer.config import SaliencyConfig
from trainer.distributed.tensors import full_tensor
from trainer.quant.warmup import SharedScalar


class Share(SharedScalar):
    """k, the fraction of columns that stay in full precision."""


class ColumnSaliency(nn.Module):
    """Saliency of the columns of one weight matrix [O, I].

    Args:
        weight_OI: the initial weights, which give the first norms.
        share: k, shared by all layers.
        ema_decay: decay of the moving average of the norms.
    """

    norms: Tensor
    ranks: Tensor

    def __init__(self, weight_OI: Tensor, share: Share, ema_decay: float) -> None:
        super().__init__()
        self.share, self.ema_decay = share, ema_decay
        self.register_buffer("norms", _column_norms(weight_OI), persistent=False)
        self.register_buffer("ranks", _descending_rank(self.norms), persistent=False)

    @torch.no_grad()
    def observe(self, weight_OI: Tensor) -> None:
        """Update the moving average with the norms of the current weights [O, I], and rank the columns."""
        self.norms.lerp_(_column_norms(weight_OI), 1 - self.ema_decay)
        self.ranks.copy_(_descending_rank(self.norms))

    def mask(self) -> Tensor:
        """Return booleans [I], True for the columns in full precision: the first round(k·I) ranks."""
        return self.ranks < (self.share.value * self.ranks.numel()).round()


def k_at(config: SaliencyConfig, step: int, steps: int) -> float:
    """Return k at the zero-based `step` of a stage of `steps`: `initial_k` first, `final_k` last."""
    share = max(step - config.warmup_steps, 0) / max(steps - 1 - config.warmup_steps, 1)
    if config.schedule_type == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return config.initial_k + (config.final_k - config.initial_k) * share


def _column_norms(weight_OI: Tensor) -> Tensor:
    return full_tensor(weight_OI.detach()).float().abs().amax(dim=0)


def _descending_rank(norm_I: Tensor) -> Tensor:
    """Return ranks [I], 0 for the largest; ties keep their order, so that the mask is deterministic."""
    return norm_I.argsort(descending=True, stable=True).argsort()
