"""The dtype of master weights: those that the optimizer updates and that are quantised in each forward pass.

An update is lost where it is smaller than half the distance of two numbers: in bfloat16, which has 8
significant bits, 2^-9 of the weight. Called by `subln` in Stage 1, and by the estimates of memory.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from trainer.config.model import MasterDtype


@torch.no_grad()
def cast_weights(model: nn.Module, dtype: MasterDtype) -> nn.Module:
    """Return the model with all parameters in this dtype, cast in place; `auto` leaves them as they are.

    Buffers keep theirs: the frequencies of rotary embeddings are float32 whatever the weights are. Tied
    weights stay tied.
    """
    if dtype == "auto":
        return model
    wanted: torch.dtype = getattr(torch, dtype)
    if any(parameter.dtype != wanted for parameter in model.parameters()):
        for parameter in model.parameters():
            parameter.data = parameter.data.to(wanted)
        cast(Any, model).config.dtype = wanted
    return model


def computes_in_bfloat16(teacher: nn.Module, dtype: MasterDtype) -> bool:
    """Return whether the products of a student of this teacher are bfloat16, whatever the device's are."""
    if dtype == "auto":
        return any(parameter.dtype == torch.bfloat16 for parameter in teacher.parameters())
    return dtype == "bfloat16"
