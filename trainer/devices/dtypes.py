"""Dtypes of matrix products: those that a processor has instructions for, and the one that a run takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from trainer.config import DeviceConfig
from trainer.distributed.tpu_host import on_tpu
from trainer.errors import MachineError

CPUINFO = Path("/proc/cpuinfo")
CPU_BFLOAT16_VARIABLE = "STAGESWEEP_CPU_BFLOAT16"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether the device has instructions for products in bfloat16, on a CPU quick ones."""
    if device.type == "xla":
        return on_tpu()
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return cpu_multiplies_bfloat16()


def multiplies_float8(device: torch.device) -> bool:
    """Return whether the device has instructions for 8-bit floats: NVIDIA's Ada, Hopper and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def cpu_multiplies_bfloat16(cpuinfo: Path | None = None, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the processor has instructions that make products in bfloat16 quicker than in float32.

    Without any torch computes the same numbers 10 to 80 times more slowly than in float32.

    Args:
        cpuinfo: file with the processor's flags; a missing one has none. None: the kernel's.
        environment: where STAGESWEEP_CPU_BFLOAT16 (0 or 1) overrules the processor, for tests. It is read
            here and nowhere else.

    Raises:
        MachineError: the variable has another value.
    """
    forced = environment.get(CPU_BFLOAT16_VARIABLE, "")
    if forced not in ("", "0", "1"):
        raise MachineError(
            f"{CPU_BFLOAT16_VARIABLE} is {forced!r} in the environment; write 0 (the processor is taken to "
            "have no quick instructions for bfloat16) or 1 (it has), or unset it"
        )
    if forced:
        return forced == "1"
    try:
        words = (cpuinfo or CPUINFO).read_text().split()
    except OSError:
        return False
    # avx512_bf16 alone halves the rate on Intel's Xeons, and raises it on AMD's Zen 4 and 5 (docs/log.md).
    quick_avx512 = "avx512_bf16" in words and "GenuineIntel" not in words
    return quick_avx512 or "amx_bf16" in words or "bf16" in words  # the last is ARM's


def auto_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype that `auto` means for matrix products.

    It is float32 on every CPU, so that all CPUs of a fleet compute in the same precision, and elsewhere
    bfloat16 where the device has instructions for it.
    """
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
