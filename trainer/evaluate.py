"""Held-out loss, with its standard error. Called by `pipeline` and `teacher`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.device import Device
from trainer.errors import DivergedError
from trainer.losses.logits import next_token_loss
from trainer.model import run


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """Mean cross-entropy in nats per token, and the standard error of that mean over the batches."""

    mean: float
    sem: float

    @property
    def perplexity(self) -> float:
        """exp(mean); at most the largest float, as JSON has no infinity."""
        return math.exp(min(self.mean, 709.0))


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: Sequence[Tensor], *, device: Device, stage: str) -> HeldOutLoss:
    """The loss of a model as it is now, over at least two batches [B, T].

    Raises:
        DivergedError: it is not finite; `stage` says when it was measured.
    """
    model.eval()
    losses = []
    for ids_BT in batches:
        placed = device.place(ids_BT)
        with device.autocast():
            losses.append(float(next_token_loss(run(model, placed).logits, placed)))
    mean = statistics.fmean(losses)
    if not math.isfinite(mean):
        raise DivergedError(quantity="held-out loss", value=mean, stage=stage, step=0)
    return HeldOutLoss(mean=mean, sem=statistics.stdev(losses) / math.sqrt(len(losses)))
