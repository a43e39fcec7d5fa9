"""Comparison of estimated with available memory, and what to change where it does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from trainer.config import Config
from trainer.devices.device import Device
from trainer.distributed.launched import Launched
from trainer.errors import ConfigError
from trainer.preflight.memory import (
    EVALUATION,
    LOADING,
    StageMemory,
    evaluation_memory,
    stage_memory,
    stages,
    student_dimensions,
    with_evaluation_batch,
)
from trainer.preflight.trace import Blueprint
from trainer.text import byte_size

_GIB = 2**30
# A compiled step keeps fewer activations than estimated: 6 % (A10G) to 50 % (A40) less in the research
# notebook, at SmolLM2-135M. A run that might fit is not refused.
_COMPILED = 0.5


def memory_limit(config: Config, device: Device, launch: Launched) -> int | None:
    """Return the bytes that a process may take: its share of those free, at most `device.memory_target_gib`.

    Processes on the CPU of one machine share what is free; others have a device each.
    """
    free, target = device.free_memory_bytes(), config.device.memory_target_gib
    if free is not None and device.kind == "cpu":
        free //= launch.local_world
    chosen = None if target is None else int(target * _GIB)
    return min((each for each in (free, chosen) if each is not None), default=None)


def fits(memory: StageMemory, device: Device, free: int) -> bool:
    """Return whether the estimate is within the free bytes, or may be."""
    is_compiled = device.compile and memory.name not in (EVALUATION, LOADING)
    activations = memory.activations * (_COMPILED if is_compiled else 1.0)
    return memory.peak - memory.activations + activations <= free


def refusals(
    config: Config, found: Sequence[StageMemory], plan: Blueprint, device: Device, *, free: int
) -> list[ConfigError]:
    """Return a refusal for each stage that does not fit, with the smallest change that makes it fit."""
    return [
        _refusal(config, memory, plan, device, free) for memory in found if not fits(memory, device, free)
    ]


def largest_divisor(batch: int, fitting: Callable[[int], bool]) -> int | None:
    """Return the largest divisor of the batch that fits, by bisection; None if none does.

    Args:
        fitting: true for a size if it is for a larger one.
    """
    candidates = [size for size in range(1, batch + 1) if batch % size == 0]
    low, high = -1, len(candidates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(candidates[middle]) else (low, middle)
    return candidates[low] if low >= 0 else None


def largest_micro_batch(
    config: Config, name: str, plan: Blueprint, device: Device, *, free: int
) -> int | None:
    """Return the largest micro-batch that fits by the estimate; None if not one sequence per chip does."""
    stage, chips = dict(stages(config))[name], device.chips

    def fitting(each: int) -> bool:
        return fits(stage_memory(config, name, stage, plan, device, micro_batch=each * chips), device, free)

    found = largest_divisor(stage.batch_size // chips, fitting)
    return None if found is None else found * chips


def _refusal(config: Config, memory: StageMemory, plan: Blueprint, device: Device, free: int) -> ConfigError:
    sizes = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations and logits": memory.activations,
    }
    parts = ", ".join(f"{name} {byte_size(size)}" for name, size in sizes.items() if size)
    problem = (
        f"{memory.name} takes an estimated {byte_size(memory.peak)} of memory ({parts}), and "
        f"{byte_size(free)} are free{' for each process' if device.ranks.world > 1 else ''}"
    )
    if memory.name == EVALUATION:
        return _smaller_evaluation(config, problem, plan, device, free)
    if memory.name == LOADING:
        return ConfigError(f"{problem}; take a smaller model or more memory", key="device.parallel")
    key = f"{memory.name}.micro_batch_size"
    micro = largest_micro_batch(config, memory.name, plan, device, free=free)
    if micro is not None:
        return ConfigError(f"{problem}; write {micro}", key=key)
    # First what costs the least time, and bfloat16, which costs accuracy, after what changes no result.
    sharded = device.ranks.parallel == "fsdp"  # which holds no weights over micro-batches
    elsewhere = {"teacher": "sharded"} if sharded else {"hold_weights": False, "teacher": "host"}
    less: tuple[dict[str, Any], ...] = ({"recompute": True}, {"recompute": True, **elsewhere})
    full: Any = config.model.master_dtype
    half: Any = "bfloat16"
    lighter = (
        student_dimensions(config, plan.dimensions).weight_bytes > 2 and config.device.dtype != "float32"
    )
    for master_dtype in (full, half) if lighter else (full,):
        model = dataclasses.replace(config.model, master_dtype=master_dtype)
        for settings in less:
            if settings.get("teacher") == "host" and (device.kind == "xla" or device.compile is True):
                continue
            changed = {name: value for name, value in settings.items() if getattr(device, name) != value}
            smaller_device = dataclasses.replace(device, **changed)
            lighter_config = dataclasses.replace(config, model=model)
            micro = largest_micro_batch(lighter_config, memory.name, plan, smaller_device, free=free)
            if micro is None:
                continue
            words = [f"device.{name}={str(value).lower()}" for name, value in changed.items()]
            if master_dtype != full:
                words.insert(0, f"model.master_dtype={half}")
            first, _, value = words[0].partition("=")
            return ConfigError(
                f"{problem}; write {value}, and {' '.join([*words[1:], f'{key}={micro}'])}", key=first
            )
    smaller = (
        "more processes, a smaller model or larger devices"
        if sharded
        else "a smaller model, an optimizer with less state (adamw_8bit, apollo) or a larger device"
    )
    return ConfigError(f"{problem}; one sequence at a time does not fit either: take {smaller}", key=key)


def _smaller_evaluation(
    config: Config, problem: str, plan: Blueprint, device: Device, free: int
) -> ConfigError:
    def fitting(size: int) -> bool:
        less = with_evaluation_batch(config, size)
        return fits(evaluation_memory(less, plan, device), device, free)

    size = largest_divisor(config.eval.batch_size, fitting)
    if size is None:
        return ConfigError(f"{problem}; take a smaller model or a larger device", key="eval.batch_size")
    batches = config.eval.batches * config.eval.batch_size // size
    more = f"eval.batches={batches}"
    if size * config.eval.part_batches == 1:  # too few to measure a loss on
        more += " eval.part_batches=2"
    return ConfigError(f"{problem}; write {size}, and {more}", key="eval.batch_size")
