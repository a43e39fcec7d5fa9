"""Configuration of averaged weights. Read by `trainer.training.weight_average`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Decay, FieldError, Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AverageConfig:
    """An average of the student's weights over the last stage, which the student has in the end.

    It changes no step: the weights that are trained go on as they are.

    Args:
        type: `none`; `ema`: exponential moving average; `last`: mean over the last steps of the stage (LAWA,
            arXiv:2209.14981).
        decay: of `ema`; until 1/(1-decay) steps are averaged it is their plain mean.
        steps: of `last`, so many.
    """

    type: Literal["none", "ema", "last"]
    decay: Decay
    steps: Positive

    def stage(self, steps: Mapping[str, int]) -> str | None:
        """Return the stage that is averaged: the last that is trained of Stages 2 and 3; None: none is.

        Args:
            steps: of each stage, in the order of the stages.
        """
        trained = [name for name in ("stage2", "stage3") if steps[name]]
        return trained[-1] if trained and self.type != "none" else None

    def check(self, steps: Mapping[str, int]) -> Iterator[FieldError]:
        """Yield a FieldError if there is no stage to average, or too few steps."""
        if self.type == "none":
            return
        name = self.stage(steps)
        if name is None:
            yield FieldError("neither Stage 2 nor Stage 3 is trained; write none", key="type")
        elif self.type == "last" and self.steps > steps[name]:
            yield FieldError(
                f"{self.steps} is more than {name}.max_steps ({steps[name]}); write that at most", key="steps"
            )
