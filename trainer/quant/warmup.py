"""Lambda, the share of quantisation that every layer of a model applies, and its warmup. Used by `stages`.

Lambda is a tensor and not a Python float: a float would be baked into a compiled graph, and each new value
would compile it again. It is one object and not a global: two models in one process have one each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer.config import LambdaWarmupConfig


class Lambda(nn.Module):
    """A 0-d float32 tensor, shared by reference: a layer holds the module, so it survives `.to(device)`."""

    value: Tensor

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        # Not in the state dict: it belongs to the step of a run, not to the weights.
        self.register_buffer("value", torch.tensor(value, dtype=torch.float32), persistent=False)

    def set(self, value: float) -> None:
        """Changes it for all layers that share it, in place."""
        self.value.fill_(value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Lambda:
        super()._apply(fn, recurse)
        self.value = self.value.float()  # `.to(bfloat16)` is meant for weights; lambda would lose its steps
        return self


def lambda_at(config: LambdaWarmupConfig, step: int) -> float:
    """Lambda during the zero-based `step`: 0 in the first one, 1 from step `warmup_steps` on."""
    if not config.enabled or step >= config.warmup_steps:
        return 1.0
    share = step / config.warmup_steps
    return share if config.schedule == "linear" else (1 - math.cos(math.pi * share)) / 2
