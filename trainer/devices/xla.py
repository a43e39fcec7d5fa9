"""The XLA device: a TPU through torch_xla, or XLA's own CPU. The one file that imports torch_xla; opened by
`device.open_device` for those who ask for it, and by nobody else.

Operations are recorded, and run when `torch_xla.sync` says so. A training step is one graph: it is compiled
when it first comes, and any later one that looks the same runs at once. So nothing in a step reads a tensor,
and whatever changes from step to step enters as a tensor (`trainer.devices.lazy_tensor`).

torch_xla 2.9 is the last of its kind; what comes after it replaces this file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.cache import cache_root
from trainer.config import DeviceConfig
from trainer.devices import tpu_versions, xla_attention, xla_sharding
from trainer.devices.device import Device, MemoryCounts, dtype_of, micro_batches
from trainer.devices.xla_compilation_cache import GraphMirror
from trainer.distributed import tpu_host
from trainer.errors import ConfigError, MachineError

# Of `trainer.memory_log`, as torch_xla counts them.
_COUNTERS = {"compiles": "UncachedCompile", "cached_compiles": "CachedCompile"}
_TIMES = {
    ("executions", "execute_seconds"): "ExecuteTime",
    ("reads", "read_seconds"): "TransferFromDeviceTime",
}
CACHE_VARIABLE = "XLA_PERSISTENT_CACHE_PATH"
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}  # how so many chips lie side by side
_TYPE_VARIABLES = ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE")


@dataclass(frozen=True, kw_only=True)
class XlaDevice(Device):
    """An opened XLA device.

    Args:
        read_every: steps between two readings of what they came to; each waits for the device.
        mesh: of the chips that share each batch; None: there is one.
        in_parts: whether they share the weights too, and each has a part.
        graphs: where compiled ones are shared with other machines.
        compiled_before: seconds that this process's compiler had taken when it was opened.
    """

    read_every: int = 10
    mesh: xs.Mesh | None = None
    in_parts: bool = False
    graphs: GraphMirror | None = None
    compiled_before: float = 0.0

    looks_before_it_updates = False

    @property
    def compiles(self) -> bool:
        return True

    @property
    def chips(self) -> int:
        return 1 if self.mesh is None else int(self.mesh.size())

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:  # which XLA's autocast warns of, even switched off
            return nullcontext()
        return torch.autocast("xla", dtype=self.dtype)

    def place(self, ids: Tensor) -> Tensor:
        """Each chip gets its rows; or all, where they cannot be dealt out evenly (as an evaluation's may)."""
        placed = ids.to(self.torch_device)
        if self.mesh is not None and len(ids) % self.chips == 0:
            xs.mark_sharding(placed, self.mesh, (xla_sharding.ROWS, *[None] * (ids.ndim - 1)))
        return placed

    def place_parts(self, ids_BT: Tensor, size: int | None) -> tuple[Tensor, ...]:
        return tuple(self.place(part) for part in micro_batches(ids_BT, size))

    def move(self, model: nn.Module) -> nn.Module:
        """Parameters become new ones on the way; those that were tied are tied again."""
        moved = model.to(self.torch_device)
        if callable(tie := getattr(moved, "tie_weights", None)):
            tie()
        self.share_out(moved)
        self.end_step()
        return moved

    def share_out(self, model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> None:
        if self.mesh is not None:
            if self.in_parts:
                xla_sharding.share_out(model, self.mesh)
            xla_sharding.share_out_states(optimizers, self.mesh, in_parts=self.in_parts)

    def reads(self, step: int, of: int) -> bool:
        return step % self.read_every == 0 or step in (1, of)

    def reading_every(self, steps: int) -> XlaDevice:
        return dataclasses.replace(self, read_every=steps)

    def checkpointing(self) -> Callable[..., Any]:
        """With a barrier, without which the compiler would find that it has computed all of it before."""
        from torch_xla.utils.checkpoint import checkpoint

        return cast(Callable[..., Any], checkpoint)

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        found = cast(list[Tensor], torch_xla._XLAC._xla_get_cpu_tensors(list(tensors)))
        if self.graphs:
            self.graphs.send()  # the device has nothing to do now anyway, and a spot machine may soon be gone
        return found

    def end_step(self) -> None:
        """Starts what was recorded; the next step is recorded while it runs."""
        torch_xla.sync()

    @contextmanager
    def apart(self) -> Iterator[None]:
        torch_xla.sync()
        yield
        torch_xla.sync()

    def compile_seconds(self) -> float:
        return _compile_seconds() - self.compiled_before

    def close(self, within_s: float) -> None:
        if self.graphs:
            self.graphs.close(within_s)

    def synchronize(self) -> None:
        torch_xla.sync()
        xm.wait_device_ops()

    def memory_bytes(self) -> int:
        told = self._memory()
        return super().memory_bytes() if told is None else told["bytes_used"]

    def peak_memory_bytes(self) -> int:
        told = self._memory()
        return super().peak_memory_bytes() if told is None else told["peak_bytes_used"]

    def free_memory_bytes(self) -> int | None:
        """Of the chip, which is not the host's; XLA's CPU takes its memory from the host."""
        told = self._memory()
        if told is None:
            return None if on_tpu() else super().free_memory_bytes()
        return told["bytes_limit"] - told["bytes_used"]

    def memory_counts(self) -> MemoryCounts:
        told = self._memory()
        if told is None:
            return MemoryCounts()
        return MemoryCounts(
            used_bytes=told["bytes_used"],
            free_bytes=self.free_memory_bytes(),
            total_bytes=told["bytes_limit"],
            peak_bytes=told["peak_bytes_used"],
        )

    def recorded_graph(self, results: Sequence[Tensor]) -> str:
        return cast(str, torch_xla._XLAC._get_xla_tensors_hlo(list(results)))

    def counters(self) -> dict[str, float]:
        found = {ours: met.counter_value(theirs) or 0 for ours, theirs in _COUNTERS.items()}
        for (times, seconds), theirs in _TIMES.items():
            count, nanoseconds, _ = met.metric_data(theirs) or (0, 0.0, ())
            found |= {times: count, seconds: nanoseconds / 1e9}
        found["compile_seconds"] = _compile_seconds()
        fallbacks = [name for name in met.counter_names() if name.startswith("aten::")]
        return found | {"cpu_fallbacks": sum(met.counter_value(name) or 0 for name in fallbacks)}

    def _memory(self) -> dict[str, int] | None:
        """Of the chip; None where nobody counts: on XLA's CPU, and of several chips that are one device."""
        if not on_tpu() or self.mesh is not None:
            return None
        return dict(xm.get_memory_info(self.torch_device))


def open_xla(config: DeviceConfig) -> XlaDevice:
    """The device that PJRT_DEVICE names; `trainer.distributed.tpu_host` has seen that there is one."""
    if config.compile is True:
        raise ConfigError("XLA compiles by itself; write device.compile=auto", key="device.compile")
    _show_chips(config.num_chips)
    chips = xr.global_runtime_device_count()
    if config.num_chips not in (None, chips):
        raise MachineError(f"there are {chips} here, not {config.num_chips}", key="device.num_chips")
    xla_sharding.check(config.parallel, chips)
    mesh = None
    if chips > 1:
        if not xr.is_spmd():
            xr.use_spmd()
        mesh = xs.Mesh(np.arange(chips), (chips,), (xla_sharding.ROWS,))
    graphs = keep_compiled() if on_tpu() else None
    device = torch_xla.device()
    return XlaDevice(
        torch_device=device,
        dtype=dtype_of(config, device),
        name=_name(),
        attention=xla_attention.register(
            _flash_attention(mesh), tpu_versions.flash_obstacle(tpu_versions.installed(), tpu=on_tpu())
        ),
        recompute=config.recompute,
        mesh=mesh,
        in_parts=config.parallel == "fsdp",
        graphs=graphs,
        compiled_before=_compile_seconds(),
    )


def _flash_attention(mesh: xs.Mesh | None) -> xla_attention.Kernel:
    """torch_xla's, in jax's Pallas, which is imported when it is called. Each chip computes its rows."""

    def kernel(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, scale: float) -> Tensor:
        from torch_xla.experimental.custom_kernel import flash_attention

        rows = xla_sharding.ROWS if mesh is not None and len(q_BHTD) % mesh.size() == 0 else None
        split = None if mesh is None else (rows, None, None, None)
        found = flash_attention(
            q_BHTD, k_BHTD, v_BHTD, causal=True, sm_scale=scale, partition_spec=split, mesh=mesh
        )
        return cast(Tensor, found)

    return kernel


def _show_chips(count: int | None) -> None:
    """Leaves so many to be seen, by what is read when torch_xla's runtime starts."""
    if count is None:
        return
    if on_tpu():
        if count in _BOUNDS:
            os.environ.setdefault("TPU_VISIBLE_CHIPS", ",".join(map(str, range(count))))
            os.environ.setdefault("TPU_CHIPS_PER_PROCESS_BOUNDS", _BOUNDS[count])
            os.environ.setdefault("TPU_PROCESS_BOUNDS", "1,1,1")
    else:
        os.environ["CPU_NUM_DEVICES"] = str(count)


def keep_compiled() -> GraphMirror | None:
    """Lets compiled graphs be kept in the trainer's cache, where the next run and other workers of the
    machine find them; or where XLA_PERSISTENT_CACHE_PATH says, a folder, or a bucket that gets a copy, which
    is returned. A TPU's alone: XLA's CPU cannot load what it wrote."""
    if torch_xla._XLAC._xla_computation_cache_is_initialized():
        return None
    said = os.environ.get(CACHE_VARIABLE) or ""
    # A graph is known there by its operations alone: what another version made of it must not be found.
    own = "-".join([_name().replace(" ", "-"), *(version(name) for name in ("torch_xla", "libtpu"))])
    shared = "://" in said
    folder = Path(said) if said and not shared else cache_root() / "xla" / own
    folder.mkdir(parents=True, exist_ok=True)
    mirror = GraphMirror(f"{said}/{own}", folder) if shared else None
    if mirror:
        mirror.bring()
    xr.initialize_cache(str(folder))
    return mirror


def _compile_seconds() -> float:
    """Since the process began."""
    measured = met.metric_data("CompileTime")
    return 0.0 if measured is None else float(measured[1]) / 1e9


def on_tpu() -> bool:
    """Whether it is a TPU, and not XLA's own CPU device."""
    return os.environ.get(tpu_host.VARIABLE, "").upper() == "TPU"


def _name() -> str:
    """With the type of the machine, such as v6e-4, which its price is listed under."""
    if not on_tpu():
        return f"XLA {os.environ.get(tpu_host.VARIABLE, '')}"
    for variable in _TYPE_VARIABLES:
        if found := os.environ.get(variable):
            return f"TPU {found}"
    from torch_xla._internal import tpu

    try:
        return f"TPU {tpu.get_tpu_env()['ACCELERATOR_TYPE']}"
    except (OSError, KeyError):  # the machine does not say; without its type it has no price
        return "TPU"
