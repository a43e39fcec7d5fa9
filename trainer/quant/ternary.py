"""The ternary linear layer of BitNet b1.58 (arXiv:2402.17764), with a shared lambda. Built by `stages.subln`.

Shapes: T tokens in any leading arrangement, I input features, O output features; `w_OI`, `x_TI`.

Both weights and activations are blends, by a lambda between 0 and 1, of their full-precision and their
quantised values. At 0 the layer computes exactly what `nn.Linear` computes; at 1 the weights that share a
scale hold three values. Salient columns are an exception for weights only, and at every lambda.
`QuantConfig` says which weights share a scale, and whether activations are quantised at all.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.config import QuantConfig
from trainer.quant.saliency import ColumnSaliency
from trainer.quant.warmup import Lambda
from trainer.quant.weights import WeightScale, ternary_weight

EPS = 1e-5  # the floor under the scale of activations, as in the paper: a row of zeros must not divide by 0
INT8_MAX = 127.0


def int8_activation(x_TI: Tensor) -> Tensor:
    """Per-token absmax quantisation to 255 levels, returned in the unit and dtype of the input."""
    scale = x_TI.abs().amax(dim=-1, keepdim=True).clamp_(min=EPS).div_(INT8_MAX)
    return (x_TI / scale).round_().mul_(scale)


class _BlendWeight(torch.autograd.Function):
    """lerp(w, ternary(w), lambda), salient columns excepted; the gradient passes straight through.

    An identity backward, not `w + (q - w).detach()`: that sum rounds, and in bfloat16 leaves seven values
    where there should be three.
    """

    @staticmethod
    def forward(
        ctx: Any,
        w_OI: Tensor,
        strength: Tensor,
        salient_I: Tensor | None,
        weight_scale: WeightScale,
        group_size: int | None,
    ) -> Tensor:
        w32_OI = w_OI.float()
        blend_OI = torch.lerp(w32_OI, ternary_weight(w32_OI, weight_scale, group_size), strength)
        if salient_I is not None:
            blend_OI = torch.where(salient_I, w32_OI, blend_OI)
        return blend_OI.to(w_OI.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None, None, None, None


class _BlendActivation(torch.autograd.Function):
    """lerp(x, int8(x), lambda) in float32; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, strength: Tensor) -> Tensor:
        x32_TI = x_TI.float()
        return torch.lerp(x32_TI, int8_activation(x32_TI), strength).to(x_TI.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class TernaryLinear(nn.Module):
    """A linear layer whose weights go ternary and whose inputs go int8 as `strength` goes to 1.

    Args:
        linear: the layer to take over; its parameters are adopted, not copied.
        strength: lambda, one object shared by all layers of a model.
        config: what is quantised, and to which values.
    """

    def __init__(self, linear: nn.Linear, strength: Lambda, config: QuantConfig) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias: nn.Parameter | None = linear.bias
        self.strength, self.config = strength, config
        self.saliency: ColumnSaliency | None = None

    def effective_weight(self) -> Tensor:
        """The weights that the layer multiplies by, [O, I]."""
        salient_I = None if self.saliency is None else self.saliency.mask()
        blend = _BlendWeight.apply(  # type: ignore[no-untyped-call] # torch has no annotation for it
            self.weight,
            self.strength.weights.value,
            salient_I,
            self.config.weight_scale,
            self.config.group_size,
        )
        return cast(Tensor, blend)

    def forward(self, x_TI: Tensor) -> Tensor:
        """[..., I] → [..., O]."""
        if self.config.activations == "int8":
            x_TI = _BlendActivation.apply(x_TI, self.strength.activations.value)  # type: ignore[no-untyped-call] # as above
        return F.linear(x_TI, self.effective_weight(), self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weight_scale={self.config.weight_scale}, "
            f"group_size={self.config.group_size}, activations={self.config.activations}"
        )


def ternary_layers(model: nn.Module) -> list[TernaryLinear]:
    """All quantised layers of a model, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, TernaryLinear)]


def fully_quantised(model: nn.Module) -> bool:
    """Whether every ternary layer computes as it will be deployed: lambda 1, no column spared. True for a
    model that has none."""
    return all(layer.saliency is None and layer.strength.complete for layer in ternary_layers(model))
