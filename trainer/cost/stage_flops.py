"""Floating-point operations of a stage's training, per token. Called by `pipeline`."""

from __future__ import annotations

from torch import nn

from trainer.config import Config
from trainer.cost.flops import (
    adapter_flops_per_token,
    candidate_flops_per_token,
    forward_cost,
    head_kl_flops_per_token,
    relation_flops_per_token,
    train_flops_per_token,
)
from trainer.models import adapters
from trainer.models.causal_lm import depth, embedding_count, head_parameters, matmul_parameters
from trainer.models.projections import attention_layers, widths
from trainer.stages import distill, layerwise, pretrain, recover


def flops_per_token(config: Config, stage: str, student: nn.Module, teacher: nn.Module) -> float:
    """Return the operations per trained token of the named stage, including the teacher's in this run."""
    length = config.data.sequence_length
    runs_teacher = {
        layerwise.NAME: True,
        pretrain.NAME: config.stage2.distill.enabled,
        distill.NAME: config.stage3.runs_teacher,  # the operations of a remote one are not known
        recover.NAME: config.recovery.distill.enabled,
    }[stage]
    flops: float = train_flops_per_token(
        forward_cost(student, length), forward_cost(teacher, length) if runs_teacher else None
    )
    if stage == layerwise.NAME and config.stage1_9.loss_type == "kl":
        flops += head_kl_flops_per_token(teacher, depth(student))
    if stage == distill.NAME and config.stage3.compares_attention:
        projections = attention_layers(student)[config.stage3.attention_layer]
        flops += relation_flops_per_token(widths(projections), length)
    if stage == distill.NAME and config.stage3.teacher.kind == "cached":
        vocabulary = embedding_count(student)
        flops += candidate_flops_per_token(
            head_parameters(student) // vocabulary,
            vocabulary,
            length,
            tokens=config.stage3.teacher.logits_read,
            full=config.stage3.teacher.cross_entropy == "exact",
        )
    if stage == recover.NAME and config.recovery.max_steps:
        count = adapters.parameter_count(student, adapters.adapters_for(student, config.recovery))
        flops += adapter_flops_per_token(count, matmul_parameters(student))
    return flops
