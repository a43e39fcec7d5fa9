"""The device of a run: a CPU, CUDA, or XLA. Opened by `__main__` and the commands."""

from __future__ import annotations

import platform
from typing import Literal

import torch

from trainer.config import DeviceConfig
from trainer.devices import sdpa, tpu_versions
from trainer.devices.base import Device, micro_batches
from trainer.devices.dtypes import CPUINFO, dtype_of
from trainer.distributed import tpu_host
from trainer.errors import MachineError

__all__ = ["Device", "micro_batches", "open_device"]

# On a CPU SDPA has 0.3 to 0.6 of eager attention's speed in bfloat16 up to 128 tokens and 1.1 to 1.3 of it in
# float32; but 0.9 to 1.6 at 256 and 1.4 to 3 at 512, and it keeps no scores.
_CPU_SDPA_TOKENS = 256


def open_device(config: DeviceConfig) -> Device:
    """Return the device that the configuration asks for, never silently another one. Raises ConfigError."""
    torch.set_num_threads(config.threads)
    if tpu_host.uses_xla(config.type):
        tpu_versions.require(tpu_versions.installed(), tpu=tpu_host.on_tpu())
        from trainer.devices.xla import open_xla  # imports torch_xla, which is optional

        return open_xla(config)
    has_cuda = torch.cuda.is_available()
    if config.type == "cuda" and not has_cuda:
        raise MachineError("there is no CUDA device here; write device=auto or device=cpu", key="device.type")
    cuda = has_cuda and config.type != "cpu"
    # On a CPU oneDNN may otherwise round float32 to bfloat16.
    torch.set_float32_matmul_precision("high" if cuda else "highest")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    return Device(
        torch_device=device,
        dtype=dtype_of(config, device),
        name=torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        attention=sdpa.NAME,
        eager_below=0 if cuda else _CPU_SDPA_TOKENS,
        compile=_compilation(config, auto="layers" if cuda else False),
        recompute=config.recompute,
        hold_weights=config.hold_weights,
        teacher=config.teacher,
    )


def _compilation(config: DeviceConfig, *, auto: Literal[False, "layers"]) -> bool | Literal["layers"]:
    """Return what is compiled: only the layers if processes exchange gradients between the layers."""
    chosen = auto if config.compile == "auto" else config.compile
    if config.mesh.tensor > 1 and config.compile == "auto":  # not tried on CUDA
        return False
    return "layers" if chosen and config.parallel != "none" else chosen


def _cpu_name() -> str:
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {models[0] if models else platform.processor() or platform.machine()}"
