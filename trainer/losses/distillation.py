"""The divergence from a teacher's predictions. Used by `next_token`.

Shapes: B sequences, T tokens, V vocabulary; `logits_BTV`. All are in nats per predicted token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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
