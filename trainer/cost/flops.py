"""What a run costs: floating-point operations, and money. Used by `pipeline`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from trainer.devices.device import Device
from trainer.models.causal_lm import attention_width, head_parameters, matmul_parameters


@dataclass(frozen=True, kw_only=True)
class Rate:
    """US dollars per hour; `spot` is None where nobody sells such a machine so, or its price is not known.

    Args:
        listed: the row of `analysis/rates.yaml` with the same figures.
        dated: the month in which somebody read them.
    """

    on_demand: float
    spot: float | None = None
    listed: str
    dated: str


# By a word of the device's name: what a run reports as `usd` while it knows no more than its device. The GPUs
# are RunPod's, one each (the cloud that the research notebook's runs used); other clouds stand in
# `analysis/rates.yaml`. TPUs are Google's, and a whole machine: `-8` and `-4` count its chips. The rooms do
# not import each other: `tests/contracts/test_rates.py` holds the two tables together.
RATES = {
    "H100": Rate(on_demand=2.89, listed="RunPod H100", dated="2024-12"),
    "A100": Rate(on_demand=1.19, listed="RunPod A100", dated="2024-12"),
    "v5litepod-8": Rate(on_demand=6.12, spot=2.04, listed="GCP v5litepod-8", dated="2026-02"),
    "v6e-4": Rate(on_demand=5.10, spot=1.70, listed="GCP v6e-4", dated="2026-02"),
}


@dataclass(frozen=True, kw_only=True)
class ForwardCost:
    """Operations of one forward pass per token: a multiplication and an addition per weight, and attention.

    2·N for the N weights that a token is multiplied with, and 4·T·A for the scores and the weighted sum
    over T tokens, with A the attention width of all layers. Causal masking is not subtracted.
    """

    flops_per_token: int


def forward_cost(model: nn.Module, sequence_length: int) -> ForwardCost:
    """Of the model at that sequence length."""
    flops = 2 * matmul_parameters(model) + 4 * sequence_length * attention_width(model)
    return ForwardCost(flops_per_token=flops)


def train_flops_per_token(student: ForwardCost, teacher: ForwardCost | None) -> int:
    """Three of the student's forward passes (forward 1, backward 2), and one of the teacher that runs beside
    it; None: there is none. What recomputation does again, the teacher's own training and evaluations are
    not counted."""
    return 3 * student.flops_per_token + (teacher.flops_per_token if teacher else 0)


def head_kl_flops_per_token(teacher: nn.Module, layers: int) -> int:
    """What `stage1_9.loss_type=kl` adds: at each layer the teacher's head reads the states of both, and the
    gradient goes back through it once."""
    return 3 * 2 * head_parameters(teacher) * layers


def candidate_flops_per_token(
    hidden: int, vocabulary: int, length: int, *, tokens: int, whole: bool
) -> float:
    """What a head that is read at some tokens of the vocabulary costs more (less, below 0) than one that is
    read whole: forward 1, backward 2, before each of the T - 1 predicted tokens of T.

    Args:
        tokens: whose logits are computed at each position.
        whole: whether, beside them, all are computed too, in chunks.
    """
    read = tokens + (vocabulary if whole else 0)
    return 3 * 2 * hidden * (read * (length - 1) / length - vocabulary)


def relation_flops_per_token(widths: Sequence[int], sequence_length: int) -> int:
    """What Stage 3's attention relations add: of each projection, every token's product with every other, in
    the student (forward 1, backward 2) and in the teacher (forward)."""
    return 4 * 2 * sequence_length * sum(widths)


def usd(device: Device, usd_per_hour: float | None, seconds: float, *, spot: bool = False) -> float | None:
    """Price of the time, or None where neither the configuration nor the table knows it. A CPU is free; of
    GPUs each process of the run has one.

    Args:
        spot: ask the table for the price of a machine that may be taken away.
    """
    if usd_per_hour is None:
        listed = 0.0 if device.kind == "cpu" else _listed(device.name, spot)
        usd_per_hour = None if listed is None else listed * device.ranks.world
    return None if usd_per_hour is None else usd_per_hour * seconds / 3600


def _listed(name: str, spot: bool) -> float | None:
    for word, rate in RATES.items():
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", name):
            return rate.spot if spot else rate.on_demand
    return None
