"""Matrix products of the ternary layers in 8-bit floating point. `stages.pretrain` switches them on.

    y = x·wᵀ,  dx = g·w,  dw = gᵀ·x

By default the two products of the backward pass alone are in 8 bits. Ternary weights of one scale are exact
in e4m3, as the scale is kept apart; 8-bit integer activations are not, as they have up to seven significant
bits and e4m3 has four. In the forward pass that would add an error of 0.026 to the 0.0075 that quantising
them has, with any scale, and evaluation would compute something else than what is trained.

A factor has one scale per row or column that is not summed over (of g in dx: per token), which maps its
largest magnitude to e4m3's (arXiv:2209.05433). Gradients are e4m3 too: a row spans less than its range, and
e5m2 has twice the error. Master weights, embeddings, the head, norms and the optimizer keep their dtypes.
Only training uses these products, evaluation never does.

Shapes: N tokens in any leading dimensions, I inputs, O outputs; `x_NI`, `w_OI`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from sweeps.text.counted import counted
from trainer.config import Stage2Config
from trainer.config.quant import Fp8Config
from trainer.devices.device import Device
from trainer.devices.dtypes import multiplies_float8
from trainer.errors import ConfigError, MachineError
from trainer.quant.activations import without_alias
from trainer.quant.ternary import TernaryLinear

FORMAT = torch.float8_e4m3fn
MULTIPLE = 16  # must divide every dimension of a product: the tensor cores require it
_KEY = "stage2.fp8"
_TINY = 1e-12  # below any magnitude that is not zero: a row of zeros must not divide by zero

_log = logging.getLogger(__name__)


def require_device(config: Stage2Config, device: Device) -> None:
    """Raise MachineError if the configuration enables FP8 and the device has no such products."""
    if config.fp8 and config.max_steps and not multiplies_float8(device.torch_device):
        raise MachineError(
            f"{device.name} has no products of 8-bit floats (NVIDIA's Ada, Hopper and newer have); "
            f"write {_KEY}=false",
            key=_KEY,
        )


def require_multiples(
    student: nn.Module, config: Stage2Config, sequence_length: int, *, processes: int
) -> None:
    """Check that there is something to multiply in FP8; do nothing if it is off.

    Layers that 16 does not divide keep the device's products, which one line of the log says.

    Args:
        sequence_length: in tokens.
        processes: number of processes that share each batch; a micro-batch belongs to one process.

    Raises:
        ConfigError: 16 does not divide the tokens of a pass, or no layer is left.
    """
    if not (config.fp8 and config.max_steps):
        return
    tokens = (config.micro_batch_size or config.batch_size // processes) * sequence_length
    if tokens % MULTIPLE:
        of_one = f" of one of {processes} processes" if processes > 1 else ""
        raise ConfigError(
            f"a forward pass{of_one} has {tokens} tokens, which {MULTIPLE} does not divide; change "
            f"stage2.micro_batch_size or data.sequence_length, or write {_KEY}=false",
            key=_KEY,
        )
    chosen = dict(_configured_layers(student, config.fp8_recipe))
    odd = [name for name, layer in chosen.items() if not _fits(layer)]
    if len(odd) == len(chosen):
        raise ConfigError(
            f"no ternary layer would be multiplied in 8 bits: {MULTIPLE} does not divide inputs and outputs "
            f"of {len(odd)}, and stage2.fp8_recipe.min_size and exclude leave out the others; change these, "
            f"or write {_KEY}=false",
            key=_KEY,
        )
    if odd:
        _log.warning(
            "%s: %s of %s (%s%s) keep the device's products: %s does not divide their inputs or outputs",
            *(_KEY, len(odd), counted(len(chosen), "layer"), odd[0], ", …" * (len(odd) > 1), MULTIPLE),
        )


def _configured_layers(model: nn.Module, config: Fp8Config) -> Iterator[tuple[str, TernaryLinear]]:
    """Yield the ternary layers that the configuration does not leave out."""
    for name, layer in model.named_modules():
        if (
            isinstance(layer, TernaryLinear)
            and min(layer.in_features, layer.out_features) >= config.min_size
            and not any(fnmatch(name, pattern) for pattern in config.exclude)
        ):
            yield name, layer


def _fits(layer: TernaryLinear) -> bool:
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


@contextmanager
def fp8_products(model: nn.Module, config: Fp8Config) -> Iterator[None]:
    """Make the ternary layers of `model` that are chosen, and can, multiply in FP8 within the context."""
    layers = [layer for _, layer in _configured_layers(model, config) if _fits(layer)]
    multiply = partial(fp8_linear, config=config)
    for layer in layers:
        layer.linear = multiply
    try:
        yield
    finally:
        for layer in layers:
            layer.linear = nn.functional.linear


def fp8_linear(x_NI: Tensor, w_OI: Tensor, bias_O: Tensor | None = None, *, config: Fp8Config) -> Tensor:
    """Apply `F.linear` with FP8 products.

    Args:
        x_NI: [..., I].
        w_OI: [O, I].
        bias_O: [O], added in the dtype of the result.

    Returns:
        [..., O], in autocast's dtype if it is enabled, otherwise in the input's.
    """
    kind = x_NI.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_NI.dtype
    flat_NO = _Fp8Linear.apply(  # type: ignore[no-untyped-call] # torch has no annotation for it
        x_NI.flatten(0, -2), w_OI, dtype, config.products == "all", config.accumulator == "fast"
    )
    y_NO = cast(Tensor, flat_NO).view(*x_NI.shape[:-1], len(w_OI))
    return y_NO if bias_O is None else y_NO + bias_O.to(y_NO.dtype)


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NI: Tensor, w_OI: Tensor, dtype: torch.dtype, forward_too: bool, fast: bool
    ) -> Tensor:
        # In 8 bits: a quarter, or half, of what a plain layer stores for the backward pass.
        ctx.save_for_backward(*_quantise_rows(x_NI.t()), *_quantise_rows(w_OI.t()))
        ctx.dtypes, ctx.fast = (x_NI.dtype, w_OI.dtype), fast
        if forward_too:
            return without_alias(_product(_quantise_rows(x_NI), _quantise_rows(w_OI), fast=fast).to(dtype))
        return nn.functional.linear(x_NI.to(dtype), w_OI.to(dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x8_IN, x_scale, w8_IO, w_scale = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        g_NO, grad_x_NI, grad_w_OI = grads[0], None, None
        if ctx.needs_input_grad[0]:
            grad_x_NI = _product(_quantise_rows(g_NO), (w8_IO, w_scale), fast=ctx.fast).to(x_dtype)
        if ctx.needs_input_grad[1]:
            # Not `fast`: it sums over all tokens, too many for the tensor cores' own precision.
            grad_w_OI = _product(_quantise_rows(g_NO.t()), (x8_IN, x_scale), fast=False).to(w_dtype)
        return grad_x_NI, grad_w_OI, None, None, None


QuantisedRows = tuple[Tensor, Tensor]
"""Values in 8 bits, and the float32 scale of each row that undoes it, [rows, 1]."""


def _quantise_rows(x: Tensor) -> QuantisedRows:
    """Scale and round each row of a matrix; an inf or NaN makes all of its row NaN."""
    wide = x.float()
    scale = wide.abs().amax(dim=-1, keepdim=True).clamp(min=_TINY) / torch.finfo(FORMAT).max
    return (wide / scale).to(FORMAT).contiguous(), scale.contiguous()


def _product(a_NI: QuantisedRows, b_OI: QuantisedRows, *, fast: bool) -> Tensor:
    """Return a·bᵀ, [N, O] in bfloat16, the only dtype that CUDA has for scales of rows.

    `fast` accumulates in the tensor cores' own precision, some 14 bits (arXiv:2412.19437, section 3.3.2).
    """
    (a, a_scale), (b, b_scale) = a_NI, b_OI
    return torch._scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=fast
    )
