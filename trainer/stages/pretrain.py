"""Stage 2: the student goes on pre-training on text alone, while lambda rises to 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from trainer.config import Stage2Config
from trainer.device import Device
from trainer.loop import Objective, StagePlan, StageTrace, Watch, train
from trainer.losses.logits import next_token_loss
from trainer.model import run
from trainer.preemption import StopSignal
from trainer.quant.warmup import Lambda, lambda_at

NAME = "stage2"


def pretrain(
    student: nn.Module,
    strength: Lambda,
    config: Stage2Config,
    batches: Iterator[Tensor],
    *,
    device: Device,
    stop: StopSignal,
    watch: Watch,
) -> StageTrace:
    """Trains the student in place and leaves lambda at 1. Raises as `loop.train` does."""
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
    strength.set(1.0)  # what does not warm up stays there
    try:
        return train(
            plan,
            student,
            cross_entropy(student),
            batches,
            device=device,
            stop=stop,
            watch=watch,
            prepare=prepare,
        )
    finally:
        strength.set(1.0)


def cross_entropy(model: nn.Module) -> Objective:
    """The objective of plain pre-training; the teacher is trained with it too."""

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        return {"loss": next_token_loss(run(model, ids_BT).logits, ids_BT)}

    return losses
