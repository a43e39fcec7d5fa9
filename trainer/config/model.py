"""Configuration of the model and its teacher. Read by `models.causal_lm` and `stages.teacher`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from pydantic.dataclasses import dataclass

from trainer.config.fields import (
    STRICT,
    Checked,
    Count,
    FieldError,
    Positive,
    Text,
)
from trainer.config.optimizer import StepsConfig

MasterDtype = Literal["auto", "float32", "bfloat16"]
_HEAD_SIZE, _MLP_RATIO = 32, 3  # of the ladder, as the tiny model has them


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TeacherConfig(StepsConfig):
    """Training of the full-precision teacher of a tiny model or a rung, once for all runs that share it.

    Args:
        max_steps: optimizer steps.
        seed: of its weights and of the order of its text.
    """

    max_steps: Positive  # no teacher without a step
    seed: Count


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TinyModelConfig(Checked):
    """A small Llama, and its teacher, whose weights are float32.

    Args:
        kind: set by the group `model`.
        master_dtype: of the student's weights.
        hidden_size: width, an even multiple of `heads`.
        intermediate_size: width of the MLP's hidden layer.
        layers: decoder layers.
        heads: attention heads; keys and values have as many.
    """

    kind: Literal["tiny"]
    master_dtype: Literal["float32", "bfloat16"]
    hidden_size: Positive
    intermediate_size: Positive
    layers: Positive
    heads: Positive
    teacher: TeacherConfig

    def contradictions(self) -> Iterator[FieldError]:
        if self.hidden_size % (2 * self.heads):
            yield FieldError(
                f"{self.hidden_size} is not an even multiple of heads ({self.heads}); write a multiple of "
                f"{2 * self.heads}",
                key="hidden_size",
            )

    def with_layers(self, layers: int) -> TinyModelConfig:
        """Return the same model with so many layers."""
        return dataclasses.replace(self, layers=layers)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LadderModelConfig(Checked):
    """A rung of a family of Llamas of one shape, and its teacher, whose weights are float32.

    Args:
        kind: set by the group `model`.
        master_dtype: of the student's weights.
        width: hidden size, a multiple of the head size, 32; the MLP is three times as wide.
        depth: decoder layers; the rungs have one for each 32 of the width.
    """

    kind: Literal["ladder"]
    master_dtype: Literal["float32", "bfloat16"]
    width: Positive
    depth: Positive
    teacher: TeacherConfig

    def contradictions(self) -> Iterator[FieldError]:
        if self.width % _HEAD_SIZE:
            below = self.width // _HEAD_SIZE * _HEAD_SIZE
            options = f"{below} or {below + _HEAD_SIZE}" if below else f"{_HEAD_SIZE}"
            yield FieldError(
                f"heads of size {_HEAD_SIZE} do not divide {self.width}; write {options}", key="width"
            )

    @property
    def hidden_size(self) -> int:
        return self.width

    @property
    def intermediate_size(self) -> int:
        return _MLP_RATIO * self.width

    @property
    def layers(self) -> int:
        return self.depth

    @property
    def heads(self) -> int:
        return self.width // _HEAD_SIZE

    def with_layers(self, layers: int) -> LadderModelConfig:
        """Return the same model with so many layers."""
        return dataclasses.replace(self, depth=layers)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScaleRuleConfig:
    """How learning rates and initial sizes follow the size of a model (see `trainer.models.scale_rule`).

    Args:
        type: `none`: not at all. `rms`: learning rates fall with width and depth, so that the root mean
            square of what an update adds to a layer's outputs stays what it is at the base. `mup`: also the
            initial sizes of a teacher that is trained here, and once more the rates of what ends a branch.
        base_width: hidden size at which learning rates are what they say.
        base_depth: layers at which they are.
    """

    type: Literal["none", "rms", "mup"]
    base_width: Positive
    base_depth: Positive


TrainedHereConfig = TinyModelConfig | LadderModelConfig
"""A model whose teacher is trained here, where there is no pretrained one."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HfModelConfig:
    """A pretrained model with its own tokenizer.

    Args:
        kind: set by the group `model`.
        name: a folder, or a name on the Hugging Face hub.
        dtype: of the teacher's weights; `auto` keeps what the checkpoint was saved in, and refuses float16.
        master_dtype: of the student's weights, which the optimizer updates; `auto`: as the teacher's. An
            update smaller than 2^-9 of a weight is lost in bfloat16.
    """

    kind: Literal["hf"]
    name: Text
    dtype: Literal["auto", "float32", "bfloat16"]
    master_dtype: MasterDtype
