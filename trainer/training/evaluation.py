"""Held-out loss: of each sequence, its mean and standard errors, bits per byte, its course in a stage.

Every trial of a sweep is measured on the same text, so what is hard about the text is no noise between them.
The paired standard error takes it out: it is that of the differences to a reference, the teacher, on the
same sequences (a control variate; Glasserman, Monte Carlo Methods in Financial Engineering, 2003, section
4.1). Sequences of one document are alike, and count together.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor, nn

from sweeps.text.standard_error import standard_error
from trainer.config import EvalConfig
from trainer.devices.device import Device
from trainer.distributed.tensors import is_dtensor
from trainer.errors import DivergedError
from trainer.losses.next_token import NextTokenLoss
from trainer.quant.ternary import as_deployed, fully_quantised
from trainer.training.parallel import running

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """Cross-entropy on held-out text, in nats per token.

    Args:
        mean: over all sequences.
        by_sequence: the loss of each sequence, in the order of the batches.
    """

    mean: float
    by_sequence: tuple[float, ...] = ()

    @property
    def perplexity(self) -> float:
        """Return exp(mean); at most exp(709), as JSON has no infinity."""
        return math.exp(min(self.mean, 709.0))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Losses on one text: the finished student's, and the teacher's on the same sequences.

    Args:
        documents: number of the document of each sequence; empty if nothing tells them apart.
    """

    final: HeldOutLoss
    reference: HeldOutLoss
    documents: tuple[int, ...] = ()

    @property
    def text_sem(self) -> float:
        """Return the standard error of the student's loss, as if each run had text of its own."""
        return standard_error(self.final.by_sequence, self.documents)

    @property
    def paired_sem(self) -> float:
        """Return the standard error of the mean difference of the student's loss to the teacher's."""
        pairs = zip(self.final.by_sequence, self.reference.by_sequence, strict=True)
        return standard_error([ours - theirs for ours, theirs in pairs], self.documents)


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
        model: left in evaluation mode. One that is sharded stays so (`parallel.running`).
        batches: at least two, of token ids [B, T]; all sequences count alike.
        stage: when the loss is measured, for errors.

    Raises:
        DivergedError: the loss is not finite.
        RuntimeError: the model is a student at a lambda below 1, or with columns in full precision. Its loss
            would say nothing about what is deployed, and a search could exploit it.
    """
    if not fully_quantised(model):
        raise RuntimeError(f"a loss was asked for at {stage}, where the student is not fully quantised")
    model.eval()
    ranks, own = device.ranks, []
    mine = list(batches[ranks.rank :: ranks.world])
    count = len(mine)
    if any(is_dtensor(parameter) for parameter in model.parameters()):
        # A sharded model is gathered from all processes, which must run it equally often.
        mine += batches[: -(-len(batches) // ranks.world) - count]
    with running(model):
        loss = NextTokenLoss(model)
        for ids_BT in mine:
            placed = device.place(ids_BT)
            with device.autocast():
                own.append(loss.by_sequence(placed).tolist())
    del own[count:]
    losses = [each for batch in in_turn(ranks.all_gather(own)) for each in batch]
    mean = statistics.fmean(losses)
    if not math.isfinite(mean):
        raise DivergedError(quantity="held-out loss", value=mean, stage=stage, step=0)
    return HeldOutLoss(mean=mean, by_sequence=tuple(losses))


def in_turn(shares: Sequence[Sequence[T]]) -> list[T]:
    """Return what was measured in the order of the batches.

    Args:
        shares: of each process, the results of the batches that it took in turn.
    """
    rounds = zip_longest(*shares)
    return [result for results in rounds for result in results if result is not None]


@dataclass(frozen=True, kw_only=True)
class HeldOutPoint:
    """A held-out loss after a step of a stage.

    Args:
        step: one-based, of `of`.
        loss: in nats per token; None: it was not finite.
        sequences: that it is the mean of.
        seconds: that measuring it took, without compiling.
    """

    stage: str
    step: int
    of: int
    loss: float | None
    sequences: int
    seconds: float


class StageEvaluation:
    """Measures the held-out loss after the steps that the configuration names. Called by `loop`.

    It measures the student as it would be deployed now, on a fixed part of the text. What a stage trains on
    depends on lambda, salient columns and weights of losses; this does not, so that trials can be compared
    before they end. Nothing that training depends on is changed.

    The end of the last stage is left out: there the final loss is measured, which `at_end` takes over.

    Args:
        config: says when, and on how many of the batches.
        batches: token ids [B, T], all that the final loss is measured on.
        last: the last stage that is trained, and its steps; None: there is none.
        report: called with each loss.
        during: entered while one is measured, with the place in words.
    """

    def __init__(
        self,
        config: EvalConfig,
        batches: Sequence[Tensor],
        *,
        device: Device,
        last: tuple[str, int] | None,
        report: Callable[[HeldOutPoint], None],
        during: Callable[[str], AbstractContextManager[None]] = lambda place: nullcontext(),
    ) -> None:
        self._config, self._part, self._device = config, batches[: config.part_batches], device
        self._last, self._report, self._during = last, report, during

    def due(self, stage: str, step: int, of: int) -> bool:
        """Return whether the loss is to be measured after the one-based step."""
        return (stage, step) != self._last and self._config.measures_after(step, of)

    def measure(self, model: nn.Module, stage: str, step: int, of: int) -> float:
        """Measure and report the loss after a step; return the seconds that it took, without compiling.

        A loss that is not finite ends no run: training may do well at the lambda of this step.

        Args:
            step: one-based, of `of`.
        """
        device, place = self._device, f"step {step} of {of} in {stage}"
        began, compiled = time.perf_counter(), device.compile_seconds()
        loss: float | None
        with (
            self._during(place),
            device.separate_graph(),
            as_deployed(model),
            device.separate_graph(),  # lambda is set before it, so that it is the same whatever lambda was
        ):
            try:
                loss = held_out_loss(model, self._part, device=device, stage=place).mean
            except DivergedError:  # as above
                loss = None
        model.train()
        seconds = time.perf_counter() - began - (device.compile_seconds() - compiled)
        self._add(stage, step, of, loss, seconds)
        return seconds

    def at_end(self, final: HeldOutLoss) -> None:
        """Report the end of the last stage, if it is due, from the final loss on all batches."""
        if self._last is None:
            return
        stage, steps = self._last
        if self._config.measures_after(steps, steps):
            self._add(stage, steps, steps, statistics.fmean(final.by_sequence[: self._sequences]), 0.0)

    @property
    def _sequences(self) -> int:
        return sum(len(ids_BT) for ids_BT in self._part)

    def _add(self, stage: str, step: int, of: int, loss: float | None, seconds: float) -> None:
        self._report(
            HeldOutPoint(stage=stage, step=step, of=of, loss=loss, sequences=self._sequences, seconds=seconds)
        )
