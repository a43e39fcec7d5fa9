"""Scalars that all layers of a model share: lambda, the degree of quantisation, and its warmup.

`saliency.Share` and the weight of Stage 1.9's distillation are of the same kind. Each is a tensor because a
Python float would be a constant of a compiled graph, compiled anew for each value. It is an object and not a
global because two models in one process need one each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.config import LambdaWarmupConfig
from trainer.devices.lazy_tensor import is_lazy, set_value


class SharedScalar(nn.Module):
    """A 0-d float32 tensor. Layers hold the module, so that they still share it after `.to(device)`."""

    value: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        # Not in the state dict: it belongs to the step of a run, not to the weights.
        self.register_buffer("value", torch.tensor(value, dtype=torch.float32), persistent=False)
        self.last_set = value
        """The value, known without a device synchronisation."""

    def set(self, value: float) -> None:
        """Set the value in place, for all layers that share it."""
        set_value(self.value, value)
        self.last_set = value

    def known_to_be(self, value: float) -> bool:
        """Return whether eager code may rely on the scalar being `value`, without a device synchronisation.

        Always False while torch.compile or XLA traces a graph: the answer would become a constant of the
        graph, and a new answer would recompile it.
        """
        if torch.compiler.is_compiling() or is_lazy(self.value):
            return False
        return self.last_set == value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SharedScalar:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # torch has no annotation here
        self.value = self.value.float()  # `.to(bfloat16)` is meant for weights; a ramp would lose precision
        return self


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
    return ramp(config.schedule, config.start, 1.0, step / config.warmup_steps)


def ramp(kind: Literal["linear", "cosine"], first: float, last: float, share: float) -> float:
    """Return the value after a share, 0 to 1, of the way from the first to the last."""
    if kind == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return first + (last - first) * share
