"""Whether the estimated memory fits, and what to change where it does not. Used by `preflight.look`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from trainer.config import Config
from trainer.devices.device import Device
from trainer.errors import ConfigError
from trainer.preflight.memory import EVALUATION, StageMemory, evaluation_memory, stage_memory, stages
from trainer.preflight.meta_model import Blueprint
from trainer.text import byte_size

_GIB = 2**30
# A compiled step keeps fewer activations than the estimate counts: between 6 % less (A10G) and half (A40) in
# the research notebook, at SmolLM2-135M. What might fit is not refused.
_COMPILED = 0.5


def limit(config: Config, free: int | None) -> int | None:
    """Bytes that the run may take: what is free, and no more than `device.memory_target_gib`."""
    target = config.device.memory_target_gib
    chosen = None if target is None else int(target * _GIB)
    return min((each for each in (free, chosen) if each is not None), default=None)


def fits(memory: StageMemory, device: Device, free: int) -> bool:
    """Whether the estimate is no reason to refuse the run."""
    passing = memory.activations * (_COMPILED if device.compile else 1.0)
    return memory.peak - memory.activations + passing <= free


def refusals(
    config: Config, found: Sequence[StageMemory], plan: Blueprint, device: Device, *, free: int
) -> list[ConfigError]:
    """One for each stage that does not fit, with the largest change that makes it fit."""
    return [
        _refusal(config, memory, plan, device, free) for memory in found if not fits(memory, device, free)
    ]


def largest(batch: int, fitting: Callable[[int], bool]) -> int | None:
    """The largest divisor of the batch for which `fitting` is true, as it is for all that are smaller; None
    if there is none. Asks as few as it can."""
    candidates = [size for size in range(1, batch + 1) if batch % size == 0]
    low, high = -1, len(candidates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(candidates[middle]) else (low, middle)
    return candidates[low] if low >= 0 else None


def largest_micro_batch(
    config: Config, name: str, plan: Blueprint, device: Device, *, free: int
) -> int | None:
    """By the estimate; a multiple of the chips that share it. None: not even one sequence for each fits."""
    stage, chips = dict(stages(config))[name], device.chips

    def fitting(each: int) -> bool:
        return fits(stage_memory(config, name, stage, plan, device, micro_batch=each * chips), device, free)

    found = largest(stage.batch_size // chips, fitting)
    return None if found is None else found * chips


def _refusal(config: Config, memory: StageMemory, plan: Blueprint, device: Device, free: int) -> ConfigError:
    told = (
        f"{memory.name} takes an estimated {byte_size(memory.peak)} of memory ({_parts(memory)}), and "
        f"{byte_size(free)} are free"
    )
    if memory.name == EVALUATION:
        return _smaller_evaluation(config, told, plan, device, free)
    key = f"{memory.name}.micro_batch_size"
    micro = largest_micro_batch(config, memory.name, plan, device, free=free)
    if micro is not None:
        return ConfigError(f"{told}; write {micro}", key=key)
    if not device.recompute:
        forgetful = dataclasses.replace(device, recompute=True)
        micro = largest_micro_batch(config, memory.name, plan, forgetful, free=free)
        if micro is not None:
            return ConfigError(f"{told}; write true, and {key}={micro}", key="device.recompute")
    smaller = "a smaller model, an optimizer with less state (adamw_8bit, apollo) or a larger device"
    return ConfigError(f"{told}; one sequence at a time does not fit either: take {smaller}", key=key)


def _smaller_evaluation(config: Config, told: str, plan: Blueprint, device: Device, free: int) -> ConfigError:
    def fitting(size: int) -> bool:
        less = dataclasses.replace(config, eval=dataclasses.replace(config.eval, batch_size=size))
        return fits(evaluation_memory(less, plan, device), device, free)

    size = largest(config.eval.batch_size, fitting)
    if size is None:
        return ConfigError(f"{told}; take a smaller model or a larger device", key="eval.batch_size")
    batches = config.eval.batches * config.eval.batch_size // size
    return ConfigError(f"{told}; write {size}, and eval.batches={batches}", key="eval.batch_size")


def _parts(memory: StageMemory) -> str:
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations and logits": memory.activations,
    }
    return ", ".join(f"{name} {byte_size(size)}" for name, size in parts.items() if size)
