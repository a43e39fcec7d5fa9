"""Memory that ran out while a run trained, told with what was estimated. Used by `__main__`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainer.config import Config
from trainer.devices.device import Device
from trainer.errors import OutOfMemory, TrainerError
from trainer.preflight.memory import StageMemory
from trainer.preflight.preflight import look
from trainer.text import byte_size, counted

# How torch's allocator on a CPU says it, and XLA of a TPU's memory, in errors of no kind of their own.
_CPU = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory")
_WORDS = (*_CPU, "RESOURCE_EXHAUSTED")


@contextmanager
def explained(config: Config, device: Device) -> Iterator[None]:
    """Raises OutOfMemory where what is inside runs out of it."""
    try:
        yield
    except TrainerError:
        raise
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is one
        if not _is_shortage(error):
            raise
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise OutOfMemory(said.rstrip("."), estimate=_estimate(config, device)) from error


def _is_shortage(error: Exception) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or any(words in str(error) for words in _WORDS)


def _estimate(config: Config, device: Device) -> str:
    found = look(config, device, None, closely=True, processes=device.ranks.world)
    if not found.stages:
        return f"its memory is not estimated ({found.unknown})"
    return f"estimated were {', '.join(map(_words, found.stages))}"


def _words(memory: StageMemory) -> str:
    return f"{byte_size(memory.peak)} in {memory.name} ({counted(memory.micro_batch, 'sequence')} at once)"
