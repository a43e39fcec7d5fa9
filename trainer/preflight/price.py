"""Rough estimates of a run's time and price. Used by `preflight`."""

from __future__ import annotations

import time

import torch

from trainer.config import Config, RecoveryConfig, Stage3Config
from trainer.config.run import runs_teacher
from trainer.cost.flops import adapter_flops_per_token, candidate_flops_per_token, usd
from trainer.cost.peak_flops import peak_flops_per_second
from trainer.devices.device import Device
from trainer.preflight.dimensions import AdapterDimensions, Dimensions
from trainer.preflight.memory import stages, student_dimensions
from trainer.preflight.trace import Stage

# Shares of the peak rate that training reaches: of a GPU's, as well-tuned loops do; of a CPU's measured one,
# as the default run did on two cores.
_GPU_SHARE, _CPU_SHARE = 0.4, 0.3
_SIDE = 384  # of the square matrices whose product measures a CPU
_MEASURE_S = 0.01


def seconds(config: Config, teacher: Dimensions, device: Device) -> float | None:
    """Return the seconds of the steps of all stages; None for a device of unknown speed."""
    speed = _speed(device)
    if speed is None:
        return None
    length, student = config.data.sequence_length, student_dimensions(config, teacher)
    ours, theirs = student.forward_flops(length), teacher.forward_flops(length)
    passes = 4 if device.recompute else 3  # a backward pass counts as two forward passes
    total = 0.0
    for _, stage in stages(config):
        a_token = passes * ours + theirs * runs_teacher(stage) + _extra_flops(stage, student, length)
        total += stage.max_steps * stage.batch_size * length * a_token
    return total / (speed * device.ranks.world)


def dollars(config: Config, device: Device, taken: float) -> float | None:
    """Return the price of so many seconds; None for a device of unknown price."""
    return usd(device, config.device.usd_per_hour, taken, spot=config.device.pricing == "spot")


def _extra_flops(stage: Stage, student: Dimensions, length: int) -> float:
    """Return the operations per token that adapters, or a head for candidates only, add or save."""
    if isinstance(stage, RecoveryConfig):
        return adapter_flops_per_token(
            AdapterDimensions.for_student(student, stage).parameters, student.multiplied
        )
    if not isinstance(stage, Stage3Config) or stage.teacher.kind != "cached":
        return 0.0
    return candidate_flops_per_token(
        student.hidden,
        student.vocabulary,
        length,
        tokens=stage.teacher.logits_read,
        full=stage.teacher.cross_entropy == "exact",
    )


def _speed(device: Device) -> float | None:
    """Return the operations per second in training."""
    if device.kind != "cpu":
        peak = peak_flops_per_second(device)
        return None if peak is None else _GPU_SHARE * peak * device.chips
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads that wait for each other on a busy machine took ten times as long
    try:
        matrix, elapsed = torch.ones(_SIDE, _SIDE, dtype=device.dtype), list[float]()
        while len(elapsed) < 2 or sum(elapsed) < _MEASURE_S:  # the first product makes buffers
            started = time.perf_counter()
            torch.mm(matrix, matrix)
            elapsed.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    # The fastest is the one that other processes disturbed least.
    return threads * _CPU_SHARE * 2 * _SIDE**3 / min(elapsed)
