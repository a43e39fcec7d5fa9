"""Configuration of the losses of Stages 1.9 and 2. Read by `trainer.losses` and `trainer.stages`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import PlainValidator
from pydantic.dataclasses import dataclass
from pydantic_core import from_json

from sweeps.text.counted import counted
from trainer.config.fields import STRICT, AboveZero, FieldError, NonNegative

LossType = Literal["mse_normalized", "cosine", "mse", "kl", "inner_product"]
LAYER_WEIGHTS = ("progressive", "uniform", "exponential")


def read_layer_weights(value: Any) -> str | tuple[float, ...]:
    """Return a named scheme, or one number per layer.

    Args:
        value: a name, a list of numbers, or such a list as text ("[1,2,3,4]"), as search spaces hold it.

    Raises:
        FieldError: for anything else.
    """
    if isinstance(value, str) and value in LAYER_WEIGHTS:
        return value
    listed = value
    if isinstance(value, str):
        try:
            listed = from_json(value)
        except ValueError:
            listed = None
    if not isinstance(listed, list | tuple) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < math.inf
        for each in listed
    ):
        raise FieldError(
            f"{value!r} is neither {', '.join(LAYER_WEIGHTS)} nor a list of numbers, one from 0 up for each "
            "layer, such as [1,2,3,4]",
            key="",
        )
    if not sum(listed):
        raise FieldError("all layers weigh nothing; leave the distillation out with lm_loss_weight=1", key="")
    return tuple(float(each) for each in listed)


LayerWeights = Annotated[str | tuple[float, ...], PlainValidator(read_layer_weights)]


def check_layer_weights(weights: str | tuple[float, ...], layers: int) -> Iterator[FieldError]:
    """Yield a FieldError if a list of weights does not have one for each of the student's layers."""
    if not isinstance(weights, str) and len(weights) != layers:
        yield FieldError(
            f"{counted(len(weights), 'number')} for {counted(layers, 'layer')}; "
            "write one for each layer of the student",
            key="stage1_9.layer_weights",
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DistillScheduleConfig:
    """The weight w of the distillation part over the stage.

    Args:
        type: `constant`: `initial` throughout, and `final` has no effect.
        initial, final: w in the first and in the last step.
    """

    type: Literal["constant", "linear", "cosine"]
    initial: NonNegative
    final: NonNegative

    @property
    def never_positive(self) -> bool:
        """Return whether w is 0 in every step."""
        return self.initial == 0 and (self.type == "constant" or self.final == 0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage2DistillConfig:
    """Distillation of the teacher's predictions in Stage 2, added to the cross-entropy.

    Args:
        weight: of τ²·KL; 0 leaves the teacher out, and `temperature` has no effect.
        temperature: τ, of both models' predictions.
    """

    weight: NonNegative
    temperature: AboveZero

    @property
    def enabled(self) -> bool:
        """Return whether each step runs the teacher's forward pass."""
        return self.weight > 0
