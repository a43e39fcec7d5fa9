"""Divergence of two models' relations between the tokens of a text, in one layer. Used by `stages.distill`.

Shapes: B sequences, T tokens, A relation heads, D features of a projection (of a student, of a teacher, of a
query, of a key: each its own), d = D / A; `states_BTD`, `relation_BATT`.

The loss is L_AD of BitDistill (arXiv:2510.13998), eq. 10 to 12, at one layer, as the paper recommends:

    R = softmax(A·Aᵀ / √d)      A: the queries, the keys or the values of one head
    L_AD = Σ over Q, K, V of the mean over sequences, heads and tokens of KL(R_teacher ‖ R_student)

Nothing is masked: the paper's relation is over all pairs of tokens (with `data.document_masks`, over pairs in
one document). `cosine` is the paper's algorithm 1 instead of its eq. 12: the states are made unit vectors and
there is no √d. Its relations are flatter, and its losses smaller.

The research notebook takes for A the attention weights of the layer, softmax(Q·Kᵀ). The paper does not: its
Φ is {Q, K, V} (eq. 10). The authors' published code takes queries and keys after the rotary embedding (and
after the norm that Qwen3 puts on them), compares them as `cosine` does, and divides by the number of heads
once more than eq. 11 does. Here they are the projections' outputs, as in eq. 10, and the mean is eq. 11's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.losses.distillation import at_least_float32

Relation = Literal["scaled", "cosine"]


def relation_divergence(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    *,
    heads: int,
    relation: Relation,
    documents_BT: Tensor | None = None,
) -> Tensor:
    """Return L_AD in nats, computed in float32 at least.

    Args:
        student: queries, keys and values of one layer, each [B, T, D].
        teacher: the same of the teacher.
        heads: A; it divides every D.
        relation: `scaled`, or `cosine`.
        documents_BT: the number of each token's document in its sequence; None: tokens relate to all.
    """
    other_B1TT = None
    if documents_BT is not None:
        other_B1TT = (documents_BT[:, :, None] != documents_BT[:, None, :])[:, None]
    per_state = [
        _mean_kl(_log_relation(s, heads, relation, other_B1TT), _log_relation(t, heads, relation, other_B1TT))
        for s, t in zip(student, teacher, strict=True)
    ]
    return torch.stack(per_state).sum()


def _log_relation(states_BTD: Tensor, heads: int, relation: Relation, other_B1TT: Tensor | None) -> Tensor:
    """Return log R, [B, A, T, T], with no relation to tokens of other documents."""
    split_BATd = at_least_float32(states_BTD).reshape(*states_BTD.shape[:-1], heads, -1).transpose(1, 2)
    if relation == "cosine":
        split_BATd = F.normalize(split_BATd, dim=-1)
    else:
        split_BATd = split_BATd * split_BATd.shape[-1] ** -0.25  # √d of the product, shared by its factors
    # Autocast would make this product bfloat16 again.
    with torch.autocast(split_BATd.device.type, enabled=False):
        products_BATT = split_BATd @ split_BATd.transpose(-2, -1)
        if other_B1TT is not None:  # finite, so that the divergence subtracts no infinities
            products_BATT = products_BATT.masked_fill(other_B1TT, -1e30)
        return F.log_softmax(products_BATT, dim=-1)


def _mean_kl(log_student_BATT: Tensor, log_teacher_BATT: Tensor) -> Tensor:
    return (log_teacher_BATT.exp() * (log_teacher_BATT - log_student_BATT)).sum(dim=-1).mean()
