"""Checkpoints that each process writes its own part of, by torch.distributed.checkpoint (DCP).

Used by `writer` and `parts`. DCP plans who writes and who reads which part of each tensor, so that a
checkpoint may be read on any other mesh, or by one process, and each reads no more than it needs. Its usual
format has pickles, which a checkpoint from a bucket must not have; this is its other one, safetensors, whose
headers say where in a tensor a part begins:

    shard-00001-model-00001-of-00001.safetensors      the first process's part of all tensors, by PART/NAME

They are ordinary files beside `state.json`, which has their sizes and digests and without which there is no
checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import save
from torch.futures import Future

from trainer.distributed.ranks import ALONE, TIMEOUT, Ranks
from trainer.distributed.tensors import is_dtensor

T = TypeVar("T")


class SaveGroup:
    """The processes that write one checkpoint together, each in a thread of its own.

    Its collectives go through a process group of their own, as training goes on meanwhile. All processes must
    make one at the same time. `ALONE_SAVING` is of a process that writes whole files.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.first, self.ranks = ranks.first, ranks
        self.process_group = None if ranks.alone else dist.new_group(backend="gloo", timeout=TIMEOUT)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Return what the action returns in each process, in the order of their ranks.

        Raises:
            OSError: the action failed in another process, with its message.
        """
        if self.process_group is None:
            return [action()]
        result: T | None = None
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:  # noqa: BLE001 - the others must know, or they would wait for this process
            failure = error
        gathered: list[Any] = [None] * self.ranks.world
        dist.all_gather_object(gathered, (result, failure and problem(failure)), group=self.process_group)
        if failure is not None:
            raise failure
        for rank, (_, message) in enumerate(gathered):
            if message is not None:
                raise OSError(f"in process {rank}: {message}")
        return [value for value, _ in gathered]

    def from_first(self, action: Callable[[], T]) -> T:
        """Return what the action returns in the first process, which alone calls it. Raises as `gather`."""
        results: list[Any] = self.gather(lambda: action() if self.first else None)
        return results[0]  # type: ignore[no-any-return] # of the first process


ALONE_SAVING = SaveGroup(ALONE)


def problem(error: BaseException) -> str:
    """Return an error's message in one line; the system's, where it has one."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


def own_share(tensors: Mapping[str, Tensor], ranks: Ranks, shared_out: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors that this process writes, wholly or its part of.

    Of DTensors each process has a part. Plain tensors are whole in all processes: the first writes them, but
    for the large ones, which all share out by size.

    Args:
        tensors: by PART/NAME; the same names in all processes.
        shared_out: parts of the run whose plain tensors are equal in all processes.
    """
    loads = [0] * ranks.world
    own = {}
    for name, tensor in sorted(tensors.items(), key=lambda each: (-each[1].nbytes, each[0])):
        writes = is_dtensor(tensor)
        if not writes:
            writer = loads.index(min(loads)) if name.partition("/")[0] in shared_out else 0
            loads[writer] += tensor.nbytes
            writes = writer == ranks.rank
        if writes:
            own[name] = tensor
    return own


def save_shard(folder: Path, tensors: Mapping[str, Tensor], group: SaveGroup) -> list[Path]:
    """Write this process's part of a checkpoint into the folder, and return the files that it wrote.

    All processes of the group call it. A tensor is written from where it is: none is copied.

    Args:
        tensors: of `own_share`, copied to the CPU.

    Raises:
        OSError: a disk refuses it, in any of the processes.
    """
    writer = _ShardWriter(folder)
    try:
        # The plan that they make together shows that every element of a DTensor is written once.
        save(dict(tensors), storage_writer=writer, process_group=group.process_group)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        where = "" if rank == group.ranks.rank else f"in process {rank}: "
        raise OSError(f"{where}{problem(cause)}") from cause
    return writer.written


class _ShardWriter(FileSystemWriter):
    """DCP's writer, with files of safetensors. Its own writer of these makes all bytes before it writes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self.written: list[Path] = []

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=number) for number, plan in enumerate(plans, start=1)]

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Write no file of metadata, which would be a pickle: the headers have it."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[Any]]:
        tensors: dict[str, Tensor] = {}
        offsets: dict[str, Any] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if not isinstance(data, Tensor) or item.tensor_data is None:
                raise TypeError(f"{item.index.fqn} is a {type(data).__name__}, not a tensor")
            if data.numel() or not item.tensor_data.size.numel():  # of few rows some processes have none
                tensors[item.index.fqn] = data.detach()
                offsets[item.index.fqn] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
        if tensors:
            path = self._folder / f"shard-{plan.storage_data:05d}-model-00001-of-00001.safetensors"
            about = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
            save_file(tensors, path, metadata=about)
            self.written.append(path)
        done: Future[list[Any]] = Future()
        done.set_result([])
        return done


def meta_tensors(folder: Path) -> dict[str, Tensor]:
    """Return an empty tensor on the meta device for each that a checkpoint has, by PART/NAME.

    Raises:
        OSError: a file cannot be read.
        SafetensorError: a file is damaged.
    """
    known = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name: torch.empty(each.size, dtype=each.properties.dtype, device="meta")
        for name, each in known.items()
        if isinstance(each, TensorStorageMetadata)
    }


@torch.no_grad()
def load(folder: Path, targets: Mapping[str, Tensor]) -> None:
    """Read tensors of a checkpoint into those given, of which each process may have a part on any mesh.

    No process waits for another. Raises as `meta_tensors` does.

    Args:
        targets: by PART/NAME, of the saved shapes and dtypes.
    """
    reader, planner = HuggingFaceStorageReader(str(folder)), DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(dict(targets), metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
