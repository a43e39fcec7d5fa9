"""XLA devices: a TPU through torch_xla, or XLA's own CPU. Opened by `device.open_device` alone.

Operations are recorded, and run at `torch_xla.sync`. A training step is one graph, compiled the first time;
an identical later one runs at once. So nothing in a step reads a tensor, and whatever changes from step to
step enters as a tensor (`trainer.devices.lazy_tensor`).

torch_xla 2.9 is the last of its kind; its successor replaces this file and `xla_sharding`.
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
from trainer.devices.base import MEMORY_COUNTS, Device, micro_batches
from trainer.devices.dtypes import dtype_of
from trainer.devices.xla_compilation_cache import GraphMirror
from trainer.distributed.tpu_host import VARIABLE, on_tpu
from trainer.errors import ConfigError, MachineError

# Names in `trainer.memory_log`, and torch_xla's for the same.
_COUNTERS = {"compiles": "UncachedCompile", "cached_compiles": "CachedCompile"}
_TIMES = {
    ("executions", "execute_seconds"): "ExecuteTime",
    ("reads", "read_seconds"): "TransferFromDeviceTime",
}
CACHE_VARIABLE = "XLA_PERSISTENT_CACHE_PATH"
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}  # topology of so many chips
_TYPE_VARIABLES = ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE")


@dataclass(frozen=True, kw_only=True)
class XlaDevice(Device):
    """An opened XLA device.

    Args:
        read_every: steps between two reads of results; each waits for the device.
        mesh: of the chips that share each batch, as `xla_sharding.open_mesh` makes it; None: there is one.
        sharded: whether weights and optimizer state are sharded over the mesh, too.
        graphs: mirror of the compiled graphs in a bucket.
        compiled_before: seconds of compilation in this process before the device was opened.
    """

    read_every: int = 10
    mesh: xs.Mesh | None = None
    sharded: bool = False
    graphs: GraphMirror | None = None
    compiled_before: float = 0.0

    checks_before_update = False

    @property
    def compiles(self) -> bool:
        return True

    @property
    def chips(self) -> int:
        return 1 if self.mesh is None else int(self.mesh.size())

    @property
    def data_chips(self) -> int:
        return 1 if self.mesh is None else int(self.mesh.shape()[xla_sharding.ROWS])

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:  # XLA's autocast warns of it, even when disabled
            return nullcontext()
        return torch.autocast("xla", dtype=self.dtype)

    def place(self, ids: Tensor) -> Tensor:
        """Move a batch, sharded by rows; replicated if the chips do not divide it, as in an evaluation."""
        placed = ids.to(self.torch_device)
        if self.mesh is not None and len(ids) % self.data_chips == 0:
            xs.mark_sharding(placed, self.mesh, (xla_sharding.ROWS, *[None] * (ids.ndim - 1)))
        return placed

    def place_micro_batches(self, ids_BT: Tensor, size: int | None) -> tuple[Tensor, ...]:
        return tuple(self.place(part) for part in micro_batches(ids_BT, size))

    def move(self, model: nn.Module) -> nn.Module:
        """Move the model, and tie its tied parameters again, as moving makes new ones."""
        moved = model.to(self.torch_device)
        if callable(tie := getattr(moved, "tie_weights", None)):
            tie()
        self.shard(moved)
        self.end_step()
        return moved

    def shard(self, model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> None:
        if self.mesh is not None:
            if self.sharded:
                xla_sharding.shard_model(model, self.mesh)
            xla_sharding.shard_states(optimizers, self.mesh, sharded=self.sharded)

    def reads(self, step: int, of: int) -> bool:
        return step % self.read_every == 0 or step in (1, of)

    def reading_every(self, steps: int) -> XlaDevice:
        return dataclasses.replace(self, read_every=steps)

    def checkpointing(self) -> Callable[..., Any]:
        """Return torch_xla's, whose barrier keeps the compiler from eliminating the recomputation."""
        from torch_xla.utils.checkpoint import checkpoint

        return cast(Callable[..., Any], checkpoint)

    def fetch(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        found = cast(list[Tensor], torch_xla._XLAC._xla_get_cpu_tensors(list(tensors)))
        if self.graphs:
            self.graphs.upload()  # the device is idle now anyway, and a spot machine may soon be preempted
        return found

    def end_step(self) -> None:
        """Start the recorded step; the next one is recorded while it runs."""
        torch_xla.sync()

    @contextmanager
    def separate_graph(self) -> Iterator[None]:
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
        info = self._memory()
        return super().memory_bytes() if info is None else info["bytes_used"]

    def peak_memory_bytes(self) -> int:
        info = self._memory()
        return super().peak_memory_bytes() if info is None else info["peak_bytes_used"]

    def free_memory_bytes(self) -> int | None:
        """Return the free bytes of the chip; XLA's CPU takes its memory from the host."""
        info = self._memory()
        if info is None:
            return None if on_tpu() else super().free_memory_bytes()
        return info["bytes_limit"] - info["bytes_used"]

    def memory_counts(self) -> dict[str, int | None]:
        info = self._memory()
        if info is None:
            return dict.fromkeys(MEMORY_COUNTS)
        counts = (info["bytes_used"], self.free_memory_bytes(), info["bytes_limit"], info["peak_bytes_used"])
        return dict(zip(MEMORY_COUNTS, (*counts, None), strict=True))

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
        """Return the chip's counts; None on XLA's CPU, and of several chips, which are one device."""
        if not on_tpu() or self.mesh is not None:
            return None
        return dict(xm.get_memory_info(self.torch_device))


def open_xla(config: DeviceConfig) -> XlaDevice:
    """Return the device that PJRT_DEVICE names, once `tpu_host.uses_xla` has checked that it is there.

    Raises:
        ConfigError: torch.compile is asked for, or the chips cannot share the run as configured.
    """
    if config.compile in (True, "layers"):
        raise ConfigError("XLA compiles by itself; write device.compile=auto", key="device.compile")
    _limit_chips(config.num_chips)
    chips = xr.global_runtime_device_count()
    if config.num_chips not in (None, chips):
        raise MachineError(f"there are {chips} here, not {config.num_chips}", key="device.num_chips")
    xla_sharding.check(config.parallel, chips, config.mesh)
    mesh = None
    if chips > 1:
        if not xr.is_spmd():
            xr.use_spmd()
        mesh = xla_sharding.open_mesh(chips, config.mesh.tensor)
    graphs = open_compilation_cache() if on_tpu() else None
    device = torch_xla.device()
    return XlaDevice(
        torch_device=device,
        dtype=dtype_of(config, device),
        name=_name(),
        attention=xla_attention.register(
            flash_attention_kernel(mesh),
            tpu_versions.flash_obstacle(tpu_versions.installed(), tpu=on_tpu()),
            heads_shared=config.mesh.tensor > 1,
        ),
        recompute=config.recompute,
        hold_weights=config.hold_weights,
        mesh=mesh,
        sharded=config.parallel == "fsdp",
        graphs=graphs,
        compiled_before=_compile_seconds(),
    )


def flash_attention_kernel(mesh: xs.Mesh | None) -> xla_attention.Kernel:
    """Return torch_xla's kernel, which imports jax when it is called. Each chip computes its rows."""

    def kernel(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, scale: float) -> Tensor:
        from torch_xla.experimental.custom_kernel import flash_attention

        split = None
        if mesh is not None:
            sizes = mesh.shape()
            rows = xla_sharding.ROWS if len(q_BHTD) % sizes[xla_sharding.ROWS] == 0 else None
            heads = xla_sharding.TENSOR if xla_sharding.TENSOR in sizes else None
            split = (rows, heads, None, None)
        found = flash_attention(
            q_BHTD, k_BHTD, v_BHTD, causal=True, sm_scale=scale, partition_spec=split, mesh=mesh
        )
        return cast(Tensor, found)

    return kernel


def _limit_chips(count: int | None) -> None:
    """Limit the visible chips, by variables that torch_xla's runtime reads when it starts."""
    if count is None:
        return
    if on_tpu():
        if count in _BOUNDS:
            os.environ.setdefault("TPU_VISIBLE_CHIPS", ",".join(map(str, range(count))))
            os.environ.setdefault("TPU_CHIPS_PER_PROCESS_BOUNDS", _BOUNDS[count])
            os.environ.setdefault("TPU_PROCESS_BOUNDS", "1,1,1")
    else:
        os.environ["CPU_NUM_DEVICES"] = str(count)


def open_compilation_cache() -> GraphMirror | None:
    """Keep compiled graphs on disk, for later runs and other workers of the machine.

    They go to the trainer's cache, or to XLA_PERSISTENT_CACHE_PATH: a folder, or a bucket that gets a copy.
    For TPUs alone: XLA's CPU cannot load what it wrote.

    Returns:
        The mirror in a bucket, if there is one.
    """
    if torch_xla._XLAC._xla_computation_cache_is_initialized():
        return None
    location = os.environ.get(CACHE_VARIABLE) or ""
    # The key of a graph is its operations alone: graphs of other versions must not be found.
    own = "-".join([_name().replace(" ", "-"), *(version(name) for name in ("torch_xla", "libtpu"))])
    shared = "://" in location
    folder = Path(location) if location and not shared else cache_root() / "xla" / own
    folder.mkdir(parents=True, exist_ok=True)
    mirror = GraphMirror(f"{location}/{own}", folder) if shared else None
    if mirror:
        mirror.download()
    xr.initialize_cache(str(folder))
    return mirror


def _compile_seconds() -> float:
    """Return the seconds since the process began."""
    measured = met.metric_data("CompileTime")
    return 0.0 if measured is None else float(measured[1]) / 1e9


def _name() -> str:
    """Return a name with the machine type, such as v6e-4, under which prices are listed."""
    if not on_tpu():
        return f"XLA {os.environ.get(VARIABLE, '')}"
    for variable in _TYPE_VARIABLES:
        if found := os.environ.get(variable):
            return f"TPU {found}"
    from torch_xla._internal import tpu

    try:
        return f"TPU {tpu.get_tpu_env()['ACCELERATOR_TYPE']}"
    except (OSError, KeyError):  # the machine type is unknown, and so is its price
        return "TPU"
