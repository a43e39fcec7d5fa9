"""Held-out loss, with its standard error, and what it is per byte. Called by `pipeline` and `teacher`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn

from trainer.devices.device import Device
from trainer.errors import DivergedError
from trainer.losses.next_token import NextTokenLoss
from trainer.quant.ternary import fully_quantised


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """Mean cross-entropy in nats per token, and the standard error of that mean over the batches."""

    mean: float
    sem: float

    @property
    def perplexity(self) -> float:
        """exp(mean); at most the largest float, as JSON has no infinity."""
        return math.exp(min(self.mean, 709.0))


def bits_per_byte(loss: float, batches: Sequence[Tensor], scored_bytes: int) -> float:
    """A loss in nats per token over those batches [B, T], in bits per byte of text: comparable between
    tokenizers, which cut the same text into more or fewer tokens.

    Args:
        scored_bytes: of tokens 2..T of each row, which are the ones that the loss counts.
    """
    tokens = sum(ids_BT[:, 1:].numel() for ids_BT in batches)
    return loss * tokens / (scored_bytes * math.log(2))


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: Sequence[Tensor], *, device: Device, stage: str) -> HeldOutLoss:
    """The loss of a model as it is now, over at least two batches [B, T], which processes that share the run
    take in turn.

    Raises:
        DivergedError: it is not finite; `stage` says when it was measured.
        RuntimeError: the model is a student at a lambda below 1, or with columns in full precision. Its loss
            would say nothing about what is deployed, and a search could cheat with it.
    """
    if not fully_quantised(model):
        raise RuntimeError(f"a loss was asked for at {stage}, where the student is not fully quantised")
    model.eval()
    predict, ranks, mine = NextTokenLoss(model), device.ranks, []
    for ids_BT in batches[ranks.rank :: ranks.world]:
        placed = device.place(ids_BT)
        with device.autocast():
            mine.append(float(predict(placed).ce))
    losses = in_turn(ranks.all_gather(mine))
    mean = statistics.fmean(losses)
    if not math.isfinite(mean):
        raise DivergedError(quantity="held-out loss", value=mean, stage=stage, step=0)
    return HeldOutLoss(mean=mean, sem=statistics.stdev(losses) / math.sqrt(len(losses)))


def in_turn(shares: Sequence[Sequence[float]]) -> list[float]:
    """What processes that took batches in turn have measured, in the order of the batches."""
    rounds = zip_longest(*shares)
    return [loss for losses in rounds for loss in losses if loss is not None]
