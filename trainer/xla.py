"""The XLA device: a TPU through torch_xla, or XLA's own CPU. The one file that imports torch_xla; opened by
`device.open_device` for those who ask for it, and by nobody else.

Operations are recorded, and run when `torch_xla.sync` says so. A training step is one graph: it is compiled
when it first comes, and any later one that looks the same runs at once. So nothing in a step reads a tensor,
and whatever changes from step to step enters as a tensor (`trainer.graph`).

torch_xla 2.9 is the last of its kind; what comes after it replaces this file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch import Tensor, nn

from trainer.config import DeviceConfig
from trainer.device import Device, MemoryCounts, dtype_of, micro_batches

# Of `trainer.memory_log`, as torch_xla counts them.
_COUNTERS = {"compiles": "UncachedCompile", "cached_compiles": "CachedCompile"}
_TIMES = {
    ("executions", "execute_seconds"): "ExecuteTime",
    ("reads", "read_seconds"): "TransferFromDeviceTime",
}
_TYPE_VARIABLES = ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE")


@dataclass(frozen=True, kw_only=True)
class XlaDevice(Device):
    """An opened XLA device.

    Args:
        read_every: steps between two readings of what they came to; each waits for the device.
    """

    read_every: int = 10

    looks_before_it_updates = False

    @property
    def compiles(self) -> bool:
        return True

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:  # which XLA's autocast warns of, even switched off
            return nullcontext()
        return torch.autocast("xla", dtype=self.dtype)

    def place(self, ids: Tensor) -> Tensor:
        return ids.to(self.torch_device)

    def place_parts(self, ids_BT: Tensor, size: int | None) -> tuple[Tensor, ...]:
        return tuple(self.place(part) for part in micro_batches(ids_BT, size))

    def move(self, model: nn.Module) -> nn.Module:
        """Parameters become new ones on the way; those that were tied are tied again."""
        moved = model.to(self.torch_device)
        if callable(tie := getattr(moved, "tie_weights", None)):
            tie()
        self.end_step()
        return moved

    def reads(self, step: int, of: int) -> bool:
        return step % self.read_every == 0 or step in (1, of)

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return cast(list[Tensor], torch_xla._XLAC._xla_get_cpu_tensors(list(tensors)))

    def end_step(self) -> None:
        """Starts what was recorded; the next step is recorded while it runs."""
        torch_xla.sync()

    @contextmanager
    def apart(self) -> Iterator[None]:
        torch_xla.sync()
        yield
        torch_xla.sync()

    def compile_seconds(self) -> float:
        measured = met.metric_data("CompileTime")
        return 0.0 if measured is None else float(measured[1]) / 1e9

    def synchronize(self) -> None:
        torch_xla.sync()
        xm.wait_device_ops()

    def memory_bytes(self) -> int:
        told = self._memory()
        return super().memory_bytes() if told is None else told["bytes_used"]

    def peak_memory_bytes(self) -> int:
        told = self._memory()
        return super().peak_memory_bytes() if told is None else told["peak_bytes_used"]

    def memory_counts(self) -> MemoryCounts:
        told = self._memory()
        if told is None:
            return MemoryCounts()
        used, total = told["bytes_used"], told["bytes_limit"]
        return MemoryCounts(
            used_bytes=used,
            free_bytes=total - used,
            total_bytes=total,
            peak_bytes=told["peak_bytes_used"],
        )

    def recorded_graph(self, results: Sequence[Tensor]) -> str:
        return cast(str, torch_xla._XLAC._get_xla_tensors_hlo(list(results)))

    def counters(self) -> dict[str, float]:
        found = {ours: met.counter_value(theirs) or 0 for ours, theirs in _COUNTERS.items()}
        for (times, seconds), theirs in _TIMES.items():
            count, nanoseconds, _ = met.metric_data(theirs) or (0, 0.0, ())
            found |= {times: count, seconds: nanoseconds / 1e9}
        found["compile_seconds"] = self.compile_seconds()
        fallbacks = [name for name in met.counter_names() if name.startswith("aten::")]
        return found | {"cpu_fallbacks": sum(met.counter_value(name) or 0 for name in fallbacks)}

    def _memory(self) -> dict[str, int] | None:
        """Of the chip; None on XLA's CPU, which does not count."""
        return dict(xm.get_memory_info(self.torch_device)) if on_tpu() else None


def open_xla(config: DeviceConfig) -> XlaDevice:
    """The device that PJRT_DEVICE names; `trainer.tpu_host` has seen that there is one."""
    device = torch_xla.device()
    return XlaDevice(
        torch_device=device,
        dtype=dtype_of(config, device),
        name=_name(),
        attention="eager",  # SDPA fails under autocast here
        recompute=config.recompute,
    )


def on_tpu() -> bool:
    """Whether it is a TPU, and not XLA's own CPU device."""
    return bool(xr.device_type() == "TPU")


def _name() -> str:
    """With the type of the machine, such as v6e-4, which its price is listed under."""
    if not on_tpu():
        return f"XLA {xr.device_type()}"
    for variable in _TYPE_VARIABLES:
        if found := os.environ.get(variable):
            return f"TPU {found}"
    from torch_xla._internal import tpu

    try:
        return f"TPU {tpu.get_tpu_env()['ACCELERATOR_TYPE']}"
    except (OSError, KeyError):  # the machine does not say; without its type it has no price
        return "TPU"
