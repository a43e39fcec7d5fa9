"""The processes of a mesh's tensor dimension: of the same rows, each computes a part of every layer.

A block (attention, or an MLP) is split as in Megatron-LM (arXiv:1909.08053, §3): each process computes some
heads, or some features of the MLP's inside. Between the blocks, where norms and residuals are, it has some of
the tokens (arXiv:2205.05198, §4.2.2): `gather` puts the tokens together where a block reads them, and
`reduce_scatter`, where it returns its output, sums over all processes' parts and takes this one's tokens.

What is minimised is the mean of all processes' losses, and every function here has the gradient of that: the
other one is its adjoint. As FSDP takes the mean of gradients over the processes, nothing else is scaled.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh


class TensorGroup:
    """The group that this process is in.

    Args:
        mesh: its one dimension.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._name, self.rank, self.size = mesh.get_group().group_name, mesh.get_local_rank(), mesh.size()

    def part(self, size: int) -> slice:
        """Return which part of a dimension of this size is this process's; others may differ by one."""
        return slice(size * self.rank // self.size, size * (self.rank + 1) // self.size)

    def own(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the part of a dimension that is this process's, a view."""
        part = self.part(tensor.shape[dim])
        return tensor.narrow(dim, part.start, part.stop - part.start)

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """Return all processes' parts, put together along a dimension."""
        return cast(Tensor, _Gather.apply(x, dim, self))  # type: ignore[no-untyped-call] # torch has no annotation

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """Return this process's part of the sum over all processes, along a dimension that they divide."""
        return cast(Tensor, _ReduceScatter.apply(x, dim, self))  # type: ignore[no-untyped-call] # as above

    def all_sum(self, x: Tensor) -> Tensor:
        """Return the sum over the group of a tensor of which no gradient is taken."""
        return self._collective("all_reduce", x, "sum")

    def all_max(self, x: Tensor) -> Tensor:
        """Return the largest elements of the group's tensors, of which no gradient is taken."""
        return self._collective("all_reduce", x, "max")

    def gathered(self, x: Tensor, dim: int) -> Tensor:
        """Do what `gather` does, without a gradient."""
        parts = self._collective("all_gather_into_tensor", x, self.size)
        return torch.cat(parts.chunk(self.size), dim)

    def reduce_scattered(self, x: Tensor, dim: int) -> Tensor:
        """Do what `reduce_scatter` does, without a gradient."""
        parts = torch.cat(x.chunk(self.size, dim))
        return self._collective("reduce_scatter_tensor", parts, "sum", self.size)

    def _collective(self, name: str, x: Tensor, *arguments: Any) -> Tensor:
        """Return what the group's processes compute together: by operations that a compiler knows."""
        ops = torch.ops._c10d_functional
        found: Tensor = ops.wait_tensor(getattr(ops, name)(x.contiguous(), *arguments, self._name))
        return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: TensorGroup) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return group.gathered(x, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.group.reduce_scattered(grads[0], ctx.dim), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: TensorGroup) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return group.reduce_scattered(x, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.group.gathered(grads[0], ctx.dim), None, None
