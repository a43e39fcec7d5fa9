"""Stage 2: the student goes on pre-training on text while lambda rises to 1, with or without its teacher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

from torch import Tensor, nn

from trainer.config import Stage2Config, Stage2DistillConfig
from trainer.losses.next_token import NextTokenLoss, cross_entropy
from trainer.quant.fp8 import fp8_products
from trainer.quant.warmup import Lambda, lambda_at
from trainer.training.context import StageContext, StagePlan
from trainer.training.loop import Objective, StageTrace, train

NAME = "stage2"


def pretrain(
    student: nn.Module,
    teacher: nn.Module,
    lambda_: Lambda,
    config: Stage2Config,
    batches: Iterator[Tensor],
    context: StageContext,
) -> StageTrace:
    """Train the student in place, and leave lambda at 1. Raises as `loop.train` does.

    The teacher is run only where the distillation has a weight.
    """
    warmup = config.lambda_warmup

    def prepare(step: int) -> Mapping[str, float]:
        value = lambda_at(warmup, step)
        lambda_.set(value, weights=warmup.weights, activations=warmup.activations)
        return {"lambda": value}

    objective = distillation(student, teacher, config.distill)
    lambda_.set(1.0)  # what does not warm up stays there
    try:
        with fp8_products(student, config.fp8_recipe) if config.fp8 else nullcontext():
            plan = StagePlan.from_config(NAME, config)
            return train(plan, student, objective, batches, context, prepare=prepare, teacher=teacher)
    finally:
        lambda_.set(1.0)


def distillation(student: nn.Module, teacher: nn.Module, config: Stage2DistillConfig) -> Objective:
    """Return the objective CE + weight·τ²·KL(teacher ‖ student) at temperature τ, of token ids [B, T].

    Without a weight it is CE, and the teacher is not run.

    As in Hinton et al. (arXiv:1503.02531): gradients of the divergence shrink with τ², and the factor makes
    the weight mean the same at every τ.
    """
    if not config.enabled:
        return cross_entropy(student)
    factor = config.weight * config.temperature**2
    predict = NextTokenLoss(student, teacher, factor=factor, temperature=config.temperature)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        predicted = predict(ids_BT)
        return {"loss": predicted.total, **predicted.parts}

    return losses
