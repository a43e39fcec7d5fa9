"""Models in parts over the chips of a host: each chip keeps a part of every matrix, of its gradient and of
the optimizer's state, and has a whole matrix only while it multiplies with it, as in FSDP. Called by `xla`,
and `copy_into` by `graph`.

No number is computed here. Tensors are marked with how they are dealt out, and XLA's partitioner puts the
exchanges into the step: matrices are gathered where they are multiplied with, and what all chips add to a
gradient is summed where the gradient is kept. It would as soon gather activations: so what comes of every
product is marked, too, to stay with the chip that has its rows of the batch. With layers' outputs alone
marked it sent activations to and fro inside of them (seen at a hidden size of 256, and none at 32).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch_xla
import torch_xla.distributed.spmd as xs
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_xla.distributed.spmd import XLAShardedTensor

from trainer.errors import ConfigError

ROWS = "rows"
"""The name of the mesh's one axis."""


def check(parallel: str, chips: int) -> None:
    """Whether so many chips can share a run so, as `device.parallel` says. Raises ConfigError."""
    if parallel == "ddp":
        raise ConfigError(
            "the chips of a TPU share each batch in one process anyway; write device.parallel=none, or fsdp "
            "to share the weights as well",
            key="device.parallel",
        )
    if parallel == "fsdp" and chips == 1:
        raise ConfigError(
            "fsdp shares the weights among chips, and there is one; write none", key="device.parallel"
        )


def share_out(model: nn.Module, mesh: xs.Mesh) -> None:
    """Deals out the model's parameters; may be called again. They need not be on the device yet: a parameter
    that is moved there and marked before it is used arrives in parts."""
    for parameter in model.parameters():
        _deal_out(parameter, mesh)
    for module in model.modules():
        multiplies = any(parameter.ndim >= 2 for parameter in module.parameters(recurse=False))
        if multiplies and not any(isinstance(hook, RowsStay) for hook in module._forward_hooks.values()):
            module.register_forward_hook(RowsStay(mesh))
    for layer in cast(Any, model).get_decoder().layers:
        if not layer._backward_hooks:  # torch_xla's own FSDP has it: gradients are exchanged layer by layer
            xs.xla_sharding.apply_backward_optimization_barrier(layer)


def share_out_states(optimizers: Iterable[Optimizer], mesh: xs.Mesh, *, in_parts: bool) -> None:
    """Deals out what optimizers keep of a parameter's shape as the parameter is, where that is `in_parts`;
    may be called again. What stays whole is marked so: it will be once it has come out of a step, and the
    graph of a step knows of its inputs how they lie. Without the mark the second step after a checkpoint was
    compiled too."""
    for optimizer in optimizers:
        for parameter, kept in optimizer.state.items():
            for value in kept.values():
                if isinstance(value, Tensor) and value.device.type == "xla":
                    if in_parts and value.shape == parameter.shape:
                        _deal_out(value, mesh)
                    if not torch_xla._XLAC._get_xla_sharding_spec(value):
                        xs.mark_sharding(value, mesh, (None,) * value.ndim)


def copy_into(place: Tensor, tensor: Tensor) -> None:
    """Copies a tensor, which chips may have in parts, into one of the CPU. Torch's own copy would gather it
    on a chip, which may have no room for it, by a graph that is compiled anew for each tensor each time."""
    if "devices=" not in torch_xla._XLAC._get_xla_sharding_spec(tensor):
        place.copy_(tensor)
        return
    for part in XLAShardedTensor(tensor).local_shards:
        where = tuple(part.indices)
        place[where] = part.data[tuple(slice(each.stop - each.start) for each in where)]  # without padding


class RowsStay:
    """A forward hook: what the module puts out, and the gradient that comes back to it, [B, …], stay with the
    chips that have their rows of the batch. A batch that is whole on every chip stays so."""

    def __init__(self, mesh: xs.Mesh) -> None:
        self._mesh = mesh

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if len(output) % self._mesh.size():
            return output
        parts = (ROWS, *[None] * (output.ndim - 1))
        return cast(Tensor, xs.mark_sharding_with_gradients(output, self._mesh, parts))

    def __deepcopy__(self, memo: dict[int, Any]) -> RowsStay:
        """A student that is its teacher's copy runs on the same chips."""
        return self


def _deal_out(tensor: Tensor, mesh: xs.Mesh) -> None:
    """In parts along the first dimension that the chips divide. Without such a one, and of one dimension (a
    gain, a bias), it stays whole everywhere."""
    if tensor.ndim < 2:
        return
    for dimension, size in enumerate(tensor.shape):
        if size % mesh.size() == 0:
            parts = tuple(ROWS if each == dimension else None for each in range(tensor.ndim))
            xs.mark_sharding(tensor, mesh, parts)
            return
