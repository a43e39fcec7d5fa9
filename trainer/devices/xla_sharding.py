"""FSDP over the chips of a host: each keeps a shard of every matrix, its gradient and its optimizer state.

Called by `xla`, and `copy_into` by `lazy_tensor`. Nothing is computed here: tensors are annotated with their
sharding, and XLA's partitioner puts the collectives into the step. It gathers matrices before their products
and reduces gradients into shards. It might as well gather activations, so every product's output is annotated
too, to stay with the chip that has its rows of the batch; with only the layers' outputs annotated it
exchanged activations inside the layers (at a hidden size of 256, not at 32).

With a mesh of two dimensions the chips of a row share its sequences: of what attention and MLP compute inside
each has some heads or features, of what is between them some tokens, and of logits some of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch_xla
import torch_xla.distributed.spmd as xs
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_xla.distributed.spmd import XLAShardedTensor

from sweeps.text.counted import counted
from trainer.config.run import MeshConfig
from trainer.errors import ConfigError

ROWS, TENSOR = "rows", "tensor"
"""Names of the mesh's axes: of the chips that share out a batch, and of those that have the same rows."""

_RETURNING = ("o_proj", "down_proj")  # what returns a block's output takes its inputs in parts


def check(parallel: str, chips: int, mesh: MeshConfig) -> None:
    """Raise ConfigError if so many chips cannot share a run as `device.parallel` and `device.mesh` say."""
    parts, left = divmod(chips, mesh.tensor)
    if left or mesh.data not in (None, parts):
        needed = f"{mesh.data * mesh.tensor}" if mesh.data else f"a multiple of {mesh.tensor}"
        here = counted(chips, "chip shares", "chips share")
        raise ConfigError(f"{here} the run, and the mesh needs {needed}; take that many", key="device.mesh")
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


def open_mesh(chips: int, tensor: int) -> xs.Mesh:
    """Return the mesh of all chips, with two axes if `tensor` of them have the same rows."""
    shape, names = ((chips,), (ROWS,)) if tensor == 1 else ((chips // tensor, tensor), (ROWS, TENSOR))
    return xs.Mesh(np.arange(chips), shape, names)


def shard_model(model: nn.Module, mesh: xs.Mesh) -> None:
    """Shard the model's parameters; may be called again.

    A parameter that is annotated before its first use on the device arrives there as shards.
    """
    this: Any = model
    decoder, kept = this.get_decoder(), {}
    for name, module in model.named_modules():
        matrices = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim >= 2]
        returning = any(part in _RETURNING for part in name.split("."))
        for parameter in matrices:
            _shard(parameter, mesh, along=int(returning and TENSOR in mesh.axis_names))
        if matrices:
            of_tokens = returning or isinstance(module, nn.Embedding)
            kept[module] = {0: ROWS, 1 if of_tokens else -1: TENSOR}
    for module, axes in kept.items():
        if not any(isinstance(hook, Keep) for hook in module._forward_hooks.values()):
            module.register_forward_hook(Keep(mesh, axes))
    if TENSOR in mesh.axis_names and not any(isinstance(h, Keep) for h in decoder._forward_hooks.values()):
        decoder.register_forward_hook(Keep(mesh, {0: ROWS}))  # losses read all tokens
    for layer in decoder.layers:
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
                    sharding = torch_xla._XLAC._get_xla_op_sharding(parameter)
                    if sharded and sharding is not None and value.shape == parameter.shape:
                        torch_xla._XLAC._xla_mark_sharding(value, sharding)
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


class Keep:
    """Forward hook that keeps a module's output [B, …], and its gradient, sharded along these dimensions.

    A dimension that the chips do not divide, as of an odd batch, stays whole.
    """

    def __init__(self, mesh: xs.Mesh, axes: Mapping[int, str]) -> None:
        self._mesh, self._axes = mesh, axes

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return self._annotated(output)
        output.last_hidden_state = self._annotated(output.last_hidden_state)  # of a decoder
        return output

    def _annotated(self, output: Tensor) -> Tensor:
        sizes, parts = self._mesh.shape(), cast("list[str | None]", [None] * output.ndim)
        for dimension, axis in self._axes.items():
            if axis in sizes and output.shape[dimension] % sizes[axis] == 0:
                parts[dimension] = axis
        if not any(parts):
            return output
        return cast(Tensor, xs.mark_sharding_with_gradients(output, self._mesh, tuple(parts)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Keep:
        """Return itself: a student that is copied from its teacher runs on the same chips."""
        return self


def _shard(tensor: Tensor, mesh: xs.Mesh, *, along: int) -> None:
    """Shard along this dimension, or the first that all chips divide; vectors stay replicated."""
    # The tensor axis first: gathered over rows, a chip's part of a matrix is in one piece.
    axes = ROWS if TENSOR not in mesh.axis_names else (TENSOR, ROWS)
    for dimension in (along, *range(tensor.ndim)):
        if tensor.shape[dimension] % mesh.size() == 0:
            parts = tuple(axes if each == dimension else None for each in range(tensor.ndim))
            xs.mark_sharding(tensor, mesh, parts)
            return
