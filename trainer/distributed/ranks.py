"""The processes of one run and what they agree on. Opened by `trainer.__main__`, carried by `Device`.

Every method that takes or gives something between processes must be called by all of them, in the same
order. Alone, none of them sends anything.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config import Config
from trainer.distributed.launched import Launched, among_processes

Parallel = Literal["none", "ddp", "fsdp"]
T = TypeVar("T")

# Processes come to their first exchange at very different times where one builds what the others wait for,
# and to every one after it within a step or a checkpoint.
TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """One process of `world`, with the way in which they share the training."""

    rank: int = 0
    world: int = 1
    parallel: Parallel = "none"

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self.parallel == "none"

    def any(self, flag: bool) -> bool:
        """Whether it is true of any process."""
        return self.all_reduce_max(float(flag)) > 0

    def decided(self, flag: bool) -> bool:
        """Whether it is true of the first process, whose clock and disk decide."""
        return self.any(flag and self.first)

    def all_reduce_max(self, value: float) -> float:
        """The largest of all processes' values."""
        if self.alone:
            return value
        agreed = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        return agreed.item()

    def broadcast(self, value: T) -> T:
        """What the first process says, on all of them. Plain values only."""
        if self.alone:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        if self.alone:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value] # all are filled in

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over processes of a tensor that each has one of."""
        if self.alone:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.world

    def all_reduce_max_(self, tensors: Sequence[Tensor]) -> None:
        """Sets each number of 1-D tensors of one kind to the largest that any process has there."""
        if not self.alone:
            largest = torch.cat(list(tensors))
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            for tensor, found in zip(tensors, torch.split(largest, [len(t) for t in tensors]), strict=True):
                tensor.copy_(found)

    def wait(self) -> None:
        """Until all are here."""
        self.any(False)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No exchange comes after this. After an error none is waited for: the others may be gone."""
        if not self.alone and error is None:
            dist.destroy_process_group()


ALONE = Ranks()


def choose_device(config: Config, place: Launched) -> None:
    """Makes the CUDA device current that is this process's, where there are such."""
    if among_processes(config) and _on_cuda(config):
        torch.cuda.set_device(place.local_rank)


def join(config: Config, place: Launched) -> Ranks:
    """The process takes its place among the others. Waits until all have come."""
    if not among_processes(config):
        return ALONE
    os.environ["NCCL_DEBUG"] = "WARN"  # an inherited INFO writes tens of gigabytes in a long run
    # Flags and numbers are exchanged as CPU tensors: nothing waits for a device because of them.
    dist.init_process_group("cpu:gloo,cuda:nccl" if _on_cuda(config) else "gloo", timeout=TIMEOUT)
    return Ranks(rank=place.rank, world=place.world, parallel=config.device.parallel)


def _on_cuda(config: Config) -> bool:
    return config.device.type != "cpu" and torch.cuda.is_available()
