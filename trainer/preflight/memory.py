"""How much memory each stage will take at most, and what of it is what. Used by `preflight.look`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from trainer.config import Config
from trainer.devices.device import Device
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.meta_model import Blueprint
from trainer.preflight.optimizer import held
from trainer.preflight.trace import Stage, evaluation_peak, step_peak

EVALUATION = "evaluation"


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Bytes that tensors take in one stage, all at once at most.

    Args:
        weights: of the student and its teacher, which stays from the first stage to the last.
        optimizer: its state.
        activations: what else there is when the most is alive: activations, logits, passing copies.
        peak: all of it.
    """

    name: str
    micro_batch: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


def stages(config: Config) -> list[tuple[str, Stage]]:
    """Those that are trained, by name."""
    named: list[tuple[str, Stage]] = [
        ("stage1_9", config.stage1_9),
        ("stage2", config.stage2),
        ("stage3", config.stage3),
    ]
    return [(name, stage) for name, stage in named if stage.max_steps]


def student_dimensions(config: Config, teacher: Dimensions) -> Dimensions:
    """Of the student that Stage 1 makes of such a teacher."""
    return teacher.as_student(layers=config.stage1.keep_layers, subln=config.stage1.subln != "none")


def weight_bytes(config: Config, teacher: Dimensions) -> int:
    """Of student and teacher together."""
    student = student_dimensions(config, teacher)
    return student.parameters * student.weight_bytes + teacher.parameters * teacher.weight_bytes


def stage_memory(
    config: Config,
    name: str,
    stage: Stage,
    plan: Blueprint,
    device: Device,
    *,
    micro_batch: int | None = None,
) -> StageMemory:
    """Of one stage, with so many sequences computed at once; None: as the stage says. Of chips that share
    the sequences, what each takes."""
    micro = micro_batch or stage.micro_batch_size or stage.batch_size
    student, weights = student_dimensions(config, plan.dimensions), weight_bytes(config, plan.dimensions)
    gradients = student.parameters * student.weight_bytes
    buckets = gradients if config.device.parallel == "ddp" else 0  # in which processes exchange them
    optimizer = held(student, stage.optimizer)
    own = dataclasses.replace(stage, batch_size=stage.batch_size // device.chips)
    computing = step_peak(config, own, plan, device, micro_batch=max(1, micro // device.chips))
    peak = buckets + optimizer.state + max(computing, weights + gradients + optimizer.passing)
    return StageMemory(
        name=name,
        micro_batch=micro,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer.state,
        activations=max(0, peak - weights - gradients - optimizer.state),
        peak=peak,
    )


def evaluation_memory(config: Config, plan: Blueprint, device: Device) -> StageMemory:
    """While held-out losses are measured, when there is neither gradient nor optimizer."""
    rows = config.eval.batch_size
    own = rows // device.chips if rows % device.chips == 0 else rows  # else each chip computes all of them
    theirs = dataclasses.replace(config, eval=dataclasses.replace(config.eval, batch_size=own))
    weights, peak = weight_bytes(config, plan.dimensions), evaluation_peak(theirs, plan, device)
    return StageMemory(
        name=EVALUATION,
        micro_batch=config.eval.batch_size,
        weights=weights,
        gradients=0,
        optimizer=0,
        activations=max(0, peak - weights),
        peak=peak,
    )
