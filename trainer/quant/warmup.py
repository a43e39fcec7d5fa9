"""Lambda, the degree of quantisation in all layers of a model, and its warmup. Used by `stages`."""

from __future__ import annotations

import math

from torch import nn

from trainer.config import LambdaWarmupConfig
from trainer.quant.shared import SharedScalar


class Lambda(nn.Module):
    """Lambda of weights and lambda of activations; a warmup may leave either of them at 1.

    0 is full precision, 1 is ternary weights and int8 activations, and values between them interpolate.
    """

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.weights, self.activations = SharedScalar(value), SharedScalar(value)

    def set(self, value: float, *, weights: bool = True, activations: bool = True) -> None:
        """Set either or both in place, for all layers that share them."""
        if weights:
            self.weights.set(value)
        if activations:
            self.activations.set(value)

    @property
    def complete(self) -> bool:
        """Return whether both are 1. This synchronises with the device: do not call it in a training step."""
        return bool(self.weights.value == 1) and bool(self.activations.value == 1)


def lambda_at(config: LambdaWarmupConfig, step: int) -> float:
    """Return lambda at the zero-based `step`: `start` in the first one, 1 from step `warmup_steps` on."""
    if not config.enabled or step >= config.warmup_steps:
        return 1.0
    share = step / config.warmup_steps
    if config.schedule == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return config.start + (1 - config.start) * share
