"""Host memory that a run takes beside its tensors: copies for files, and batches on their way to the device.

Each has a limit; this says what they come to. Used by `preflight`.

    copies for checkpoints      of one checkpoint, or of this process's part (`checkpoint.writer.HostCopies`)
    batches made ahead          `data.stream.AHEAD_BYTES`, of streamed text alone (`data.prefetch`)
    pinned batches              of two steps, on CUDA (`devices.base.Device.place`)
    the teacher's layers        with `device.teacher=host`, of each process (`models.host_layers`)
    loading the teacher         of each process, before all these, unless it is pages of its file

What else is pinned is a few numbers of a step (`Device.begin_fetch`). `auto_freeze` keeps two copies of the
parameters that it watches, by default gains.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config import Config
from trainer.data.stream import AHEAD_BYTES
from trainer.devices.base import host_memory
from trainer.devices.device import Device
from trainer.distributed.launched import Launched
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.memory import layer_bytes, stages
from trainer.text import byte_size

_PINNED_STEPS = 2  # the one that runs, and the one whose batch is on its way


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Bytes of all processes of this machine together.

    Args:
        copies: of checkpoints.
        ahead: of batches made ahead, at most.
        pinned: of batches on their way to the device; torch rounds each up to a power of two, and keeps it.
        teacher: of its decoder layers, likewise rounded up where they are page-locked, on CUDA.
        loading: of the whole teacher, until it is on the device.
        free: in the machine; None: not known.
    """

    copies: int
    ahead: int
    pinned: int
    teacher: int
    loading: int
    free: int | None

    @property
    def total(self) -> int:
        return max(self.copies + self.ahead + self.pinned + self.teacher, self.loading)


def estimate(
    config: Config, device: Device, teacher: Dimensions, *, checkpoint: int, launch: Launched
) -> HostMemory:
    """Return the host memory of a run.

    Args:
        teacher: its dimensions.
        checkpoint: bytes of a checkpoint.
        launch: this process among all that share the run.
    """
    here = launch.local_world
    if config.checkpoint.is_sharded(config.device.parallel):
        copies = -(-checkpoint // launch.world) * here
    else:
        copies = checkpoint  # the first process's, which may be on this machine
    sharing = launch.shares(config.device.mesh)
    rows = max((stage.batch_size for _, stage in stages(config)), default=0) // sharing
    batch = 8 * rows * config.data.sequence_length
    layer = _pinned(layer_bytes(teacher) // teacher.layers, device)
    return HostMemory(
        copies=copies,
        ahead=here * max(AHEAD_BYTES, batch) if config.data.name != "stdlib" else 0,
        pinned=here * _PINNED_STEPS * _pinned(batch, device) if device.kind == "cuda" else 0,
        teacher=here * teacher.layers * layer if device.teacher == "host" else 0,
        loading=here * teacher.parameters * teacher.weight_bytes
        if teacher.cast and device.kind != "cpu"
        else 0,
        free=host_memory("MemAvailable"),
    )


def _pinned(size: int, device: Device) -> int:
    """Return the bytes that a buffer takes, which torch rounds up to a power of two where it locks pages."""
    return 1 << (size - 1).bit_length() if size and device.kind == "cuda" else size


def line(found: HostMemory) -> str:
    """Return it in one line for people."""
    parts = {"copies for checkpoints": found.copies, "batches ahead": found.ahead, "pinned": found.pinned}
    parts |= {"the teacher": found.teacher, "loading the teacher": found.loading}
    listed = ", ".join(f"{what} {byte_size(size)}" for what, size in parts.items() if size)
    free = "" if found.free is None else f", of {byte_size(found.free)} free"
    return f"host memory beside tensors: at most {byte_size(found.total)} ({listed}){free}"


def warnings(found: HostMemory, tensors: int | None) -> list[str]:
    """Return a warning if the machine's memory does not hold it, with what to do.

    Args:
        tensors: bytes of the run's tensors that are in the same memory, on a CPU; None: not known.
    """
    needed = found.total + (tensors or 0)
    if found.free is None or needed <= found.free:
        return []
    if found.total == found.loading:
        return [
            f"{line(found)}: the machine may end the run when its processes load the teacher in another "
            "dtype than its file has; start fewer processes on it, or take a machine with more memory"
        ]
    with_tensors = f", and {byte_size(tensors)} of tensors" if tensors else ""
    return [
        f"{line(found)}{with_tensors}: the machine may end the run when a checkpoint is written; write "
        "device.parallel=fsdp with processes on several machines, or take a machine with more memory"
    ]
