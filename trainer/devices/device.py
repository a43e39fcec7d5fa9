"""The one place that knows what hardware there is. Opened by `pipeline` and `teacher`.

Stages, losses and the loop ask a `Device` to place, to cast and to measure; none of them names a backend.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.config import DeviceConfig
from trainer.devices import host_memory, tpu_versions
from trainer.distributed import tpu_host
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import MachineError

_STATM = Path("/proc/self/statm")
_CPUINFO = Path("/proc/cpuinfo")
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # two of x86, one of ARM
CPU_BFLOAT16_VARIABLE = "STAGESWEEP_CPU_BFLOAT16"


@dataclass(frozen=True, kw_only=True)
class MemoryCounts:
    """Bytes of a device's memory; None is what nobody counts there.

    Args:
        used: by this process's tensors; on a CPU, by the process.
        free: to anybody.
        total: that the device has.
        peak: the most that was used, see `Device.peak_memory_bytes`.
        reserved: by the allocator, used or not.
    """

    used_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """An opened device.

    Args:
        torch_device: where tensors live.
        dtype: of matrix products (autocast); master weights keep their own.
        name: the processor's name, for the result and for its price.
        attention: transformers' attention implementation that is fastest here.
        compile: whether training steps are compiled.
        recompute: whether layers recompute their activations in the backward pass.
        ranks: the processes that share the run; this device is the one of this process.
    """

    torch_device: torch.device
    dtype: torch.dtype
    name: str
    attention: str
    compile: bool = False
    recompute: bool = False
    ranks: Ranks = ALONE

    looks_before_it_updates: ClassVar[bool] = True
    """Whether a step's loss and gradient are read before the optimizer uses them."""

    @property
    def kind(self) -> str:
        """`cpu`, `cuda` or `xla`."""
        return self.torch_device.type

    @property
    def chips(self) -> int:
        """That share each batch in this process."""
        return 1

    @property
    def compiles(self) -> bool:
        """Whether the first step of a stage is compiled, which may take many times as long as the others."""
        return self.compile

    def autocast(self) -> AbstractContextManager[Any]:
        """Runs what is inside with matrix products in `dtype`."""
        return torch.autocast(self.kind, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def place(self, ids: Tensor) -> Tensor:
        """A batch, moved here."""
        if self.kind == "cuda":
            ids = ids.pin_memory()  # from pageable memory the copy would wait for the step that is under way
        return ids.to(self.torch_device, non_blocking=True)

    def place_parts(self, ids_BT: Tensor, size: int | None) -> tuple[Tensor, ...]:
        """A batch [B, T], moved here in micro-batches [b, T] of `size` sequences, which divides B; None: in
        one."""
        return micro_batches(self.place(ids_BT), size)

    def move(self, model: nn.Module) -> nn.Module:
        """The model, moved here."""
        return model.to(self.torch_device)

    def share_out(self, model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> None:
        """Leaves each chip of this process its part alone of the weights, and of the state of their
        optimizers, where the run says so. To be called when they were made, or set from elsewhere."""

    def reads(self, step: int, of: int) -> bool:
        """Whether what the one-based `step` of `of` came to is read before the next one. Where it is not, it
        is read together with a later one's."""
        return True

    def reading_every(self, steps: int) -> Device:
        """The same device, which reads what steps came to at least every so many steps."""
        return self

    def checkpointing(self) -> Callable[..., Any] | None:
        """What recomputes a layer's inside here; None: torch's own."""
        return None

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors on the CPU, by one transfer where that matters."""
        return [tensor.cpu() for tensor in tensors]

    def end_step(self) -> None:
        """A step is complete: its clock may be read."""
        self.synchronize()

    def apart(self) -> AbstractContextManager[Any]:
        """Around work that is not part of every step: what is recorded inside is a graph of its own."""
        return nullcontext()

    def compile_seconds(self) -> float:
        """Of a compiler since the device was opened, where its time can be told from the training's."""
        return 0.0

    def close(self, within_s: float) -> None:
        """The run is over: hands over what others shall find of it, for so long at most."""

    def synchronize(self) -> None:
        """Waits for everything that was started, so that a clock read after it tells the truth."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch_device)

    def memory_bytes(self) -> int:
        """What is allocated now: on the device, or by the process on a CPU."""
        if self.kind == "cuda":
            return torch.cuda.memory_allocated(self.torch_device)
        if _STATM.exists():
            return int(_STATM.read_text().split()[1]) * resource.getpagesize()
        return self.peak_memory_bytes()

    def reserved_memory_bytes(self) -> int | None:
        """What the allocator holds, used or not; None on a CPU, where `memory_bytes` is that already."""
        return torch.cuda.memory_reserved(self.torch_device) if self.kind == "cuda" else None

    def reset_peak_memory(self) -> None:
        """`peak_memory_bytes` counts from here; a CPU process cannot reset its own."""
        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peak_memory_bytes(self) -> int:
        """The most that was allocated since `reset_peak_memory`; on a CPU, since the process started."""
        if self.kind == "cuda":
            return torch.cuda.max_memory_allocated(self.torch_device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def free_memory_bytes(self) -> int | None:
        """What a run may take; on a CPU what the kernel calls available, and no more than the container's
        limit. None where nobody tells."""
        if self.kind == "cuda":
            return int(torch.cuda.mem_get_info(self.torch_device)[0])
        return host_memory.available()

    def memory_counts(self) -> MemoryCounts:
        """All that is counted, now, without waiting for the device."""
        cuda = self.kind == "cuda"
        return MemoryCounts(
            used_bytes=self.memory_bytes(),
            free_bytes=self.free_memory_bytes(),
            total_bytes=torch.cuda.mem_get_info(self.torch_device)[1] if cuda else host_memory.total(),
            peak_bytes=self.peak_memory_bytes(),
            reserved_bytes=self.reserved_memory_bytes(),
        )

    def recorded_graph(self, results: Sequence[Tensor]) -> str:
        """The text of what is recorded, and not yet run, to get to these tensors; "" where nothing is."""
        return ""

    def counters(self) -> dict[str, float]:
        """What the allocator and the compiler count, since the process started."""
        # Not imported for this: what was not compiled was not loaded.
        dynamo = sys.modules.get("torch._dynamo.utils")
        compiled = {"compiled_graphs": dynamo.counters["stats"]["unique_graphs"] if dynamo else 0}
        if self.kind == "cuda":
            told = torch.cuda.memory_stats(self.torch_device)
            names = {"num_alloc_retries": "allocation_retries", "num_ooms": "out_of_memory"}
            names |= {"segment.all.current": "segments", "allocation.all.allocated": "allocations"}
            return compiled | {ours: told.get(theirs, 0) for theirs, ours in names.items()}
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return compiled | {"minor_page_faults": usage.ru_minflt, "major_page_faults": usage.ru_majflt}


def open_device(config: DeviceConfig) -> Device:
    """The device that the configuration asks for; never another one in silence. Raises ConfigError."""
    torch.set_num_threads(config.threads)
    if tpu_host.meant(config.type):
        tpu_versions.require(tpu_versions.installed(), tpu=tpu_host.on_tpu())
        from trainer.devices.xla import open_xla  # torch_xla, which others need not have

        return open_xla(config)
    has_cuda = torch.cuda.is_available()
    if config.type == "cuda" and not has_cuda:
        raise MachineError("there is no CUDA device here; write device=auto or device=cpu", key="device.type")
    if config.type == "cpu" or not has_cuda:
        torch.set_float32_matmul_precision("highest")  # oneDNN would take less for float32, where a CPU can
        # Measured on 2 cores at 1M parameters: eager attention is 1.5x faster than SDPA in bfloat16.
        return Device(
            torch_device=torch.device("cpu"),
            dtype=dtype_of(config, torch.device("cpu")),
            name=_cpu_name(),
            attention="eager",
            compile=config.compile is True,
            recompute=config.recompute,
        )
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda", torch.cuda.current_device())
    return Device(
        torch_device=device,
        dtype=dtype_of(config, device),
        name=torch.cuda.get_device_name(device),
        attention="sdpa",
        compile=config.compile is not False and config.parallel == "none",
        recompute=config.recompute,
    )


def micro_batches(ids_BT: Tensor, size: int | None) -> tuple[Tensor, ...]:
    """A batch in parts [b, T] of `size` sequences, which divides B; None: in one."""
    return (ids_BT,) if size is None else ids_BT.chunk(len(ids_BT) // size)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products in bfloat16."""
    if device.type == "xla":
        from trainer.devices.xla import on_tpu

        return on_tpu()
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return cpu_multiplies_bfloat16()


def multiplies_float8(device: torch.device) -> bool:
    """Whether the device has instructions for products of 8-bit floats: NVIDIA's Ada, Hopper and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def cpu_multiplies_bfloat16(cpuinfo: Path | None = None, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the processor has instructions for products in bfloat16.

    A processor without them gets the same numbers out of torch 10 to 80 times more slowly than float32.
    STAGESWEEP_CPU_BFLOAT16 (0 or 1) in the environment overrules the processor: tests set it to see on one
    machine what another one would do. It is read here and nowhere else.

    Args:
        cpuinfo: with the processor's flags; a file that is not there has none. None: the kernel's.

    Raises:
        ConfigError: the variable has another value.
    """
    forced = environment.get(CPU_BFLOAT16_VARIABLE, "")
    if forced not in ("", "0", "1"):
        raise MachineError(
            f"{CPU_BFLOAT16_VARIABLE} is {forced!r} in the environment; write 0 (the processor is taken to "
            "have no instructions for bfloat16) or 1 (it has), or unset it"
        )
    if forced:
        return forced == "1"
    try:
        words = (cpuinfo or _CPUINFO).read_text().split()
    except OSError:
        return False
    return not _BFLOAT16_FLAGS.isdisjoint(words)


def auto_dtype(device: torch.device) -> torch.dtype:
    """Return what `auto` means for products: float32 on every CPU, so that all CPUs of a fleet compute in the
    same precision, and elsewhere bfloat16 where the device has instructions for it."""
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32


def dtype_of(config: DeviceConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products on that device. Raises ConfigError."""
    if config.dtype == "auto":
        return auto_dtype(device)
    if config.dtype == "fastest":
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    return getattr(torch, config.dtype)  # type: ignore[no-any-return] # the configuration names torch's own


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without torch's: `float32`."""
    return str(dtype).removeprefix("torch.")


def _cpu_name() -> str:
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {models[0] if models else platform.processor() or platform.machine()}"
