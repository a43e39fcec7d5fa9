"""Averaged weights: a second copy of the student's, updated after each step of the last stage.

Evaluated and exported in place of those of the last step. Built by `pipeline`, called by `loop`. It is of
master weights, from which ternary ones are made: the average of ternary weights would not be ternary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.checkpoint.parts import AVERAGE, copy_into, live_targets
from trainer.checkpoint.state import State
from trainer.config.training import AverageConfig
from trainer.devices.lazy_tensor import is_lazy, step_scalar
from trainer.distributed.tensors import is_dtensor


class WeightAverage:
    """The average of a model's parameters over steps of one stage. A part of a checkpoint.

        a ← a + (w - a)·r,  r = 1/n (`last`),  r = max(1/n, 1 - decay) (`ema`)

    for the n-th step that counts, so that `ema` begins as a mean and forgets what was before (no bias, as in
    Adam's correction). Kept in float32, whatever the weights are: a small r would be lost in bfloat16.
    """

    def __init__(self, model: nn.Module, config: AverageConfig, *, stage: str, steps: int) -> None:
        self.stage = stage
        self._model, self._config = model, config
        self._first = steps - config.steps + 1 if config.type == "last" else 1
        self._count = 0
        self._averages: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Make the copy, with weights sharded as they are trained."""
        self._count = 0
        self._averages = {
            name: torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            for name, parameter in self._model.named_parameters()
        }

    @torch.no_grad()
    def after(self, step: int) -> None:
        """Take in the weights after the one-based step of the stage."""
        if step < self._first:
            return
        self._count += 1
        rate = 1 / self._count
        if self._config.type == "ema":
            rate = max(rate, 1 - self._config.decay)
        weights = [parameter.detach() for parameter in self._model.parameters()]
        averages = list(self._averages.values())  # of the same names, in the same order
        if all(each.dtype == torch.float32 and not (is_lazy(each) or is_dtensor(each)) for each in weights):
            torch._foreach_lerp_(averages, weights, rate)  # some launches, not one for each parameter
            return
        for average, weight in zip(averages, weights, strict=True):
            average.lerp_(weight.float(), step_scalar(rate, weight))

    @torch.no_grad()
    def apply(self) -> None:
        """Give the model the averaged weights, in its own dtype; what auto-freeze has frozen stays."""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(self._averages[name])

    def state(self) -> State:
        return State(tensors=dict(self._averages), values={"count": self._count})

    def restore(self, state: State) -> None:
        copy_into(self._averages, state.tensors, part=AVERAGE)
        self._count = state.values["count"]

    def targets(self, saved: State) -> dict[str, Tensor]:
        return live_targets(self._averages, saved, part=AVERAGE)
