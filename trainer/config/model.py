"""Configuration of the model and its teacher. Read by `models.causal_lm` and `stages.teacher`."""

from __future__ import annotations

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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TeacherConfig(StepsConfig):
    """Training of the tiny model's full-precision teacher, once for all runs that share it.

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
