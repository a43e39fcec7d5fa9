"""Plan and context of a stage: the inputs of the training loop besides the model, its loss and its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.checkpoint.policy import NO_CHECKPOINTS, CheckpointPolicy
from trainer.config import (
    OptimizerConfig,
    RecoveryConfig,
    ScaleRuleConfig,
    ScheduleConfig,
    Stage2Config,
    Stage3Config,
    Stage19Config,
    TeacherConfig,
)
from trainer.devices.device import Device
from trainer.memory_log.log import MemoryLog
from trainer.training.auto_freeze import AutoFreeze
from trainer.training.evaluation import StageEvaluation
from trainer.training.preemption import StopSignal
from trainer.training.step_results import Watch
from trainer.training.weight_average import WeightAverage


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """Name, length and optimizer of a stage.

    Args:
        micro_batch_size: sequences per forward and backward pass; None: the full batch in one.
    """

    name: str
    steps: int
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    micro_batch_size: int | None = None

    @classmethod
    def from_config(
        cls, name: str, config: Stage19Config | Stage2Config | Stage3Config | RecoveryConfig | TeacherConfig
    ) -> StagePlan:
        """Return the plan that the configuration of a stage describes."""
        return cls(
            name=name,
            steps=config.max_steps,
            optimizer=config.optimizer,
            schedule=config.schedule,
            micro_batch_size=config.micro_batch_size,
        )


TrunkPoints = Callable[[str, int, Callable[[], float]], None]
"""Called with a stage, the one-based step that is done, and what returns its seconds of training so far."""


@dataclass(frozen=True, kw_only=True)
class StageHooks:
    """Optional observers of a stage's steps.

    Args:
        freeze: inspects the model after every step, and may end the training of some parameters.
        memory: writes a line of memory usage at points of the stage.
        evaluation: measures the held-out loss after some steps.
        points: writes snapshots of the stage's trunk, for runs of other lengths, after some steps.
        average: of the weights over the steps of one of the stages.
    """

    freeze: AutoFreeze | None = None
    memory: MemoryLog | None = None
    evaluation: StageEvaluation | None = None
    points: TrunkPoints | None = None
    average: WeightAverage | None = None


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Surroundings of a stage: the same for all stages of a run.

    Args:
        stop: says after each step whether a signal asked the run to end.
        watch: called with each finished step.
        checkpoints: saves the run, and restores what an earlier attempt has saved.
        scale_rule: by which learning rates follow the size of the model; None: they do not.
    """

    device: Device
    stop: StopSignal = field(default_factory=StopSignal)
    watch: Watch = lambda step: None
    checkpoints: CheckpointPolicy = NO_CHECKPOINTS
    hooks: StageHooks = field(default_factory=StageHooks)
    scale_rule: ScaleRuleConfig | None = None
