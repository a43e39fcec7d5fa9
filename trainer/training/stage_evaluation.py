"""Held-out loss within a stage: of the student as it would be deployed now, on a fixed part of the text.

What a stage trains on depends on lambda, salient columns and weights of losses; this does not, so that trials
can be compared before they end. Nothing that training depends on is changed. Built by `pipeline`, called by
`loop` after a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn

from trainer.config import EvalConfig
from trainer.devices.device import Device
from trainer.errors import DivergedError
from trainer.quant.ternary import as_deployed
from trainer.training.evaluation import HeldOutLoss, held_out_loss


@dataclass(frozen=True, kw_only=True)
class HeldOutPoint:
    """A held-out loss after a step of a stage.

    Args:
        stage: its name.
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
    """Measures the held-out loss after the steps that the configuration names.

    The end of the last stage is left out: there the final loss is measured, which `at_end` takes over.

    Args:
        config: says when, and on how many of the batches.
        batches: token ids [B, T], all that the final loss is measured on.
        device: of the model.
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

    def measure(
        self, model: nn.Module, stage: str, step: int, of: int, *, weights: AbstractContextManager[None]
    ) -> float:
        """Measure and report the loss after a step; return the seconds that it took, without compiling.

        A loss that is not finite ends no run: training may do well at the lambda of this step.

        Args:
            model: in training mode.
            stage: its name.
            step: one-based, of `of`.
            of: steps of the stage.
            weights: a context in which this process has the full weights.
        """
        device, place = self._device, f"step {step} of {of} in {stage}"
        began, compiled = time.perf_counter(), device.compile_seconds()
        with (
            self._during(place),
            weights,
            device.separate_graph(),
            as_deployed(model),
            device.separate_graph(),  # lambda is set before it, so that it is the same whatever lambda was
        ):
            loss = self._loss(model, place)
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

    def _loss(self, model: nn.Module, place: str) -> float | None:
        try:
            return held_out_loss(model, self._part, device=self._device, stage=place).mean
        except DivergedError:
            return None

    @property
    def _sequences(self) -> int:
        return sum(len(ids_BT) for ids_BT in self._part)

    def _add(self, stage: str, step: int, of: int, loss: float | None, seconds: float) -> None:
        self._report(
            HeldOutPoint(stage=stage, step=step, of=of, loss=loss, sequences=self._sequences, seconds=seconds)
        )
