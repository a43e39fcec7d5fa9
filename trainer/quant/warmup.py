"""Lambda, the share of quantisation that every layer of a model applies, and its warmup. Used by `stages`."""

from __future__ import annotations

import math

from torch import nn

from trainer.config import LambdaWarmupConfig
from trainer.quant.shared import SharedScalar


class Lambda(nn.Module):
    """0: full precision; 1: ternary weights and int8 activations; between them a blend.

    One number for weights and one for activations: a warmup may leave either of them at 1.
    """

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.weights, self.activations = SharedScalar(value), SharedScalar(value)

    def set(self, value: float, *, weights: bool = True, activations: bool = True) -> None:
        """Changes either or both for all layers that share it, in place."""
        if weights:
            self.weights.set(value)
        if activations:
            self.activations.set(value)

    @property
    def complete(self) -> bool:
        """Whether the layers compute as they will be deployed. Reads the device: not for use in a step."""
        return bool(self.weights.value == 1) and bool(self.activations.value == 1)


def lambda_at(config: LambdaWarmupConfig, step: int) -> float:
    """Lambda during the zero-based `step`: 0 in the first one, 1 from step `warmup_steps` on."""
    if not config.enabled or step >= config.warmup_steps:
        return 1.0
    share = step / config.warmup_steps
    return share if config.schedule == "linear" else (1 - math.cos(math.pi * share)) / 2
