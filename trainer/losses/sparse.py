"""Losses over K + R candidates per position instead of the whole vocabulary. Used by `stages.distill`.

At each position there are the teacher's K likeliest tokens, and R negatives: one token from each of R equal
strata of the V - K others (`teachers.cached.sampling`), so that each of these is expected R/(V-K) times.
A sum over the vocabulary is estimated without bias by giving each negative the weight of those it stands for
(Horvitz and Thompson 1952):

    Σ_v f(v)  ≈  Σ_K f(v) + w·Σ_R f(v),        w = (V-K)/R

Softmaxes take such sums through their logits: log w is added to a negative's. This is the log-Q correction of
sampled softmax (Bengio and Senécal 2008; Jean et al., arXiv:1412.2007 §3).

    KL  = Σ_c q_c·(log q_c - log p_c),   q = softmax(t/τ + log w),  p = softmax(s/τ + log w)
    CE  = log(e^{s_y} + Σ_{c≠y} w_c·e^{s_c}) - s_y

An anchor is a second teacher, with candidates of its own.

What is exact, and what is not:

- With every token among the candidates (K = V, or K + R = V) both are the dense losses, and so are their
  gradients.
- KL is a divergence for any candidates: never negative, and zero with a zero gradient where the
  student's candidates agree with the teacher's up to a constant. Both normalisers come from the same
  candidates, so most of what chance does to them cancels.
- A normaliser is estimated without bias, its logarithm is not: E log Ẑ ≤ log Z (Jensen), by about
  Var(Ẑ)/(2Z²), and CE is too low by it. Only the negatives' part varies, so the bias is small where the
  teacher's K tokens have most of the student's probability, and shrinks with R.
- Without negatives (R = 0) nothing outside of the K counts: KL is that of the predictions given that the
  token is among the K, and CE that of a choice among the K and the true token. Both are biased, and leave the
  student free to give probability to all the rest (arXiv:2503.16870 on what such targets do).

Everything is per position and of fixed shape; no shape depends on values, so a compiler makes one graph.

Shapes: N positions (P of each of B sequences), C = K + R candidates, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.losses.candidates import NOTHING
from trainer.losses.distillation import Predictions, at_least_float32

DTYPES = {"float32": torch.float32, "float16": torch.float16}
"""Dtypes of a teacher's cached logits, by name."""


@dataclass(frozen=True, kw_only=True)
class Sample(Predictions):
    """A teacher's predictions of tokens 2..T at some tokens of the vocabulary.

    Args:
        ids: [B, P, C] int32: its K likeliest tokens, and R negatives.
        logits: [B, P, C], float32 or float16: its logits of these, up to a constant per position.
    """

    ids: Tensor
    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class Targets(Predictions):
    """Predictions that a student is compared with: its teacher's, and an anchor's where there is one."""

    teacher: Sample
    anchor: Sample | None = None


def log_weights(top_k: int, negatives: int, *, vocabulary: int, device: torch.device) -> Tensor:
    """Return log w [C], w being the tokens that each candidate stands for: 1 for the K, (V-K)/R for the R.

    Raises:
        ValueError: there are more candidates than tokens.
    """
    if top_k + negatives > vocabulary:
        raise ValueError(f"{top_k} + {negatives} candidates of {vocabulary} tokens")
    stands_for = (vocabulary - top_k) / negatives if negatives else 1.0
    logs = [0.0] * top_k + [math.log(stands_for)] * negatives
    return torch.tensor(logs, dtype=torch.float32, device=device)


def sparse_divergence(
    student_NC: Tensor, teacher_NC: Tensor, log_w_C: Tensor, *, temperature: float | Tensor
) -> Tensor:
    """Return the mean KL(teacher ‖ student) over the positions, in nats (see the module).

    Not multiplied by τ², as `distillation.tempered_divergence` is not.

    Args:
        student_NC: logits, up to a constant per position.
        teacher_NC: logits, up to a constant per position; they get no gradient.
        log_w_C: from `log_weights`.
        temperature: τ.
    """
    log_p_NC = F.log_softmax(at_least_float32(student_NC) / temperature + log_w_C, dim=-1)
    log_q_NC = F.log_softmax(at_least_float32(teacher_NC.detach()) / temperature + log_w_C, dim=-1)
    return (log_q_NC.exp() * (log_q_NC - log_p_NC)).sum(dim=-1).mean()


def sampled_cross_entropy(
    label_N: Tensor, student_NC: Tensor, log_w_C: Tensor, *, ids_NC: Tensor, labels_N: Tensor
) -> Tensor:
    """Return the mean cross-entropy of the labels over the positions, in nats (see the module).

    A candidate that is the label itself is left out of the sum, which has the label already (Jean et al.'s
    accidental hits).

    Args:
        log_w_C: from `log_weights`.
    """
    others_NC = at_least_float32(student_NC) + log_w_C
    others_NC = others_NC.masked_fill(ids_NC == labels_N.unsqueeze(-1), NOTHING)
    label_N1 = at_least_float32(label_N).unsqueeze(-1)
    return (torch.cat([label_N1, others_NC], dim=-1).logsumexp(dim=-1) - label_N1.squeeze(-1)).mean()
