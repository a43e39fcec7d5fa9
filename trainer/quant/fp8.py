"""Matrix products of the ternary layers in 8-bit floating point. `stages.pretrain` switches them on.

    y = (x8·w8ᵀ)·s_x·s_w,  dx = (g8·w8)·s_g·s_w,  dw = (g8ᵀ·x8)·s_g·s_x

Inputs and weights are in e4m3, gradients in e5m2, each with one scale per tensor that maps its largest
magnitude to the format's (arXiv:2209.05433). Master weights, embeddings, the head, norms and the optimizer
keep their dtypes. Ternary weights of one scale are exact in e4m3; int8 activations are not, as they have up
to seven significant bits and e4m3 has four. Only training uses these products, evaluation never does.

Shapes: N tokens in any leading dimensions, I inputs, O outputs; `x_NI`, `w_OI`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.config import Stage2Config
from trainer.devices.device import Device
from trainer.devices.dtypes import multiplies_float8
from trainer.errors import ConfigError, MachineError
from trainer.quant.ternary import TernaryLinear, ternary_layers

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # must divide every dimension of a product: the tensor cores require it
_KEY = "stage2.fp8"
_TINY = 1e-12  # below any magnitude that is not zero: a tensor of zeros must not divide by zero


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
    """Check that 16 divides every dimension of each product; do nothing if FP8 is off.

    Args:
        student: the model whose ternary layers are checked.
        config: of Stage 2.
        sequence_length: in tokens.
        processes: number of processes that share each batch; a micro-batch belongs to one process.

    Raises:
        ConfigError: a dimension is not a multiple.
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
    for name, layer in student.named_modules():
        if isinstance(layer, TernaryLinear) and not _fits(layer):
            raise ConfigError(
                f"{name} has {layer.in_features} inputs and {layer.out_features} outputs, and {MULTIPLE} "
                f"must divide both; write {_KEY}=false",
                key=_KEY,
            )


def _fits(layer: TernaryLinear) -> bool:
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


@contextmanager
def fp8_products(model: nn.Module) -> Iterator[None]:
    """Make the ternary layers of `model` multiply in FP8 within the context."""
    layers = ternary_layers(model)
    for layer in layers:
        layer.linear = fp8_linear
    try:
        yield
    finally:
        for layer in layers:
            layer.linear = nn.functional.linear


def fp8_linear(x_NI: Tensor, w_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
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
    # torch has no annotation for `apply`
    flat_NO = _Fp8Linear.apply(x_NI.flatten(0, -2), w_OI, dtype)  # type: ignore[no-untyped-call]
    y_NO = cast(Tensor, flat_NO).view(*x_NI.shape[:-1], len(w_OI))
    return y_NO if bias_O is None else y_NO + bias_O.to(y_NO.dtype)


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, w_OI: Tensor, dtype: torch.dtype) -> Tensor:
        x8_NI, x_scale = _scaled(x_NI, FORWARD)
        w8_OI, w_scale = _scaled(w_OI, FORWARD)
        # In 8 bits: a quarter, or half, of what a plain layer stores for the backward pass.
        ctx.save_for_backward(x8_NI, x_scale, w8_OI, w_scale)
        ctx.dtypes = x_NI.dtype, w_OI.dtype
        return _product(x8_NI, w8_OI, x_scale, w_scale, dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x8_NI, x_scale, w8_OI, w_scale = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        g8_NO, g_scale = _scaled(grads[0], BACKWARD)
        dtype = grads[0].dtype
        grad_x_NI = _product(g8_NO, w8_OI.t(), g_scale, w_scale, dtype, fast=False)
        grad_w_OI = _product(g8_NO.t(), x8_NI.t(), g_scale, x_scale, dtype, fast=False)
        return grad_x_NI.to(x_dtype), grad_w_OI.to(w_dtype), None


def _scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the values in 8 bits and the 0-d float32 scale that undoes it; one inf or NaN makes all NaN."""
    wide = x.float()
    scale = wide.abs().amax().clamp(min=_TINY) / torch.finfo(dtype).max
    return (wide / scale).to(dtype), scale


def _product(a_NI: Tensor, b_OI: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype, *, fast: bool) -> Tensor:
    """Return a·bᵀ, [N, O]; `fast` accumulates in the tensor cores' precision, as usual in forward passes."""
    return torch._scaled_mm(
        a_NI.contiguous(), b_OI.contiguous().t(), scale_a=a, scale_b=b, out_dtype=dtype, use_fast_accum=fast
    )
