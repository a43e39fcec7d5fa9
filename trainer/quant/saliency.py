"""The saliency curriculum of Stage 1.9: the most important weight columns become ternary last.

The saliency of a column is the exponential moving average of its L-infinity norm. The top fraction k of a
layer's columns stays in full precision, and k is annealed over the stage. Used by `stages.layerwise`; the
layers (`quant.ternary`) read the mask.

k is a tensor, and the mask compares ranks with it: a Python number in a top-k would compile a new graph each
time k changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.config import SaliencyConfig
from trainer.distributed.tensors import full_tensor
from trainer.quant.warmup import SharedScalar, ramp


class Share(SharedScalar):
    """k, the fraction of columns that stay in full precision, and the layers that share it.

    The masks of all layers of a width are made at once when k is set: made by each layer in each forward
    pass, they were three operations on a few numbers for every matrix of the model.
    """

    def __init__(self, value: float) -> None:
        super().__init__(value)
        self._layers: dict[int, list[ColumnSaliency]] = {}

    def add(self, layer: ColumnSaliency) -> None:
        """Have the mask of a layer follow k."""
        self._layers.setdefault(layer.ranks.numel(), []).append(layer)

    def set(self, value: float) -> None:
        """Set k in place, and the mask of each layer."""
        super().set(value)
        for width, layers in self._layers.items():
            masks_LI = _masks(torch.stack([each.ranks for each in layers]), self.value * width)
            torch._foreach_copy_([each.mask for each in layers], list(masks_LI))


class ColumnSaliency(nn.Module):
    """Saliency of the columns of one weight matrix [O, I].

    Attributes:
        mask: booleans [I], True for the columns in full precision: the first round(k·I) ranks, as of the time
            when k was set.

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
        self.register_buffer("ranks", _descending_ranks(self.norms), persistent=False)
        # No buffer: a checkpoint has what it is made of.
        self.mask = _masks(self.ranks, share.value * self.ranks.numel())
        share.add(self)


@torch.no_grad()
def observe(layers: Sequence[ColumnSaliency], weights: Sequence[Tensor]) -> None:
    """Update the moving averages with the norms of the current weights [O, I], and rank the columns.

    The masks follow when k is set next.
    """
    for layer, weight_OI in zip(layers, weights, strict=True):
        layer.norms.lerp_(_column_norms(weight_OI), 1 - layer.ema_decay)
    for width in dict.fromkeys(layer.ranks.numel() for layer in layers):
        same = [layer for layer in layers if layer.ranks.numel() == width]
        ranks_LI = _descending_ranks(torch.stack([layer.norms for layer in same]))
        torch._foreach_copy_([layer.ranks for layer in same], list(ranks_LI))


def k_at(config: SaliencyConfig, step: int, steps: int) -> float:
    """Return k at the zero-based `step` of a stage of `steps`: `initial_k` first, `final_k` last."""
    share = max(step - config.warmup_steps, 0) / max(steps - 1 - config.warmup_steps, 1)
    return ramp(config.schedule_type, config.initial_k, config.final_k, share)


def _masks(ranks: Tensor, count: Tensor) -> Tensor:
    return ranks < count.round()


def _column_norms(weight_OI: Tensor) -> Tensor:
    return full_tensor(weight_OI.detach()).float().abs().amax(dim=0)


def _descending_ranks(norms: Tensor) -> Tensor:
    """Return ranks [..., I], 0 for the largest; ties keep their order, so that the mask is deterministic."""
    return norms.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
