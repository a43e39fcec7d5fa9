"""Costs of a run: floating-point operations, and money. Used by `pipeline` and `preflight`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from trainer.config import Config
from trainer.config.run import runs_teacher
from trainer.devices.device import Device
from trainer.models.adapters import adapters_for, parameter_count
from trainer.models.causal_lm import (
    attention_width,
    depth,
    embedding_count,
    head_parameters,
    matmul_parameters,
)
from trainer.models.projections import attention_layers, widths
from trainer.stages import distill, layerwise, recover


@dataclass(frozen=True, kw_only=True)
class Rate:
    """US dollars per hour.

    Args:
        on_demand: price of a machine that is not preempted.
        spot: price of one that may be; None where it is not sold, or not known.
        listed: the row of `analysis/rates.yaml` with the same figures.
        dated: month of the prices.
    """

    on_demand: float
    spot: float | None = None
    listed: str
    dated: str


# By a word of the device's name, for runs without `usd_per_hour`. GPUs are RunPod's, one each (as in the
# research notebook); other clouds are in `analysis/rates.yaml`. TPUs are Google's, per machine of 8 or 4
# chips. `tests/contracts/test_rates.py` compares the two tables.
RATES = {
    "H100": Rate(on_demand=2.89, listed="RunPod H100", dated="2024-12"),
    "A100": Rate(on_demand=1.19, listed="RunPod A100", dated="2024-12"),
    "v5litepod-8": Rate(on_demand=6.12, spot=2.04, listed="GCP v5litepod-8", dated="2026-02"),
    "v6e-4": Rate(on_demand=5.10, spot=1.70, listed="GCP v6e-4", dated="2026-02"),
}


def flops_per_token(config: Config, stage: str, student: nn.Module, teacher: nn.Module) -> float:
    """Return the operations per trained token of the named stage, including the teacher's in this run.

    Recomputation, the teacher's own training and evaluations are not counted.
    """
    length = config.data.sequence_length
    flops: float = 3 * forward_flops_per_token(student, length)  # forward 1, backward 2
    if runs_teacher(getattr(config, stage)):  # the operations of a remote one are not known
        flops += forward_flops_per_token(teacher, length)
    if stage == layerwise.NAME and config.stage1_9.loss_type == "kl":
        # At each layer the teacher's head is applied to the states of both models, and the gradient goes back
        # through it once.
        flops += 3 * 2 * head_parameters(teacher) * depth(student)
    if stage == distill.NAME and config.stage3.compares_attention:
        # Every token's product with every other, in the student (forward 1, backward 2) and in the teacher.
        projections = attention_layers(student)[config.stage3.attention_layer]
        flops += (3 + 1) * 2 * length * sum(widths(projections))
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
        count = parameter_count(student, adapters_for(student, config.recovery))
        flops += adapter_flops_per_token(count, matmul_parameters(student))
    return flops


def forward_flops_per_token(model: nn.Module, sequence_length: int) -> int:
    """Return the operations of a forward pass at that sequence length.

    2·N for the N weights that a token is multiplied with, and 4·T·A for the scores and the weighted sum
    over T tokens, with A the attention width of all layers. Causal masking is not subtracted.
    """
    return 2 * matmul_parameters(model) + 4 * sequence_length * attention_width(model)


def adapter_flops_per_token(adapters: int, frozen: int) -> int:
    """Return the operations that adapters add, less those of gradients of the weights that are frozen.

    The backward pass below the first adapter, which is not computed, is not subtracted.

    Args:
        frozen: number of the student's weights that each token is multiplied by.
    """
    return 3 * 2 * adapters - 2 * frozen


def candidate_flops_per_token(hidden: int, vocabulary: int, length: int, *, tokens: int, full: bool) -> float:
    """Return the operations of a head with logits of candidates only, less those of a full head.

    Forward 1, backward 2, before each of the T - 1 predicted tokens of T.

    Args:
        length: T, tokens of a sequence.
        tokens: candidates whose logits are computed at each position.
        full: whether all logits are computed as well, in chunks.
    """
    computed = tokens + (vocabulary if full else 0)
    return 3 * 2 * hidden * (computed * (length - 1) / length - vocabulary)


def usd(device: Device, usd_per_hour: float | None, seconds: float, *, spot: bool = False) -> float | None:
    """Return the price of the time in US dollars, or None if it is not known. A CPU is free.

    Args:
        device: whose name the table lists; each process of the run has one.
        usd_per_hour: of each machine, as in the configuration; None: from the table.
        spot: take the table's price of a machine that may be preempted.
    """
    if usd_per_hour is not None:
        return usd_per_hour * device.ranks.hosts * seconds / 3600
    listed = 0.0 if device.kind == "cpu" else _listed_rate(device.name, spot)
    return None if listed is None else listed * device.ranks.world * seconds / 3600


def _listed_rate(name: str, spot: bool) -> float | None:
    for word, rate in RATES.items():
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", name):
            return rate.spot if spot else rate.on_demand
    return None
