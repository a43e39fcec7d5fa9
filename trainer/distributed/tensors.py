"""DTensors, which FSDP shards over processes, gathered and redistributed.

Called by whatever needs a full matrix: optimizers, the saliency, gradient norms, checkpoints. All processes
must call in the same order, as each contributes its shard. A plain tensor is returned as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor  # loads much that one process does not need


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether the tensor is sharded over processes."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather the full, plain tensor on every process."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's shard, which shares its memory with the sharded tensor."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def stacked_like(matrix_OI: Tensor, local_NOI: Tensor) -> Tensor:
    """Return a stack [N, O, I] of matrices sharded like this one, of which `local_NOI` has the shards."""
    if not is_dtensor(matrix_OI):
        return local_NOI
    from torch.distributed.tensor import DTensor, Shard

    placements = [Shard(each.dim + 1) if isinstance(each, Shard) else each for each in matrix_OI.placements]
    shape = torch.Size((len(local_NOI), *matrix_OI.shape))
    stride = (matrix_OI.shape[0] * matrix_OI.shape[1], matrix_OI.shape[1], 1)
    return DTensor.from_local(
        local_NOI, matrix_OI.device_mesh, placements, run_check=False, shape=shape, stride=stride
    )


def redistribute_like(target: Tensor, full: Tensor) -> Tensor:
    """Shard `full`, which every process has, like `target`, without communication."""
    if not is_dtensor(target):
        return full
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = target.device_mesh, target.placements
    replicated = DTensor.from_local(full.to(target.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=placements)
