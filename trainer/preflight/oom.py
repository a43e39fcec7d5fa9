"""Out-of-memory errors: which they are, and what the preflight had estimated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sweeps.text.counted import counted
from trainer.config import Config
from trainer.devices.device import Device
from trainer.errors import OutOfMemory, TrainerError
from trainer.preflight.preflight import run_preflight
from trainer.text import byte_size

# In the plain RuntimeErrors of torch's allocator on a CPU, of XLA on a TPU, and of cuBLAS, cuDNN and
# cuSOLVER, which allocate memory of their own.
_CPU = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory")
_PHRASES = (*_CPU, "RESOURCE_EXHAUSTED", "_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether a device, or a library that allocates memory of its own there, had no more."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or (isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES))


@contextmanager
def explain_errors(config: Config, device: Device) -> Iterator[None]:
    """Raise OutOfMemory, with an estimate, if the block runs out of memory."""
    try:
        yield
    except TrainerError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        message = next(iter(str(error).splitlines()), "") or type(error).__name__
        found = run_preflight(config, device, None, detailed=True, processes=device.ranks.data_world)
        stages = ", ".join(
            f"{byte_size(stage.peak)} in {stage.name} ({counted(stage.micro_batch, 'sequence')} at once)"
            for stage in found.stages
        )
        estimate = f"estimated were {stages}" if stages else f"its memory is not estimated ({found.unknown})"
        raise OutOfMemory(message.rstrip("."), estimate=estimate) from error
