"""FSDP over the chips of a host: each keeps a shard of every matrix, its gradient and its optimizer state.

Called by `xla`, and `copy_into` by `lazy_tensor`. Nothing is computed here: tensors are annotated with their
sharding, and XLA's partitioner puts the collectives into the step. It gathers matrices before their products
and reduces gradients into shards. It might as well gather activations, so every product's output is annotated
too, to stay with the chip that has its rows of the batch; with only the layers' outputs annotated it
exchanged activations inside the layers (at a hidden size of 256, not at 32).
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
"""Name of the mesh's only axis."""


def check(parallel: str, chips: int) -> None:
    """Raise ConfigError if so many chips cannot share a run as `device.parallel` says."""
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


def shard_model(model: nn.Module, mesh: xs.Mesh) -> None:
    """Shard the model's parameters; may be called again.

    A parameter that is annotated before its first use on the device arrives there as shards.
    """
    for parameter in model.parameters():
        _shard(parameter, mesh)
    for module in model.modules():
        multiplies = any(parameter.ndim >= 2 for parameter in module.parameters(recurse=False))
        if multiplies and not any(isinstance(hook, KeepRows) for hook in module._forward_hooks.values()):
            module.register_forward_hook(KeepRows(mesh))
    for layer in cast(Any, model).get_decoder().layers:
        if not layer._backward_hooks:  # as torch_xla's own FSDP: gradients are reduced layer by layer
            xs.xla_sharding.apply_backward_optimization_barrier(layer)


def shard_states(optimizers: Iterable[Optimizer], mesh: xs.Mesh, *, sharded: bool) -> None:
    """Shard optimizer state like its parameter, if that is `sharded`; may be called again.

    Other state is annotated as replicated, which it is once a step has returned it: a graph depends on the
    sharding of its inputs, and without the annotation the second step after a checkpoint was compiled again.
    """
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, Tensor) and value.device.type == "xla":
                    if sharded and value.shape == parameter.shape:
                        _shard(value, mesh)
                    if not torch_xla._XLAC._get_xla_sharding_spec(value):
                        xs.mark_sharding(value, mesh, (None,) * value.ndim)


def copy_into(buffer: Tensor, tensor: Tensor) -> None:
    """Copy a tensor, which may be sharded, into a CPU buffer of its shape.

    Torch's own copy would gather it on a chip, which may lack the memory, by a graph that is compiled anew
    for each tensor each time.
    """
    if "devices=" not in torch_xla._XLAC._get_xla_sharding_spec(tensor):
        buffer.copy_(tensor)
        return
    for part in XLAShardedTensor(tensor).local_shards:
        where = tuple(part.indices)
        buffer[where] = part.data[tuple(slice(each.stop - each.start) for each in where)]  # without padding


class KeepRows:
    """Forward hook that keeps a module's output [B, …], and its gradient, sharded by rows.

    A batch that the chips do not divide stays replicated.
    """

    def __init__(self, mesh: xs.Mesh) -> None:
        self._mesh = mesh

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if len(output) % self._mesh.size():
            return output
        parts = (ROWS, *[None] * (output.ndim - 1))
        return cast(Tensor, xs.mark_sharding_with_gradients(output, self._mesh, parts))

    def __deepcopy__(self, memo: dict[int, Any]) -> KeepRows:
        """Return itself: a student that is copied from its teacher runs on the same chips."""
        return self


def _shard(tensor: Tensor, mesh: xs.Mesh) -> None:
    """Shard along the first dimension that the chips divide; vectors (gains, biases) stay replicated."""
    if tensor.ndim < 2:
        return
    for dimension, size in enumerate(tensor.shape):
        if size % mesh.size() == 0:
            parts = tuple(ROWS if each == dimension else None for each in range(tensor.ndim))
            xs.mark_sharding(tensor, mesh, parts)
            return
