"""Costs of a run: floating-point operations, and money. Used by `pipeline` and `preflight`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from trainer.devices.device import Device
from trainer.models.causal_lm import attention_width, head_parameters, matmul_parameters


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


@dataclass(frozen=True, kw_only=True)
class ForwardCost:
    """Operations of one forward pass per token.

    2·N for the N weights that a token is multiplied with, and 4·T·A for the scores and the weighted sum
    over T tokens, with A the attention width of all layers. Causal masking is not subtracted.
    """

    flops_per_token: int


def forward_cost(model: nn.Module, sequence_length: int) -> ForwardCost:
    """Return the cost of the model's forward pass at that sequence length."""
    flops = 2 * matmul_parameters(model) + 4 * sequence_length * attention_width(model)
    return ForwardCost(flops_per_token=flops)


def train_flops_per_token(student: ForwardCost, teacher: ForwardCost | None) -> int:
    """Return three of the student's forward passes (forward 1, backward 2) and one of the teacher's, if any.

    Recomputation, the teacher's own training and evaluations are not counted.
    """
    return 3 * student.flops_per_token + (teacher.flops_per_token if teacher else 0)


def adapter_flops_per_token(adapters: int, frozen: int) -> int:
    """Return the operations that adapters add, less those of gradients of the weights that are frozen.

    The backward pass below the first adapter, which is not computed, is not subtracted.

    Args:
        frozen: number of the student's weights that each token is multiplied by.
    """
    return 3 * 2 * adapters - 2 * frozen


def head_kl_flops_per_token(teacher: nn.Module, layers: int) -> int:
    """Return the operations that `stage1_9.loss_type=kl` adds.

    At each layer the teacher's head is applied to the states of both models, and the gradient goes back
    through it once.
    """
    return 3 * 2 * head_parameters(teacher) * layers


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


def relation_flops_per_token(widths: Sequence[int], sequence_length: int) -> int:
    """Return the operations that Stage 3's attention relations add.

    They are every token's product with every other, per projection, in the student (forward 1, backward 2)
    and in the teacher (forward).

    Args:
        widths: of the projections whose relations are compared.
    """
    return 4 * 2 * sequence_length * sum(widths)


def usd(device: Device, usd_per_hour: float | None, seconds: float, *, spot: bool = False) -> float | None:
    """Return the price of the time in US dollars, or None if it is not known. A CPU is free.

    Args:
        device: whose name the table lists; each process of the run has one.
        usd_per_hour: of the configuration; None: from the table.
        spot: take the table's price of a machine that may be preempted.
    """
    if usd_per_hour is None:
        listed = 0.0 if device.kind == "cpu" else _listed_rate(device.name, spot)
        usd_per_hour = None if listed is None else listed * device.ranks.world
    return None if usd_per_hour is None else usd_per_hour * seconds / 3600


def _listed_rate(name: str, spot: bool) -> float | None:
    for word, rate in RATES.items():
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", name):
            return rate.spot if spot else rate.on_demand
    return None
