"""Recovery: low-rank adapters learn what quantisation has cost, and the ternary student stays as it is.

The last stage. Lambda is 1: the frozen weights are those that will be deployed, with the adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from trainer.config import RecoveryConfig
from trainer.quant.warmup import Lambda
from trainer.stages.pretrain import distillation
from trainer.training.context import StageContext, StagePlan
from trainer.training.loop import StageTrace, train

NAME = "recovery"


def recover(
    student: nn.Module,
    teacher: nn.Module,
    lambda_: Lambda,
    config: RecoveryConfig,
    batches: Iterator[Tensor],
    context: StageContext,
) -> StageTrace:
    """Train the adapters that the student has, in place. Raises as `loop.train` does.

    Auto-freeze watches parameters that earlier stages train, and an average is of an earlier stage.
    """
    lambda_.set(1.0)
    own_context = replace(context, hooks=replace(context.hooks, freeze=None, average=None))
    return train(
        StagePlan.from_config(NAME, config),
        student,
        distillation(student, teacher, config.distill),
        batches,
        own_context,
        prepare=lambda step: {"lambda": 1.0},
        teacher=teacher,
    )
