"""How long a run will take, and for how much money, roughly. Used by `preflight.look`."""

from __future__ import annotations

import time

import torch

from trainer.config import Config, Stage2Config, Stage3Config, Stage19Config
from trainer.cost.flops import candidate_flops_per_token, usd
from trainer.cost.peak_flops import peak_flops_per_second
from trainer.devices.device import Device
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.memory import stages, student_dimensions
from trainer.preflight.trace import Stage

# Shares of what a device can do that training gets out of it. Of a GPU what well-kept loops reach; of a CPU,
# where the whole is measured and not the maker's, what the default run reached on two cores.
_OF_A_GPU, _OF_A_CPU = 0.4, 0.3
_SIDE = 384  # of the square matrices whose product measures a CPU
_ENOUGH_S = 0.01


def seconds(config: Config, teacher: Dimensions, device: Device) -> float | None:
    """Of the steps of all stages; None for a device whose speed nobody knows."""
    speed = _speed(device)
    return None if speed is None else _flops(config, teacher, device) / (speed * device.ranks.world)


def dollars(config: Config, device: Device, taken: float) -> float | None:
    """Of so many seconds; None for a device whose price nobody knows."""
    return usd(device, config.device.usd_per_hour, taken, spot=config.device.pricing == "spot")


def _flops(config: Config, teacher: Dimensions, device: Device) -> float:
    length, student = config.data.sequence_length, student_dimensions(config, teacher)
    ours, theirs = student.forward_flops(length), teacher.forward_flops(length)
    passes = 4 if device.recompute else 3
    return float(
        sum(
            stage.max_steps
            * stage.batch_size
            * length
            * (passes * ours + theirs * _taught(stage) + _head(stage, student, length))
            for _, stage in stages(config)
        )
    )


def _head(stage: Stage, student: Dimensions, length: int) -> float:
    """What a head that is read at candidates costs less."""
    if not isinstance(stage, Stage3Config) or stage.teacher.kind != "cached":
        return 0.0
    return candidate_flops_per_token(
        student.hidden,
        student.vocabulary,
        length,
        tokens=stage.teacher.logits_read,
        whole=stage.teacher.cross_entropy == "exact",
    )


def _taught(stage: Stage) -> bool:
    """Whether the teacher computes beside the student here."""
    if isinstance(stage, Stage2Config):
        return stage.distill.enabled
    return isinstance(stage, Stage19Config) or stage.runs_teacher


def _speed(device: Device) -> float | None:
    """Operations per second in training."""
    if device.kind != "cpu":
        peak = peak_flops_per_second(device)
        return None if peak is None else _OF_A_GPU * peak * device.chips
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two threads that wait for each other took ten times as long
    try:
        return threads * _OF_A_CPU * 2 * _SIDE**3 / _fastest(device.dtype)
    finally:
        torch.set_num_threads(threads)


def _fastest(dtype: torch.dtype) -> float:
    """Seconds of the product that others on the machine disturbed least."""
    matrix, taken = torch.ones(_SIDE, _SIDE, dtype=dtype), list[float]()
    while len(taken) < 2 or sum(taken) < _ENOUGH_S:  # the first one makes buffers
        started = time.perf_counter()
        torch.mm(matrix, matrix)
        taken.append(time.perf_counter() - started)
    return min(taken)
