"""Inputs of a layer in 8 bits, blended in by lambda. Used by `ternary`; `stages.subln` says who shares one.

Shapes: T tokens in any leading arrangement, I input features; `x_TI`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from trainer.quant.shared import SharedScalar

EPS = 1e-5  # the floor under a scale, as in the paper: a row of zeros must not divide by 0
INT8_MAX = 127.0


def int8_activation(x_TI: Tensor) -> Tensor:
    """Per-token absmax quantisation to 255 levels, returned in the unit and dtype of the input
    (BitNet b1.58, arXiv:2402.17764)."""
    scale = x_TI.abs().amax(dim=-1, keepdim=True).clamp_(min=EPS).div_(INT8_MAX)
    return (x_TI / scale).round_().mul_(scale)


class _BlendActivation(torch.autograd.Function):
    """lerp(x, int8(x), lambda) in float32; the gradient passes straight through. No lambda is 1."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, strength: Tensor | None) -> Tensor:
        x32_TI = x_TI.float()
        blend_TI = int8_activation(x32_TI)
        if strength is not None:
            blend_TI = torch.lerp(x32_TI, blend_TI, strength)
        return blend_TI.to(x_TI.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class Int8Input:
    """The quantiser of one input, which it remembers until all its readers had it.

    The projections to queries, keys and values read one tensor; so do the gate and the way up of an MLP. What
    is made once for all of them is also kept once for the backward pass.

    Args:
        strength: lambda of activations.
        readers: layers that are called with the same tensor, one after the other.
    """

    def __init__(self, strength: SharedScalar, readers: int = 1) -> None:
        self._strength, self._readers = strength, readers
        self._kept: tuple[Tensor, int, Tensor] | None = None
        self._left = 0

    def __call__(self, x_TI: Tensor) -> Tensor:
        """[..., I] → [..., I], in the input's dtype."""
        if self._strength.known_to_be(0):
            return x_TI
        # A compiler sees by itself that two results are the same, and state would break its graph.
        if self._readers == 1 or torch.compiler.is_compiling():
            return self._blend(x_TI)
        if self._kept is None or self._kept[0] is not x_TI or self._kept[1] != x_TI._version:
            self._kept, self._left = (x_TI, x_TI._version, self._blend(x_TI)), self._readers
        self._left -= 1
        quantised = self._kept[2]
        if not self._left:
            self._kept = None
        return quantised

    def _blend(self, x_TI: Tensor) -> Tensor:
        strength = None if self._strength.known_to_be(1) else self._strength.value
        blend = _BlendActivation.apply(x_TI, strength)  # type: ignore[no-untyped-call] # torch has no annotation for it
        return cast(Tensor, blend)
