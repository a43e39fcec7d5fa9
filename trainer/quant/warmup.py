"""Lambda, the share of quantisation that every layer of a model applies, and its warmup. Used by `stages`."""

from __future__ import annotations

import math

from trainer.config import LambdaWarmupConfig
from trainer.quant.shared import SharedScalar


class Lambda(SharedScalar):
    """0: full precision; 1: ternary weights and int8 activations; between them a blend."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__(value)


def lambda_at(config: LambdaWarmupConfig, step: int) -> float:
    """Lambda during the zero-based `step`: 0 in the first one, 1 from step `warmup_steps` on."""
    if not config.enabled or step >= config.warmup_steps:
        return 1.0
    share = step / config.warmup_steps
    return share if config.schedule == "linear" else (1 - math.cos(math.pi * share)) / 2
