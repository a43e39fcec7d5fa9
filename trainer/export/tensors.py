"""Tensors of an exported checkpoint: packed at two bits each, dense, or master weights. Used by `checkpoint`.

Shapes: O outputs, I inputs; `w_OI`. transformers' `AutoBitLinear` multiplies by `weight · weight_scale`.
Dense, the weight is the student's effective one, and its scale 1. Packed, the weight is -1, 0 or 1, four rows
to a byte: bits 2i and 2i+1 of row r hold row i·ceil(O/4) + r, plus 1. Master weights are quantised whenever
they are loaded: bitnet.cpp's converter quantises all that it reads, and of ternary weights it would take the
mean magnitude, zeros included, for their scale. They keep their dtype, as rounding would change some codes.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from trainer.errors import ConfigError
from trainer.export.target import Target
from trainer.quant.ternary import TernaryLinear, ternary_layers
from trainer.quant.weights import ternary_codes

Form = Literal["packed", "dense", "master"]
ROWS_PER_BYTE = 4
FORMAT_KEY = "--format"


@torch.no_grad()
def tensors(student: nn.Module, target: Target, form: Form) -> dict[str, Tensor]:
    """Return every tensor of the checkpoint by its name; tied ones once.

    Args:
        target: class whose names the tensors get.

    Raises:
        ConfigError: the form cannot hold a layer.
    """
    layers = {name: module for name, module in student.named_modules() if isinstance(module, TernaryLinear)}
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in student.state_dict(keep_vars=True).items():
        if id(tensor) in seen:  # a head may be tied to the embeddings
            continue
        seen.add(id(tensor))
        owner, _, part = name.rpartition(".")
        layer = layers.get(owner)
        if layer is not None and form == "master":
            _check_master(owner, layer)
        if layer is None or part != "weight" or form == "master":
            found[target.rename(name)] = tensor.detach().contiguous()
            continue
        if form == "packed":
            weight, scale = _packed_weights(owner, layer)
        else:
            weight = layer.effective_weight()
            scale = torch.ones(1, dtype=weight.dtype)
        found[target.rename(name)] = weight
        if layer.config.activations == "int8":
            found[target.rename(f"{owner}.weight_scale")] = scale
    return found


def quantization(student: nn.Module, target: Target, form: Form) -> dict[str, Any] | None:
    """Return the configuration for which transformers builds `AutoBitLinear` for ternary layers.

    It is None if their inputs are not quantised, as they are plain linear layers then.
    """
    if ternary_layers(student)[0].config.activations == "none":
        return None
    full = [target.rename(name) for name, module in student.named_modules() if isinstance(module, nn.Linear)]
    return {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "online" if form == "master" else "offline",
        "modules_to_not_convert": full,
    }


def pack(codes_OI: Tensor) -> Tensor:
    """Return codes -1, 0 and 1, [O, I], in the bytes of transformers' BitNet: [ceil(O/4), I], uint8."""
    from transformers.integrations.bitnet import pack_weights

    return cast(Tensor, pack_weights(codes_OI.clone()))  # it adds to its argument


def unpack(packed: Tensor, rows: int) -> Tensor:
    """Return the codes that `pack` packed: int8, [rows, I]."""
    shifts = torch.arange(0, 2 * ROWS_PER_BYTE, 2, dtype=torch.uint8, device=packed.device)
    codes = (packed.unsqueeze(0) >> shifts.view(-1, 1, 1)) & 3
    return codes.flatten(0, 1)[:rows].to(torch.int8) - 1


def _packed_weights(name: str, layer: TernaryLinear) -> tuple[Tensor, Tensor]:
    config = layer.config
    reason = None
    if config.group_size is not None:
        reason = f"has one scale per matrix, and quant.group_size={config.group_size} has many"
    elif config.activations == "none":
        reason = "is for layers that quantise their inputs, and quant.activations=none leaves them"
    elif layer.bias is not None:
        reason = f"cannot hold {name}: transformers multiplies its bias by the scale of its weights"
    elif layer.out_features % ROWS_PER_BYTE:
        reason = f"cannot hold {name}: its {layer.out_features} outputs are no multiple of {ROWS_PER_BYTE}"
    if reason:
        raise ConfigError(f"packed {reason}; write {FORMAT_KEY} dense", key=FORMAT_KEY)
    codes, scale = ternary_codes(layer.weight.float(), config.weight_scale, None)
    return pack(codes), scale.reshape(1).to(layer.weight.dtype)


def _check_master(name: str, layer: TernaryLinear) -> None:
    config = layer.config
    reason = None
    if config.weight_scale != "absmean" or config.group_size is not None:
        reason = "are quantised again by the mean of each matrix, and this student's scales are others"
    elif config.activations == "none":
        reason = "are for layers that quantise their inputs, and quant.activations=none leaves them"
    elif layer.bias is not None:
        reason = f"are for layers without biases, and {name} has one"
    if reason:
        raise ConfigError(f"master weights {reason}; write {FORMAT_KEY} dense", key=FORMAT_KEY)
