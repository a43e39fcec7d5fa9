"""Held-out loss with its standard error, and bits per byte. Called by `pipeline` and `teachers`."""

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
        """Return exp(mean); at most exp(709), as JSON has no infinity."""
        return math.exp(min(self.mean, 709.0))


def bits_per_byte(loss: float, batches: Sequence[Tensor], scored_bytes: int) -> float:
    """Convert nats per token to bits per byte of text, which tokenizers of different sizes have in common.

    Args:
        loss: mean over tokens 2..T of each row, in nats.
        batches: token ids [B, T].
        scored_bytes: length of these tokens' text.
    """
    tokens = sum(ids_BT[:, 1:].numel() for ids_BT in batches)
    return loss * tokens / (scored_bytes * math.log(2))


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: Sequence[Tensor], *, device: Device, stage: str) -> HeldOutLoss:
    """Return the mean loss over batches, which processes that share the run take in turn.

    Args:
        model: left in evaluation mode.
        batches: at least two, of token ids [B, T].
        device: of the model.
        stage: when the loss is measured, for errors.

    Raises:
        DivergedError: the loss is not finite.
        RuntimeError: the model is a student at a lambda below 1, or with columns in full precision. Its loss
            would say nothing about what is deployed, and a search could exploit it.
    """
    if not fully_quantised(model):
        raise RuntimeError(f"a loss was asked for at {stage}, where the student is not fully quantised")
    model.eval()
    predict, ranks, own = NextTokenLoss(model), device.ranks, []
    for ids_BT in batches[ranks.rank :: ranks.world]:
        placed = device.place(ids_BT)
        with device.autocast():
            own.append(float(predict(placed).ce))
    losses = in_turn(ranks.all_gather(own))
    mean = statistics.fmean(losses)
    if not math.isfinite(mean):
        raise DivergedError(quantity="held-out loss", value=mean, stage=stage, step=0)
    return HeldOutLoss(mean=mean, sem=statistics.stdev(losses) / math.sqrt(len(losses)))


def in_turn(shares: Sequence[Sequence[float]]) -> list[float]:
    """Return the losses in the order of the batches.

    Args:
        shares: of each process, the losses of the batches that it took in turn.
    """
    rounds = zip_longest(*shares)
    return [loss for losses in rounds for loss in losses if loss is not None]
