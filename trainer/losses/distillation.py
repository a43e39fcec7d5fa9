"""The divergence from a teacher's predictions. Used by `next_token`.

Shapes: B sequences, T tokens, V vocabulary; `logits_BTV`. All are in nats per predicted token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F


class Predictions:
    """Base of dataclasses of a teacher's predictions: tensors whose first dimension is that of the sequences.

    A field may be such a dataclass itself, or None.
    """

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the same with a function of each tensor."""
        this: Any = self
        values = {field.name: getattr(this, field.name) for field in fields(this)}
        changed = {
            name: value.mapped(function) if isinstance(value, Predictions) else function(value)
            for name, value in values.items()
            if value is not None
        }
        return replace(this, **changed)  # type: ignore[no-any-return] # of the same class

    def rows(self, first: int, end: int) -> Self:
        """Return those of the sequences `first` to `end` - 1."""
        return self.mapped(lambda tensor: tensor[first:end])


def tempered_divergence(student_BTV: Tensor, teacher_BTV: Tensor, *, temperature: float | Tensor) -> Tensor:
    """Return L_LD of BitDistill (arXiv:2510.13998), eq. 8 and 9, of the tokens that `next_token_loss` counts.

    The mean KL(softmax(t/τ) ‖ softmax(s/τ)), not multiplied by τ², as in the paper. The research notebook and
    the authors' published code do multiply; a weight that was meant for them is to be multiplied by τ² here,
    as Stage 3's default is.
    """
    log_student = F.log_softmax(at_least_float32(student_BTV[:, :-1]) / temperature, dim=-1)
    log_teacher = F.log_softmax(at_least_float32(teacher_BTV[:, :-1]) / temperature, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1).mean()


def at_least_float32(x: Tensor) -> Tensor:
    """Convert bfloat16 and float16, which are too coarse for the difference of two logarithms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
