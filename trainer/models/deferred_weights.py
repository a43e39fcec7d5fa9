"""A copy of a model without its weights, which get there part by part.

For `device.parallel=fsdp`, so that no process ever holds a whole student: `models.subln` makes the student
so, and `training.parallel` copies the weights of each decoder layer when it shards that layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from trainer.config.model import MasterDtype
from trainer.distributed.tensors import is_dtensor
from trainer.models.host_layers import copied

# By parameter, the tensor that its values are still to be copied from.
_SOURCES: Any = WeakIdKeyDictionary()


def copy_without_weights(model: nn.Module, device: torch.device, dtype: MasterDtype) -> nn.Module:
    """Return a trainable copy of a model, whose parameters have shapes and dtypes and take no memory.

    Until `fill` they refer to those of the model, which may be on the host.

    Args:
        device: where buffers are copied to.
        dtype: of all parameters; `auto`: as in the model.
    """
    wanted = None if dtype == "auto" else getattr(torch, dtype)
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        value = torch.empty((), dtype=wanted or parameter.dtype).expand(parameter.shape)
        memo[id(parameter)] = bare = nn.Parameter(value)
        _SOURCES[bare] = parameter.detach()
    student = copied(model, memo)
    for buffer in student.buffers():
        buffer.data = buffer.data.to(device)
    if wanted is not None and any(parameter.dtype != wanted for parameter in model.parameters()):
        cast(Any, student).config.dtype = wanted
    return student


def fill(module: nn.Module, device: torch.device) -> None:
    """Let a module have its weights, as a copy on the device; what has them already is moved there."""
    for parameter in module.parameters():
        if is_dtensor(parameter):
            continue
        source = _SOURCES.pop(parameter, None)
        if source is None:
            parameter.data = parameter.data.to(device)
        else:
            parameter.data = torch.empty(source.shape, dtype=parameter.dtype, device=device).copy_(source)


@contextmanager
def filled_while_computing(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within the context, run a decoder whose layers have weights on the device only while they compute."""
    layers = cast(Any, model).get_decoder().layers
    inside = set(layers.parameters())
    ends = [parameter for parameter in model.parameters() if parameter not in inside]
    bare: list[tuple[nn.Parameter, Tensor]] = [(each, each.data) for each in model.parameters()]

    def use(parameters: Any) -> None:
        for parameter in parameters:
            parameter.data = _SOURCES[parameter].to(device, parameter.dtype)

    def empty(*_: object) -> None:
        for parameter, value in bare:
            if parameter in inside:
                parameter.data = value
        torch.clear_autocast_cache()  # which would keep a cast of all weights until the end of the pass

    handles = []
    for layer in layers:
        handles.append(layer.register_forward_pre_hook(lambda layer, _: use(layer.parameters())))
        handles.append(layer.register_forward_hook(empty))
    use(ends)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, value in bare:
            parameter.data = value
