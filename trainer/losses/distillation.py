"""The losses on predictions of Stage 3, and its total. Used by `stages.distill`; the first by `pretrain` too.

Shapes: B sequences, T tokens, V vocabulary; `logits_BTV`. All are in nats per predicted token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def tempered_divergence(student_BTV: Tensor, teacher_BTV: Tensor, *, temperature: float) -> Tensor:
    """L_LD of BitDistill (arXiv:2510.13998), eq. 8 and 9: mean KL(softmax(t/τ) ‖ softmax(s/τ)) over the
    positions that `logits.next_token_loss` counts.

    Not multiplied by τ², as in the paper; the research notebook does so, and the authors' published code. Its
    gradient shrinks with τ² therefore: a weight that was meant for the other is to be multiplied by it.
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
    """Eq. 13 of BitDistill: CE (eq. 7) + λ·L_LD + γ·L_AD, without the last where there is none."""
    loss = ce + logits_weight * logits_kl
    return loss if attention_kl is None else loss + attention_weight * attention_kl


def at_least_float32(x: Tensor) -> Tensor:
    """bfloat16 is too coarse for the difference of two logarithms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
