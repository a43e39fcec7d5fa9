"""Held-out loss of each sequence, its mean and standard errors, and bits per byte.

Every trial of a sweep is measured on the same text, so what is hard about the text is no noise between them.
The paired standard error takes it out: it is that of the differences to a reference, the teacher, on the
same sequences (a control variate; Glasserman, Monte Carlo Methods in Financial Engineering, 2003, section
4.1).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor, nn

from trainer.devices.device import Device
from trainer.errors import DivergedError
from trainer.losses.next_token import NextTokenLoss
from trainer.quant.ternary import fully_quantised

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """Cross-entropy on held-out text, in nats per token.

    Args:
        mean: over all sequences.
        sem: standard error of the mean over sequences, as if each run had text of its own.
        by_sequence: the loss of each sequence, in the order of the text.
    """

    mean: float
    sem: float
    by_sequence: tuple[float, ...] = ()

    @property
    def perplexity(self) -> float:
        """Return exp(mean); at most exp(709), as JSON has no infinity."""
        return math.exp(min(self.mean, 709.0))

    def paired_sem(self, reference: HeldOutLoss) -> float:
        """Return the standard error of the mean difference to a loss on the same sequences.

        Args:
            reference: of a model that all runs to be compared have in common.
        """
        pairs = zip(self.by_sequence, reference.by_sequence, strict=True)
        return _standard_error([ours - theirs for ours, theirs in pairs])


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Losses on one text: the finished student's, and the teacher's on the same sequences."""

    final: HeldOutLoss
    reference: HeldOutLoss

    @property
    def paired_sem(self) -> float:
        """Return the standard error of the student's loss beside the teacher's."""
        return self.final.paired_sem(self.reference)


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
        batches: at least two, of token ids [B, T]; all sequences count alike.
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
    loss, ranks, own = NextTokenLoss(model), device.ranks, []
    for ids_BT in batches[ranks.rank :: ranks.world]:
        placed = device.place(ids_BT)
        with device.autocast():
            own.append(loss.by_sequence(placed).tolist())
    losses = [each for batch in in_turn(ranks.all_gather(own)) for each in batch]
    mean = statistics.fmean(losses)
    if not math.isfinite(mean):
        raise DivergedError(quantity="held-out loss", value=mean, stage=stage, step=0)
    return HeldOutLoss(mean=mean, sem=_standard_error(losses), by_sequence=tuple(losses))


def in_turn(shares: Sequence[Sequence[T]]) -> list[T]:
    """Return what was measured in the order of the batches.

    Args:
        shares: of each process, the results of the batches that it took in turn.
    """
    rounds = zip_longest(*shares)
    return [result for results in rounds for result in results if result is not None]


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
