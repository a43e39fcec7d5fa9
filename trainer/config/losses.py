"""What Stages 1.9 and 2 minimise. Read by `trainer.losses` and `trainer.stages`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import PlainValidator
from pydantic.dataclasses import dataclass
from pydantic_core import from_json

from trainer.config.fields import STRICT, AboveZero, FieldError, NonNegative
from trainer.text import counted

LossType = Literal["mse_normalized", "cosine", "mse", "kl", "inner_product"]
LAYER_WEIGHTS = ("progressive", "uniform", "exponential")


def read_layer_weights(given: Any) -> str | tuple[float, ...]:
    """A name, or one number per layer: as a list, or as text ("[1,2,3,4]"), which is how a search space holds
    it. Raises FieldError."""
    if isinstance(given, str) and given in LAYER_WEIGHTS:
        return given
    listed = given
    if isinstance(given, str):
        try:
            listed = from_json(given)
        except ValueError:
            listed = None
    if not isinstance(listed, list | tuple) or not all(_is_weight(each) for each in listed):
        raise FieldError(
            f"{given!r} is neither {', '.join(LAYER_WEIGHTS)} nor a list of numbers, one from 0 up for each "
            "layer, such as [1,2,3,4]",
            key="",
        )
    if not sum(listed):
        raise FieldError("all layers weigh nothing; leave the distillation out with lm_loss_weight=1", key="")
    return tuple(float(each) for each in listed)


def _is_weight(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < math.inf


LayerWeights = Annotated[str | tuple[float, ...], PlainValidator(read_layer_weights)]


def check_layer_weights(weights: str | tuple[float, ...], layers: int) -> None:
    """A list has a number for each of the student's layers. Raises FieldError."""
    if not isinstance(weights, str) and len(weights) != layers:
        raise FieldError(
            f"{counted(len(weights), 'number')} for {counted(layers, 'layer')}; "
            "write one for each layer of the student",
            key="stage1_9.layer_weights",
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DistillScheduleConfig:
    """The weight w of the distillation part over the stage.

    Args:
        type: `constant`: `initial` all through, and `final` means nothing.
        initial, final: w in the first and in the last step.
    """

    type: Literal["constant", "linear", "cosine"]
    initial: NonNegative
    final: NonNegative

    @property
    def never_positive(self) -> bool:
        """Whether w is 0 in every step."""
        return self.initial == 0 and (self.type == "constant" or self.final == 0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage2DistillConfig:
    """What the teacher's predictions add to Stage 2's cross-entropy.

    Args:
        weight: of τ²·KL; 0 leaves the teacher out, and `temperature` means nothing.
        temperature: τ, of both models' predictions.
    """

    weight: NonNegative
    temperature: AboveZero

    @property
    def enabled(self) -> bool:
        """Whether the teacher is run in each step."""
        return self.weight > 0
