"""What a run costs: floating-point operations, and money. Used by `pipeline`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from trainer.device import Device
from trainer.model import attention_width, head_parameters, matmul_parameters

# On-demand price of one device in US dollars per hour, December 2025, the cheapest of the clouds that the
# project used (RunPod; Google Cloud for TPUs). `device.usd_per_hour` overrides it.
USD_PER_HOUR = {"H100": 2.89, "A100": 1.19}


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


def train_flops(
    *, student: ForwardCost, teacher: ForwardCost, taught_tokens: int, untaught_tokens: int
) -> float:
    """Three of the student's forward passes' worth per trained token (forward 1, backward 2), and the
    teacher's forward pass where it runs beside the student. The teacher's own training and evaluations are
    not counted."""
    both = 3 * student.flops_per_token * (taught_tokens + untaught_tokens)
    return float(both + teacher.flops_per_token * taught_tokens)


def head_kl_flops_per_token(teacher: nn.Module, layers: int) -> int:
    """What `stage1_9.loss_type=kl` adds: at each layer the teacher's head reads the states of both, and the
    gradient goes back through it once."""
    return 3 * 2 * head_parameters(teacher) * layers


def usd(device: Device, usd_per_hour: float | None, seconds: float) -> float | None:
    """Price of the time, or None where neither the configuration nor the table knows it. A CPU is free."""
    if usd_per_hour is None:
        if device.kind == "cpu":
            return 0.0
        known = [price for name, price in USD_PER_HOUR.items() if name in device.name]
        if not known:
            return None
        usd_per_hour = known[0]
    return usd_per_hour * seconds / 3600
