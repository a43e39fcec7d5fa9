"""Losses on next-token predictions. Used by `stages` and `evaluate`.

Shapes: B sequences, T tokens, V vocabulary; `logits_BTV`, `ids_BT`. All are in nats per predicted token.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def next_token_loss(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Mean cross-entropy of tokens 2..T given what precedes them."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), ids_BT[:, 1:].flatten())


def teacher_divergence(student_BTV: Tensor, teacher_BTV: Tensor) -> Tensor:
    """Mean KL(teacher || student) over the positions that `next_token_loss` counts, at temperature 1.

    Written with a soft cross-entropy and not with `F.kl_div`, which XLA lowers badly.
    """
    log_student = F.log_softmax(student_BTV[:, :-1].float(), dim=-1)
    log_teacher = F.log_softmax(teacher_BTV[:, :-1].float(), dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1).mean()
