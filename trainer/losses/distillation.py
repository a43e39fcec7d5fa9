"""The losses on predictions of Stage 3, and its total. Used by `stages.distill` and `next_token`.

Shapes: B sequences, T tokens, V vocabulary; `logits_BTV`. All are in nats per predicted token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def tempered_divergence(student_BTV: Tensor, teacher_BTV: Tensor, *, temperature: float) -> Tensor:
    """Return L_LD of BitDistill (arXiv:2510.13998), eq. 8 and 9, of the tokens that `next_token_loss` counts.

    The mean KL(softmax(t/τ) ‖ softmax(s/τ)), not multiplied by τ², as in the paper. The research notebook and
    the authors' published code do multiply; a weight that was meant for them is to be multiplied by τ² here.
    """
    log_student = F.log_softmax(at_least_float32(student_BTV[:, :-1]) / temperature, dim=-1)
    log_teacher = F.log_softmax(at_least_float32(teacher_BTV[:, :-1]) / temperature, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1).mean()


def bitdistill_loss(
    *,
    ce: Tensor,
    logits_kl: Tensor,
    attention_kl: Tensor | None,
    logits_weight: float,
    attention_weight: float,
) -> Tensor:
    """Return eq. 13 of BitDistill: CE (eq. 7) + λ·L_LD + γ·L_AD, without the last where there is none."""
    loss = ce + logits_weight * logits_kl
    return loss if attention_kl is None else loss + attention_weight * attention_kl


def at_least_float32(x: Tensor) -> Tensor:
    """Convert bfloat16 and float16, which are too coarse for the difference of two logarithms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
