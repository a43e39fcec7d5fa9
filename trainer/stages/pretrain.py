"""Stage 2: the student goes on pre-training on text while lambda rises to 1, with or without its teacher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

from torch import Tensor, nn

from trainer.checkpoint.policy import NO_CHECKPOINTS, CheckpointPolicy
from trainer.config import Stage2Config, Stage2DistillConfig
from trainer.devices.device import Device
from trainer.losses.next_token import NextTokenLoss, cross_entropy
from trainer.quant.fp8 import fp8_products
from trainer.quant.warmup import Lambda, lambda_at
from trainer.training.hooks import NO_HOOKS, StageHooks
from trainer.training.loop import Objective, StagePlan, StageTrace, Watch, train
from trainer.training.preemption import StopSignal

NAME = "stage2"


def pretrain(
    student: nn.Module,
    teacher: nn.Module,
    strength: Lambda,
    config: Stage2Config,
    batches: Iterator[Tensor],
    *,
    device: Device,
    stop: StopSignal,
    watch: Watch,
    keep: CheckpointPolicy = NO_CHECKPOINTS,
    hooks: StageHooks = NO_HOOKS,
) -> StageTrace:
    """Trains the student in place and leaves lambda at 1. The teacher is run only where the distillation has
    a weight. Raises as `loop.train` does."""
    warmup = config.lambda_warmup

    def prepare(step: int) -> Mapping[str, float]:
        value = lambda_at(warmup, step)
        strength.set(value, weights=warmup.weights, activations=warmup.activations)
        return {"lambda": value}

    plan = StagePlan(
        name=NAME,
        steps=config.max_steps,
        optimizer=config.optimizer,
        schedule=config.schedule,
        micro_batch_size=config.micro_batch_size,
    )
    objective = taught(student, teacher, config.distill) if config.distill.enabled else cross_entropy(student)
    strength.set(1.0)  # what does not warm up stays there
    try:
        with fp8_products(student) if config.fp8 else nullcontext():
            return train(
                plan,
                student,
                objective,
                batches,
                device=device,
                stop=stop,
                watch=watch,
                prepare=prepare,
                keep=keep,
                hooks=hooks,
            )
    finally:
        strength.set(1.0)


def taught(student: nn.Module, teacher: nn.Module, config: Stage2DistillConfig) -> Objective:
    """CE + weight·τ²·KL(teacher ‖ student) of predictions at temperature τ (Hinton et al., arXiv:1503.02531).

    Gradients of the divergence shrink with τ²; with the factor, the weight means the same at every τ.
    """
    factor = config.weight * config.temperature**2
    predict = NextTokenLoss(student, teacher, factor=factor, temperature=config.temperature)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        predicted = predict(ids_BT)
        return {"loss": predicted.total, **predicted.parts}

    return losses
