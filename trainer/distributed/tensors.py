"""DTensors, which FSDP shards over processes, gathered and redistributed.

Called by whatever needs a full matrix: optimizers, the saliency, gradient norms, checkpoints. All processes
must call in the same order, as each contributes its shard. A plain tensor is returned as it is.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Return whether the tensor is sharded over processes."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather the full, plain tensor on every process."""
    return cast(Any, tensor).full_tensor() if is_dtensor(tensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this process's shard, which shares its memory with the sharded tensor."""
    return cast(Any, tensor).to_local() if is_dtensor(tensor) else tensor


def stacked_like(matrix_OI: Tensor, local_NOI: Tensor) -> Tensor:
    """Return a stack [N, O, I] of matrices sharded like this one, of which `local_NOI` has the shards."""
    if not is_dtensor(matrix_OI):
        return local_NOI
    from torch.distributed.tensor import DTensor, Shard

    one: Any = matrix_OI
    placements = [Shard(each.dim + 1) if each.is_shard() else each for each in one.placements]
    shape = torch.Size((len(local_NOI), *one.shape))
    stride = (one.shape[0] * one.shape[1], one.shape[1], 1)
    return DTensor.from_local(
        local_NOI, one.device_mesh, placements, run_check=False, shape=shape, stride=stride
    )


def redistribute_like(target: Tensor, full: Tensor) -> Tensor:
    """Shard `full`, which every process has, like `target`, without communication."""
    if not is_dtensor(target):
        return full
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = cast(Any, target).device_mesh, cast(Any, target).placements
    replicated = DTensor.from_local(full.to(target.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=placements)
