"""Stage 3, distillation after BitDistill, and where its teacher runs. Read by `trainer.stages.distill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic.dataclasses import dataclass

from trainer.config.fields import (
    STRICT,
    AboveZero,
    Count,
    FieldError,
    NonNegative,
    Positive,
    check_micro_batch,
    check_warmup,
)
from trainer.config.optimizer import OptimizerConfig, ScheduleConfig


@dataclass(frozen=True, kw_only=True, config=STRICT)
class InProcessTeacherConfig:
    """The full-precision model that the student was made from, beside the student on the same device."""

    kind: Literal["in_process"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage3Config:
    """Stage 3 (arXiv:2510.13998 §3.3). `max_steps` 0 leaves it out. CE + λ·logits KL + γ·attention KL.

    Args:
        logits_weight: λ of eq. 13.
        attention_weight: γ of eq. 13; 0 leaves the attention relations out, and `attention_*` means nothing.
        temperature: τ of eq. 9, of both models' predictions.
        attention_layer: the one layer of the student whose queries, keys and values are compared (-1 is the
            last), with those of the teacher's layer that it was copied from.
        attention_heads: heads that each projection is split into for it; null takes the model's
            key-value heads.
        attention_relation: `scaled`: softmax(A·Aᵀ/√d), eq. 12; `cosine`: of unit vectors and without √d, as
            in the paper's algorithm 1.
    """

    max_steps: Count
    batch_size: Positive
    micro_batch_size: Positive | None
    logits_weight: NonNegative
    attention_weight: NonNegative
    temperature: AboveZero
    attention_layer: int
    attention_heads: Positive | None
    attention_relation: Literal["scaled", "cosine"]
    teacher: InProcessTeacherConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig

    def __post_init__(self) -> None:
        check_warmup(self.schedule.warmup_steps, self.max_steps, key="schedule.warmup_steps")
        check_micro_batch(self.micro_batch_size, self.batch_size)
        if not self.logits_weight and not self.attention_weight:
            raise FieldError(
                "without it, and with attention_weight 0, nothing is distilled; give stage2 the steps",
                key="logits_weight",
            )

    @property
    def compares_attention(self) -> bool:
        """Whether there is any step that looks at it."""
        return self.max_steps > 0 and self.attention_weight > 0


def check_attention_layer(stage3: Stage3Config, layers: int) -> None:
    """The layer is one of the student's. Raises FieldError."""
    if stage3.compares_attention and not -layers <= stage3.attention_layer < layers:
        raise FieldError(
            f"there is no layer {stage3.attention_layer}: the student has {layers}, 0 to {layers - 1}, "
            f"or -1 to -{layers} from the end",
            key="stage3.attention_layer",
        )


def check_attention_heads(stage3: Stage3Config, *, widths: Sequence[int], key_heads: int) -> None:
    """Queries, keys and values of those widths can be split. Raises FieldError.

    Args:
        key_heads: the model's key-value heads, which stand for `attention_heads` null.
    """
    heads = stage3.attention_heads or key_heads
    if stage3.compares_attention and any(width % heads for width in widths):
        told = ", ".join(map(str, widths))
        raise FieldError(
            f"{heads} does not divide the widths of queries, keys and values ({told})",
            key="stage3.attention_heads",
        )
