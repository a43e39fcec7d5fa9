"""The ternary linear layer of BitNet b1.58 (arXiv:2402.17764), with a shared lambda. Built by `models.subln`.

Shapes: T tokens in any leading dimensions, I input features, O output features; `w_OI`, `x_TI`.

Lambda, between 0 and 1, interpolates weights and activations between their full-precision and their quantised
values. At 0 the layer computes exactly what `nn.Linear` computes; at 1 the weights that share a scale hold
three values. Salient columns of the weights stay in full precision at every lambda. `QuantConfig` decides
which weights share a scale, and whether activations are quantised at all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.config import QuantConfig
from trainer.distributed.tensor_group import TensorGroup
from trainer.quant.activations import Int8Input, without_alias
from trainer.quant.saliency import ColumnSaliency
from trainer.quant.warmup import Lambda, SharedScalar
from trainer.quant.weights import WeightScale, ternary_weight

_NUMBERED = re.compile(r"(?<=\d)\.")  # where the name of a numbered module ends


class _BlendWeight(torch.autograd.Function):
    """lerp(w, ternary(w), lambda) except in salient columns, with a straight-through gradient.

    A lambda of None stands for 1. The backward pass is the identity because `w + (q - w).detach()` rounds,
    and in bfloat16 leaves seven values where there should be three.
    """

    @staticmethod
    def forward(
        ctx: Any,
        w_OI: Tensor,
        lambda_: Tensor | None,
        salient_I: Tensor | None,
        weight_scale: WeightScale,
        group_size: int | None,
    ) -> Tensor:
        w32_OI = w_OI.float()
        blend_OI = ternary_weight(w32_OI, weight_scale, group_size)
        if lambda_ is not None:
            blend_OI = torch.lerp(w32_OI, blend_OI, lambda_)
        if salient_I is not None:
            blend_OI = torch.where(salient_I, w32_OI, blend_OI)
        return without_alias(blend_OI.to(w_OI.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None, None, None, None


class _HeldWeight(torch.autograd.Function):
    """Effective weights computed before, whose gradient goes to the master weights in their dtype."""

    @staticmethod
    def forward(ctx: Any, w_OI: Tensor, effective_OI: Tensor) -> Tensor:
        ctx.dtype = w_OI.dtype
        return effective_OI

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].to(ctx.dtype), None


class TernaryLinear(nn.Module):
    """A linear layer whose weights become ternary and whose inputs become int8 as `lambda_` rises to 1.

    Args:
        linear: the layer to replace; its parameters are shared, not copied.
        lambda_: lambda, one object for all layers of a model.
    """

    def __init__(self, linear: nn.Linear, lambda_: Lambda, config: QuantConfig) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias: nn.Parameter | None = linear.bias
        self.lambda_, self.config = lambda_, config
        self.saliency: ColumnSaliency | None = None
        self.quantise_input = Int8Input(lambda_.activations)
        self._held: Tensor | None = None
        # Of the processes that each compute a part of the outputs, or take a part of the inputs.
        self.group: TensorGroup | None = None
        self.splits_inputs = False
        self.linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = F.linear

    def effective_weight(self) -> Tensor:
        """Return the weights [O, I] that the layer multiplies by."""
        if self._held is not None:
            held = _HeldWeight.apply(self.weight, self._held)  # type: ignore[no-untyped-call] # as below
            return cast(Tensor, held)
        lambda_ = self.lambda_.weights
        if lambda_.known_to_be(0):
            return self.weight
        salient_I = None if self.saliency is None else self.saliency.mask
        blend = _BlendWeight.apply(  # type: ignore[no-untyped-call] # torch has no annotation for it
            self.weight,
            None if lambda_.known_to_be(1) else lambda_.value,
            salient_I,
            self.config.weight_scale,
            self.config.group_size,
        )
        return cast(Tensor, blend)

    def hold_weight(self, effective_OI: Tensor, dtype: torch.dtype | None = None) -> None:
        """Multiply by these effective weights in all passes until `release_weight`.

        Args:
            dtype: of the products, to which autocast would cast wider weights in each pass. 8-bit products
                scale the weights as they are.
        """
        if dtype is not None and dtype.itemsize < effective_OI.itemsize and self.linear is F.linear:
            effective_OI = effective_OI.to(dtype)
        self._held = effective_OI.detach()

    def release_weight(self) -> None:
        """Compute the effective weights anew from now on."""
        self._held = None

    def forward(self, x_TI: Tensor) -> Tensor:
        """Map [..., I] to [..., O]."""
        if self.config.activations == "int8":
            x_TI = self.quantise_input(x_TI)
        if self.group is None:
            return self.linear(x_TI, self.effective_weight(), self.bias)
        # A copy of the part, so that the rest is not kept for the backward pass.
        part_OI = self.group.own(self.effective_weight(), int(self.splits_inputs)).clone()
        if not self.splits_inputs:
            bias_O = None if self.bias is None else self.group.own(self.bias, 0)
            return self.linear(x_TI, part_OI, bias_O)
        y_TO = self.group.reduce_scatter(self.linear(x_TI, part_OI, None), 1)
        return y_TO if self.bias is None else y_TO + self.bias.to(y_TO.dtype)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weight_scale={self.config.weight_scale}, "
            f"group_size={self.config.group_size}, activations={self.config.activations}"
        )


def ternary_layers(model: nn.Module) -> list[TernaryLinear]:
    """Return all quantised layers of a model, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, TernaryLinear)]


def effective_weights(layers: Sequence[TernaryLinear]) -> list[Tensor]:
    """Return the weights [O, I] that each of the layers multiplies by."""
    return [layer.effective_weight() for layer in layers]


Quantise = Callable[[Sequence[TernaryLinear]], list[Tensor]]


@contextmanager
def held_weights(
    model: nn.Module, quantise: Quantise = effective_weights, *, dtype: torch.dtype | None = None
) -> Iterator[None]:
    """Quantise the weights of every ternary layer once for all passes within the context.

    Weights, lambda and saliency must not change within it.

    Args:
        quantise: `effective_weights`, or a compiled one; called with the layers of a block of the model.
        dtype: of the products; None: that of the weights.
    """
    blocks = _blocks(model)
    try:
        with torch.no_grad():
            for block in blocks:
                for layer, effective_OI in zip(block, quantise(block), strict=True):
                    layer.hold_weight(effective_OI, dtype)
        yield
    finally:
        for layer in itertools.chain(*blocks):
            layer.release_weight()


def _blocks(model: nn.Module) -> list[list[TernaryLinear]]:
    """Return the quantised layers by the numbered module that they are in, such as a decoder layer."""
    named = [(name, each) for name, each in model.named_modules() if isinstance(each, TernaryLinear)]
    blocks = itertools.groupby(named, lambda item: _NUMBERED.split(item[0], maxsplit=1)[0])
    return [[layer for _, layer in items] for _, items in blocks]


@contextmanager
def as_deployed(model: nn.Module) -> Iterator[None]:
    """Let every ternary layer compute as deployed within the context.

    That is lambda 1, no salient columns and no 8-bit products. Afterwards the settings are restored exactly.
    """
    layers = ternary_layers(model)
    scalars: dict[SharedScalar, float] = {
        scalar: scalar.last_set
        for layer in layers
        for scalar in (layer.lambda_.weights, layer.lambda_.activations)
    }
    before = [(layer.saliency, layer.linear) for layer in layers]
    try:
        _set_where_different(dict.fromkeys(scalars, 1.0))
        for layer in layers:
            layer.saliency, layer.linear = None, F.linear
        yield
    finally:
        _set_where_different(scalars)
        for layer, (saliency, linear) in zip(layers, before, strict=True):
            layer.saliency, layer.linear = saliency, linear


def _set_where_different(values: Mapping[SharedScalar, float]) -> None:
    for scalar, value in values.items():
        if scalar.last_set != value:
            scalar.set(value)


def fully_quantised(model: nn.Module) -> bool:
    """Return whether every ternary layer computes as deployed: lambda 1 and no salient columns.

    A model without ternary layers counts as fully quantised.
    """
    layers = ternary_layers(model)
    lambdas = {layer.lambda_ for layer in layers}  # mostly one: each waits for the device
    return all(layer.saliency is None for layer in layers) and all(each.complete for each in lambdas)
