"""The divergence from a teacher that reports its likeliest tokens only. Used by `stages.distill`.

Shapes: B sequences, T tokens, P = T - 1 predicted ones, V vocabulary, C candidates; `ids_BPC`.

The probability of all other tokens together is one more candidate, the rest. Both models' predictions are
first reduced to these C + 1 and then softened by the temperature:

    q_i = p_i^(1/τ) / Σ_j p_j^(1/τ)        i, j: the candidates and the rest

With C = V there is no rest, and this is softmax(z/τ), so the divergence is that of `distillation`. With fewer
it is still a divergence, zero for a student that agrees with the teacher. At τ = 1 it is never above the
divergence over all V (data processing inequality); at a high τ the rest weighs less than its many tokens
would weigh each by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer.losses.chunked import HeadInputs, chunk_tokens, suitable_elements
from trainer.losses.distillation import Predictions, at_least_float32

NOTHING = -1e30  # the logarithm of no probability: finite, so that no gradient meets infinity less infinity


@dataclass(frozen=True, kw_only=True)
class Candidates(Predictions):
    """A teacher's predictions of tokens 2..T.

    Args:
        ids: [B, P, C] int64, the tokens that it reports; where they are fewer than C, the first one repeated.
        logprobs: [B, P, C] float32, their log probabilities; NOTHING at a repeated token.
        rest: [B, P] float32, the log of the probability of all others; NOTHING where there are none.
    """

    ids: Tensor
    logprobs: Tensor
    rest: Tensor


def candidate_divergence(student_BTV: Tensor, teacher: Candidates, *, temperature: float | Tensor) -> Tensor:
    """Return the mean KL(teacher ‖ student) over the predicted tokens, in nats (see the module).

    Args:
        student_BTV: logits.
        teacher: C candidates of each predicted token.
    """
    return _divergences(at_least_float32(student_BTV[:, :-1]), teacher, temperature).mean()


def candidate_losses(
    student: HeadInputs,
    labels_N: Tensor,
    teacher: Candidates,
    *,
    temperature: float | Tensor,
    chunk_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of the labels and the `candidate_divergence`, 0-d, from hidden states.

    The logits of a chunk of N tokens live while its losses are computed, and again in the backward pass: the
    rest's probability takes all of them, and both losses have a gradient of their own.

    Args:
        labels_N: ids of the tokens that follow; [B, T] if the states are [B, T, H].
        teacher: C candidates of each of these tokens.
        chunk_elements: logits that are computed at once; None: what suits the device.
    """
    states_NH, positions = student.states, labels_N.shape
    head_VH = student.head.to(states_NH.dtype)
    size = chunk_tokens(positions, len(head_VH), chunk_elements or suitable_elements(states_NH.device))
    ids, logprobs = (each.reshape(*positions, -1) for each in (teacher.ids, teacher.logprobs))
    rest_N, sums = teacher.rest.reshape(positions), []
    for start in range(0, positions[-1], size):
        n = (slice(None),) * (labels_N.ndim - 1) + (slice(start, start + size),)
        chunk = Candidates(ids=ids[n], logprobs=logprobs[n], rest=rest_N[n])
        sums.append(
            checkpoint(
                _chunk_sums, states_NH[n], head_VH, labels_N[n], chunk, temperature, use_reentrant=False
            )
        )
    ce, kl = torch.stack([torch.stack(each) for each in sums]).sum(dim=0) / labels_N.numel()
    return ce, kl


def _chunk_sums(
    states_nH: Tensor, head_VH: Tensor, labels_n: Tensor, teacher: Candidates, temperature: float
) -> tuple[Tensor, Tensor]:
    logits_nV = at_least_float32(F.linear(states_nH, head_VH))
    ce = F.cross_entropy(logits_nV.flatten(0, -2), labels_n.flatten(), reduction="sum")
    return ce, _divergences(logits_nV, teacher, temperature).sum()


def _divergences(logits_BPV: Tensor, teacher: Candidates, temperature: float | Tensor) -> Tensor:
    """Return KL(teacher ‖ student) of each token, [B, P]."""
    log_student = _student_buckets(logits_BPV, teacher) / temperature
    rest_BP1 = teacher.rest.unsqueeze(-1)
    log_teacher = torch.cat([teacher.logprobs, rest_BP1], dim=-1).to(log_student.dtype) / temperature
    log_student, log_teacher = F.log_softmax(log_student, dim=-1), F.log_softmax(log_teacher, dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1)


def _student_buckets(logits_BPV: Tensor, teacher: Candidates) -> Tensor:
    """Return the log probabilities of the teacher's candidates and of the rest, [B, P, C + 1]."""
    repeated_BPC = teacher.logprobs <= NOTHING
    reported_BPV = torch.zeros_like(logits_BPV, dtype=torch.bool).scatter(-1, teacher.ids, True)
    rest_BP1 = logits_BPV.masked_fill(reported_BPV, NOTHING).logsumexp(dim=-1, keepdim=True)
    found_BPC = logits_BPV.gather(-1, teacher.ids).masked_fill(repeated_BPC, NOTHING)
    return torch.cat([found_BPC, rest_BP1], dim=-1) - logits_BPV.logsumexp(dim=-1, keepdim=True)
