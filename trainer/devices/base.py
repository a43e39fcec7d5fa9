"""Devices behind one interface; a CPU and CUDA, which need no more. Opened by `device.open_device`.

Stages, losses and the loop ask a `Device` to move, to cast and to measure; none of them names a backend.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.devices import sdpa
from trainer.distributed.ranks import ALONE, Ranks

_STATM, _MEMINFO = Path("/proc/self/statm"), Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Of both versions: the file of a container's limit, that of its use, and the entry of its file pages.
_CONTAINER = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


MEMORY_COUNTS = ("used_bytes", "free_bytes", "total_bytes", "peak_bytes", "reserved_bytes")


@dataclass(frozen=True, kw_only=True)
class Device:
    """An opened device.

    Args:
        dtype: of matrix products (autocast); master weights keep their own.
        name: of the processor, for the result and for its price.
        attention: transformers' attention implementation that is fastest here.
        eager_below: tokens of a sequence below which eager attention is faster than that.
        compile: compile training steps: each as one graph, or its decoder `layers`.
        recompute: recompute activations of layers in the backward pass.
        hold_weights: keep the quantised weights of all layers over the micro-batches of a step.
        teacher: where the frozen teacher's decoder layers are: on the `device`, in memory of the `host`, or
            `sharded` over the processes.
        ranks: the processes that share the run; this is the device of one of them.
    """

    torch_device: torch.device
    dtype: torch.dtype
    name: str
    attention: str
    eager_below: int = 0
    compile: bool | Literal["layers"] = False
    recompute: bool = False
    hold_weights: bool = True
    teacher: Literal["device", "host", "sharded"] = "device"
    ranks: Ranks = ALONE

    checks_before_update: ClassVar[bool] = True
    """Whether a step's loss and gradient norm are checked before the optimizer's update.

    On a device that `reads_late` a flag on the device skips the update, where the optimizer can do that.
    """

    @property
    def kind(self) -> str:
        """Return `cpu`, `cuda` or `xla`."""
        return self.torch_device.type

    @property
    def chips(self) -> int:
        """Return the number of chips that share each batch in this process."""
        return 1

    @property
    def data_chips(self) -> int:
        """Return the number of parts that they share its rows out in: fewer, if some have the same rows."""
        return self.chips

    @property
    def reads_late(self) -> bool:
        """Return whether a step's results are read once the next step is submitted, so that none waits."""
        return self.kind == "cuda"

    @property
    def compiles(self) -> bool:
        """Return whether the first step of a stage is compiled, which may take far longer than the others."""
        return bool(self.compile)

    def attention_for(self, tokens: int) -> str:
        """Return the attention implementation for sequences of so many tokens, with which to build models."""
        if tokens < self.eager_below:
            return "eager"
        return sdpa.register() if self.attention == sdpa.NAME else self.attention

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context with matrix products in `dtype`."""
        return torch.autocast(self.kind, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def place(self, ids: Tensor) -> Tensor:
        """Return a batch [B, T], moved here."""
        if self.kind == "cuda":
            ids = ids.pin_memory()  # a copy from pageable memory would wait for the running step
        return ids.to(self.torch_device, non_blocking=True)

    def place_micro_batches(self, ids_BT: Tensor, size: int | None) -> tuple[Tensor, ...]:
        """Return a batch [B, T], moved here in micro-batches [size, T]; None: in one."""
        return micro_batches(self.place(ids_BT), size)

    def move(self, model: nn.Module) -> nn.Module:
        """Return the model, moved here."""
        return model.to(self.torch_device)

    def shard(self, model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> None:
        """Shard weights and optimizer state over the chips of this process, if the run asks for that.

        Call it again after either was created or restored.
        """

    def reads(self, step: int, of: int) -> bool:
        """Return whether the results of the one-based `step` of `of` are read before the next step.

        Otherwise they are read later: see `reads_late`, or together with those of a later step.
        """
        return not self.reads_late or step in (1, of)

    def reading_every(self, steps: int) -> Device:
        """Return the same device, which reads results at least every so many steps."""
        return self

    def checkpointing(self) -> Callable[..., Any] | None:
        """Return this device's activation checkpointing function; None: torch's own."""
        return None

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors on the CPU, by one transfer where that matters."""
        return [tensor.cpu() for tensor in tensors]

    def begin_fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a tensor to the CPU, without waiting.

        Returns:
            A function that waits for the copy, not for work submitted since, and returns it.
        """
        cuda = self.kind == "cuda"
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=cuda)
        copy.copy_(tensor, non_blocking=True)
        if not cuda:
            return lambda: copy
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no annotation here
        copied.record(torch.cuda.current_stream(self.torch_device))

        def wait() -> Tensor:
            copied.synchronize()
            return copy

        return wait

    def end_step(self) -> None:
        """Start a step that was recorded, on a device that records them."""

    def separate_graph(self) -> AbstractContextManager[Any]:
        """Return a context for work that is not part of every step, recorded as a graph of its own."""
        return nullcontext()

    def compile_seconds(self) -> float:
        """Return the seconds of compilation since the device was opened, where they can be told apart."""
        return 0.0

    def close(self, within_s: float) -> None:
        """Publish what others can use of the run, such as compiled graphs, for `within_s` seconds at most."""

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch_device)

    def memory_bytes(self) -> int:
        """Return the bytes allocated now: on the device, or by the process on a CPU."""
        if self.kind == "cuda":
            return torch.cuda.memory_allocated(self.torch_device)
        if _STATM.exists():
            return int(_STATM.read_text().split()[1]) * resource.getpagesize()
        return self.peak_memory_bytes()

    def reserved_memory_bytes(self) -> int | None:
        """Return the bytes that the allocator holds; None on a CPU, where `memory_bytes` counts them."""
        return torch.cuda.memory_reserved(self.torch_device) if self.kind == "cuda" else None

    def reset_peak_memory(self) -> None:
        """Restart the count of `peak_memory_bytes`; a CPU process cannot."""
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peak_memory_bytes(self) -> int:
        """Return the most bytes allocated since `reset_peak_memory`; on a CPU, since the process started."""
        if self.kind == "cuda":
            return torch.cuda.max_memory_allocated(self.torch_device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def free_memory_bytes(self) -> int | None:
        """Return the bytes that a run may allocate, or None if unknown.

        On a CPU that is what the kernel calls available, and at most what the container has left.
        """
        if self.kind == "cuda":
            return int(torch.cuda.mem_get_info(self.torch_device)[0])
        return host_memory("MemAvailable")

    def memory_counts(self) -> dict[str, int | None]:
        """Return all `MEMORY_COUNTS`, without waiting for the device; None where one is not counted.

        Used is what this process's tensors take (on a CPU, the process), reserved what the allocator holds.
        """
        cuda = self.kind == "cuda"
        total = torch.cuda.mem_get_info(self.torch_device)[1] if cuda else host_memory("MemTotal")
        peak, reserved = self.peak_memory_bytes(), self.reserved_memory_bytes()
        counts = (self.memory_bytes(), self.free_memory_bytes(), total, peak, reserved)
        return dict(zip(MEMORY_COUNTS, counts, strict=True))

    def recorded_graph(self, results: Sequence[Tensor]) -> str:
        """Return the text of the recorded graph, not yet run, of these tensors; "" if there is none."""
        return ""

    def counters(self) -> dict[str, float]:
        # Not imported for this: without a compilation it is not loaded.
        dynamo = sys.modules.get("torch._dynamo.utils")
        compiled = {"compiled_graphs": dynamo.counters["stats"]["unique_graphs"] if dynamo else 0}
        if self.kind == "cuda":
            stats = torch.cuda.memory_stats(self.torch_device)
            names = {"num_alloc_retries": "allocation_retries", "num_ooms": "out_of_memory"}
            names |= {"segment.all.current": "segments", "allocation.all.allocated": "allocations"}
            return compiled | {ours: stats.get(theirs, 0) for theirs, ours in names.items()}
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return compiled | {"minor_page_faults": usage.ru_minflt, "major_page_faults": usage.ru_majflt}


def micro_batches(ids_BT: Tensor, size: int | None) -> tuple[Tensor, ...]:
    """Return a batch [B, T] in micro-batches [size, T]; None: in one."""
    return (ids_BT,) if size is None else ids_BT.chunk(len(ids_BT) // size)


def host_memory(name: str) -> int | None:
    """Return an entry of the kernel's memory in bytes, at most the container's; None if unknown."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        lines = []
    known = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")]
    for limit, usage, file_pages in _CONTAINER:
        with suppress(OSError, ValueError, KeyError):  # no such file; or "max"
            known.append(most := int((_CGROUP / limit).read_text()))
            if name == "MemAvailable":  # less what its processes occupy, but for pages that the kernel drops
                used = int((_CGROUP / usage).read_text())
                stat = (_CGROUP / usage).with_name("memory.stat").read_text().splitlines()
                known.append(max(0, most - used + int(dict(map(str.split, stat))[file_pages])))
    return min(known, default=None)
