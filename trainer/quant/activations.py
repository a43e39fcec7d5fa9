"""Quantisation of a layer's input to 8 bits, blended in by lambda.

Used by `ternary`; `models.subln` decides which layers share one quantiser.

Shapes: T tokens in any leading dimensions, I input features; `x_TI`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from trainer.distributed.tensor_group import TensorGroup
from trainer.quant.warmup import SharedScalar

EPS = 1e-5  # lower bound of a scale, as in the paper: a row of zeros must not divide by 0
INT8_MAX = 127.0


def int8_activation(x_TI: Tensor, group: TensorGroup | None = None) -> Tensor:
    """Quantise each token to 255 levels by its absolute maximum (BitNet b1.58, arXiv:2402.17764).

    Args:
        x_TI: floating point, [..., I].
        group: the processes that have the other features of the tokens; None: I are all of them.

    Returns:
        The dequantised values, [..., I], in the dtype of the input.
    """
    # Not vector_norm(inf) or aminmax: all of this takes 0.8 ms for 2,048 x 688 on two cores, they alone 3 ms.
    largest = x_TI.abs().amax(dim=-1, keepdim=True)
    if group is not None:
        largest = group.all_max(largest)
    scale = largest.clamp_(min=EPS).div_(INT8_MAX)
    return (x_TI / scale).round_().mul_(scale)


def without_alias(x: Tensor) -> Tensor:
    """Return the result of an autograd function's forward pass as a tensor of its own.

    Where the result has two names in a compiled forward pass, by `.to` of the dtype that it has or by an
    operation in place, torch 2.11 loses its gradient (pytorch#180642): the layers before it go untrained, and
    no loss tells. Eager code makes no copy.
    """
    return x.clone() if torch.compiler.is_compiling() else x


class _BlendActivation(torch.autograd.Function):
    """lerp(x, int8(x), lambda) in float32 with a straight-through gradient. A lambda of None stands for 1."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, lambda_: Tensor | None, group: TensorGroup | None) -> Tensor:
        x32_TI = x_TI.float()
        blend_TI = int8_activation(x32_TI, group)
        if lambda_ is not None:
            blend_TI = torch.lerp(x32_TI, blend_TI, lambda_)
        return without_alias(blend_TI.to(x_TI.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None, None


class Int8Input:
    """Quantiser of one input, which caches the result until each of its readers has taken it.

    The query, key and value projections read the same tensor, and so do an MLP's gate and up projections.
    Sharing the result also stores it only once for the backward pass.

    Args:
        readers: number of layers that are called with the same tensor, one after the other.
    """

    def __init__(self, lambda_: SharedScalar, readers: int = 1) -> None:
        self._lambda, self._readers = lambda_, readers
        self.group: TensorGroup | None = None  # of the processes that have the other features
        self._cached: tuple[Tensor, int, Tensor] | None = None
        self._readers_left = 0

    def __call__(self, x_TI: Tensor) -> Tensor:
        """Quantise [..., I] to [..., I], in the input's dtype."""
        if self._lambda.known_to_be(0):
            return x_TI
        # A compiler eliminates the common subexpression itself, and state would break its graph.
        if self._readers == 1 or torch.compiler.is_compiling():
            return self._blend(x_TI)
        if self._cached is None or self._cached[0] is not x_TI or self._cached[1] != x_TI._version:
            self._cached, self._readers_left = (x_TI, x_TI._version, self._blend(x_TI)), self._readers
        self._readers_left -= 1
        quantised = self._cached[2]
        if not self._readers_left:
            self._cached = None
        return quantised

    def _blend(self, x_TI: Tensor) -> Tensor:
        lambda_ = None if self._lambda.known_to_be(1) else self._lambda.value
        blend = _BlendActivation.apply(x_TI, lambda_, self.group)  # type: ignore[no-untyped-call] # torch has no annotation for it
        return cast(Tensor, blend)
