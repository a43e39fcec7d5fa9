"""Stage 3: the ternary student learns from its teacher's predictions and from how one layer relates tokens.

BitDistill's third stage (arXiv:2510.13998 §3.3). The student is fully quantised all through (lambda = 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from trainer.checkpoint.keep import FORGET, Keep
from trainer.config import FieldError, Stage3Config
from trainer.config.distill import check_attention_heads
from trainer.device import Device
from trainer.errors import ConfigError
from trainer.layer_match import matched_layers
from trainer.loop import Objective, StagePlan, StageTrace, Watch, train
from trainer.losses.attention_relation import relation_divergence
from trainer.losses.distillation import bitdistill_loss, tempered_divergence
from trainer.losses.logits import next_token_loss
from trainer.model import depth, key_heads, run
from trainer.preemption import StopSignal
from trainer.quant.warmup import Lambda
from trainer.stages.projections import Projections, attention_layers, widths

NAME = "stage3"


def check(student: nn.Module, config: Stage3Config) -> None:
    """Whether the stage can be trained, asked before any other stage is. Raises ConfigError."""
    if not config.compares_attention:
        return
    try:
        check_attention_heads(
            config, widths=widths(attention_layers(student)[-1]), key_heads=key_heads(student)
        )
    except FieldError as error:
        raise ConfigError(error.problem, key=error.key) from error


def distill(
    student: nn.Module,
    teacher: nn.Module,
    strength: Lambda,
    config: Stage3Config,
    batches: Iterator[Tensor],
    *,
    device: Device,
    stop: StopSignal,
    watch: Watch,
    keep: Keep = FORGET,
) -> StageTrace:
    """Trains the student in place. Raises as `loop.train` does."""
    strength.set(1.0)
    plan = StagePlan(
        name=NAME,
        steps=config.max_steps,
        optimizer=config.optimizer,
        schedule=config.schedule,
        micro_batch_size=config.micro_batch_size,
    )
    with ExitStack() as stack:
        return train(
            plan,
            student,
            _objective(student, teacher, config, stack),
            batches,
            device=device,
            stop=stop,
            watch=watch,
            prepare=lambda step: {"lambda": 1.0},
            keep=keep,
        )


def _objective(student: nn.Module, teacher: nn.Module, config: Stage3Config, stack: ExitStack) -> Objective:
    """With the teacher in this process; hooks live until the stack is closed."""
    ours = theirs = None
    if config.attention_weight:
        layer = config.attention_layer
        source = matched_layers(depth(student), depth(teacher))[layer]
        ours = stack.enter_context(Projections(student, layer))
        theirs = stack.enter_context(Projections(teacher, source))
    heads = config.attention_heads or key_heads(student)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        with torch.no_grad():
            teacher_BTV = run(teacher, ids_BT).logits
        logits_BTV = run(student, ids_BT).logits
        attention_kl = None
        if ours is not None and theirs is not None:
            attention_kl = relation_divergence(
                ours.take(), theirs.take(), heads=heads, relation=config.attention_relation
            )
        return _parts(
            config,
            ce=next_token_loss(logits_BTV, ids_BT),
            logits_kl=tempered_divergence(logits_BTV, teacher_BTV, temperature=config.temperature),
            attention_kl=attention_kl,
        )

    return losses


def _parts(
    config: Stage3Config, *, ce: Tensor, logits_kl: Tensor, attention_kl: Tensor | None
) -> dict[str, Tensor]:
    total = bitdistill_loss(
        ce=ce,
        logits_kl=logits_kl,
        attention_kl=attention_kl,
        logits_weight=config.logits_weight,
        attention_weight=config.attention_weight,
    )
    parts = {"loss": total, "ce": ce, "logits_kl": logits_kl}
    return parts if attention_kl is None else parts | {"attention_kl": attention_kl}
