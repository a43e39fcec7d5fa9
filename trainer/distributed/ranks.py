"""The processes of one run and their collectives. Opened by `trainer.__main__`, carried by `Device`.

All processes must call the collectives, in the same order. In a single process they communicate nothing.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sweeps.text.counted import counted
from trainer.config import Config
from trainer.distributed.launched import KEY, LOCAL_WORLD, Launched, is_distributed
from trainer.errors import MachineError, TrainerError

# torch 2.13 renames this function, and warns of the old name.
_NAMES = ("all_gather_single", "all_gather_into_tensor")
_all_gather_single: Callable[..., Any] = next(getattr(dist, name) for name in _NAMES if hasattr(dist, name))

Parallel = Literal["none", "ddp", "fsdp"]
T = TypeVar("T")

# Processes reach their first collective at very different times, as one builds what the others wait for, and
# every later one within a step or a checkpoint.
TIMEOUT = datetime.timedelta(minutes=30)

# torch raises DistBackendError for all that NCCL refuses, such as one device for two processes.
_LOST = (dist.DistNetworkError, dist.DistStoreError)
_GLOO = "gloo/transport"  # in its plain RuntimeErrors
_LOST_PHRASES = (_GLOO, "ncclRemoteError", "onnection closed by", "crash on rank 0")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """One process of `world`, and the strategy by which they share the training.

    Args:
        tensor: number of successive processes that have the same rows of a batch, and split the layers.
        hosts: number of machines that the processes are on.
    """

    rank: int = 0
    world: int = 1
    parallel: Parallel = "none"
    tensor: int = 1
    hosts: int = 1

    @property
    def data_rank(self) -> int:
        """Return which part of each batch this process computes."""
        return self.rank // self.tensor

    @property
    def data_world(self) -> int:
        """Return the number of parts of each batch."""
        return self.world // self.tensor

    @property
    def first(self) -> bool:
        """Return whether this is the process that writes files and logs."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Return whether this process trains alone."""
        return self.parallel == "none"

    def any(self, flag: bool) -> bool:
        return self.all_reduce_max(float(flag)) > 0

    def decided_by_first(self, flag: bool) -> bool:
        """Return the flag of the first process, whose clock and disk decide."""
        return self.any(flag and self.first)

    def all_reduce_max(self, value: float) -> float:
        """Return the largest of all processes' values."""
        if self.alone:
            return value
        agreed = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        return agreed.item()

    def broadcast(self, value: T) -> T:
        """Return the first process's value, which must be picklable."""
        if self.alone:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""
        if self.alone:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value] # all are filled in

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean over processes of a tensor that each of them has."""
        if self.alone:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.world

    def shared(self, function: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        """Return `function(batch)`, of which each process computes its share of the rows.

        Args:
            function: of any number of rows; a row's result has its shape and does not depend on the others.
            batch: [N, …], the same in every process.
        """
        if self.alone:
            return function(batch)
        share = -(-len(batch) // self.world)
        own = batch[self.rank * share : (self.rank + 1) * share]
        if missing := share - len(own):
            own = torch.cat([own, own.new_zeros(missing, *own.shape[1:])])
        own = function(own).contiguous()
        rows = own.new_empty(self.world * share, *own.shape[1:])
        # As bytes, since not every backend knows every dtype.
        _all_gather_single(rows.view(torch.uint8), own.view(torch.uint8))
        return rows[: len(batch)]

    def all_reduce_max_(self, tensors: Sequence[Tensor]) -> None:
        """Set each element of 1-D tensors of one dtype to the largest over all processes, in place."""
        if not self.alone:
            largest = torch.cat(list(tensors))
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            for tensor, found in zip(tensors, torch.split(largest, [len(t) for t in tensors]), strict=True):
                tensor.copy_(found)

    def barrier(self) -> None:
        self.any(False)

    def leave(self) -> None:
        """Leave the process group together: the last collective."""
        if not self.alone:
            self.barrier()
            dist.destroy_process_group()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave the process group; after an error without waiting, as the others may be gone."""
        if not self.alone and error is None and dist.is_initialized():
            dist.destroy_process_group()


ALONE = Ranks()


def choose_device(config: Config, process: Launched) -> None:
    """Make this process's CUDA device the current one, if it has one.

    Raises:
        MachineError: this machine has fewer devices than processes.
    """
    if not (is_distributed(config) and _on_cuda(config)):
        return
    # All refuse alike what the launcher has said. Where it has not, they may be on several machines.
    needed = process.local_world if LOCAL_WORLD in os.environ else process.local_rank + 1
    if needed > (devices := torch.cuda.device_count()):
        raise MachineError(
            f"{needed} processes were started, which see {counted(devices, 'CUDA device')} here; start that "
            "many, or show them more by CUDA_VISIBLE_DEVICES",
            key=KEY,
        )
    torch.cuda.set_device(process.local_rank)


def join(config: Config, process: Launched) -> Ranks:
    """Join the process group of the run, which waits for all processes."""
    if not is_distributed(config):
        return ALONE
    os.environ["NCCL_DEBUG"] = "WARN"  # an inherited INFO writes tens of gigabytes in a long run
    # Flags and numbers are exchanged as CPU tensors, which never wait for the device.
    dist.init_process_group("cpu:gloo,cuda:nccl" if _on_cuda(config) else "gloo", timeout=TIMEOUT)
    return Ranks(
        rank=process.rank,
        world=process.world,
        parallel=config.device.parallel,
        tensor=config.device.mesh.tensor,
        hosts=process.hosts,
    )


def _on_cuda(config: Config) -> bool:
    return config.device.type != "cpu" and torch.cuda.is_available()


def is_collective_error(error: Exception) -> bool:
    """Return whether a backend of collectives has raised the error."""
    return isinstance(error, dist.DistError) or _GLOO in str(error)


@contextmanager
def explain_lost_process(ranks: Ranks) -> Iterator[None]:
    """Raise TrainerError in place of what a backend says, such as when another process of the run is gone."""
    try:
        yield
    except RuntimeError as error:
        if ranks.alone or not is_collective_error(error):
            raise
        if not (isinstance(error, _LOST) or any(phrase in str(error) for phrase in _LOST_PHRASES)):
            lines = [line.strip() for line in str(error).splitlines()]
            reason = next(
                (line for line in reversed(lines) if line and not line.startswith("Last error:")), ""
            )
            raise TrainerError(
                f"the processes cannot exchange tensors: {reason or type(error).__name__}"
            ) from error
        raise TrainerError(
            "the connection to another process of this run was lost: it was killed, or ended with an error "
            "of its own; the same command goes on from the last checkpoint"
        ) from error
