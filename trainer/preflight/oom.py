"""Out-of-memory errors, explained with the preflight's estimate. Used by `__main__`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sweeps.text.counted import counted
from trainer.config import Config
from trainer.devices.device import Device
from trainer.errors import OutOfMemory, TrainerError
from trainer.preflight.memory import StageMemory
from trainer.preflight.preflight import run_preflight
from trainer.text import byte_size

# In the plain RuntimeErrors of torch's allocator on a CPU, and of XLA on a TPU.
_CPU = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory")
_PHRASES = (*_CPU, "RESOURCE_EXHAUSTED")


@contextmanager
def explained(config: Config, device: Device) -> Iterator[None]:
    """Raise OutOfMemory, with an estimate, if the block runs out of memory."""
    try:
        yield
    except TrainerError:
        raise
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is one
        if not _is_out_of_memory(error):
            raise
        message = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise OutOfMemory(message.rstrip("."), estimate=_estimate(config, device)) from error


def _is_out_of_memory(error: Exception) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or any(phrase in str(error) for phrase in _PHRASES)


def _estimate(config: Config, device: Device) -> str:
    found = run_preflight(config, device, None, detailed=True, processes=device.ranks.world)
    if not found.stages:
        return f"its memory is not estimated ({found.unknown})"
    return f"estimated were {', '.join(map(_words, found.stages))}"


def _words(memory: StageMemory) -> str:
    return f"{byte_size(memory.peak)} in {memory.name} ({counted(memory.micro_batch, 'sequence')} at once)"
