"""Tensors of which each process has a part (DTensors, under FSDP) as a whole, and back again.

Called by whatever needs all of a matrix: optimizers, the saliency, gradient norms, checkpoints. All
processes have to call in the same order, as each gives its part. A plain tensor is its own whole, and nothing
is loaded or sent for it.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether other processes have the rest of it."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """All of it, plain, on every process."""
    return cast(Any, tensor).full_tensor() if is_dtensor(tensor) else tensor


def redistribute_like(place: Tensor, full: Tensor) -> Tensor:
    """This process's part of `full`, which all have, shared out as `place` is. Nothing is sent."""
    if not is_dtensor(place):
        return full
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = cast(Any, place).device_mesh, cast(Any, place).placements
    everywhere = DTensor.from_local(full.to(place.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=placements)
