"""The processes of a mesh's tensor dimension: of the same rows, each computes a part of every layer.

A block (attention, or an MLP) is split as in Megatron-LM (arXiv:1909.08053, §3): each process computes some
heads, or some features of the MLP's inside, and the sum of all processes' results is the block's output. That
takes two conjugate functions: `enter` where the block reads its input, `leave` where it returns its output.

Within a block gradients are `size` times too large: FSDP takes the mean over all processes, of which each has
only the gradient of its own part, so that the mean becomes their sum. Outside of blocks all processes of a
group have equal values and gradients, and the mean of these is right as it is.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


class TensorGroup:
    """The group that this process is in.

    Args:
        mesh: its one dimension.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._group, self.rank, self.size = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    def own(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the part of a dimension that is this process's, a view."""
        size = tensor.shape[dim] // self.size
        return tensor.narrow(dim, self.rank * size, size)

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of a block, which is equal in all processes, and so will its gradient be."""
        return cast(Tensor, _Enter.apply(x, self))  # type: ignore[no-untyped-call] # torch has no annotation

    def leave(self, x: Tensor) -> Tensor:
        """Return the sum of all processes' results, as the output of a block."""
        return cast(Tensor, _Leave.apply(x, self))  # type: ignore[no-untyped-call] # as above

    def gather(self, x: Tensor) -> Tensor:
        """Return the last dimension put together from all processes' parts, for a loss that all compute."""
        return cast(Tensor, _Gather.apply(x, self))  # type: ignore[no-untyped-call] # as above

    def sum_(self, x: Tensor) -> Tensor:
        """Replace a tensor, of which no gradient is taken, by the sum over the group."""
        dist.all_reduce(x, group=self._group)
        return x

    def max_(self, x: Tensor) -> Tensor:
        """Replace a tensor, of which no gradient is taken, by the largest of the group's."""
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self._group)
        return x


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # Each has the gradient by way of its own part, `size` times too large.
        summed = ctx.group.sum_(grads[0].clone(memory_format=torch.contiguous_format))
        return summed.div_(ctx.group.size), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return group.sum_(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.group.size, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size)]
        dist.all_gather(parts, x.contiguous(), group=group._group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.group.own(grads[0], -1) * ctx.group.size, None
