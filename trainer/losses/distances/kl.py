"""Divergence of what the teacher's output head reads from the hidden states of both.

    p = softmax(W·N(t)),  q = softmax(W·N(s)),  L = mean over tokens of Σ_V p·(log p - log q)

W is the teacher's output head and N its final norm, for both sides: what is compared is the predictions that
the teacher would make if it ended at that layer (the logit lens, arXiv:2303.08112). The last layer's states
come behind the final norm of their own model, so there N is left out.

Nothing of the teacher is trained, so no gradient is needed but that of the student's states. It is computed
together with the loss, a chunk of tokens at a time, so that logits exist for one chunk only and none are kept
for the backward pass. Cross-entropy less entropy, not `F.kl_div`, which XLA lowers badly.

Shapes: B sequences, T tokens, N = B·T, n tokens of a chunk, H hidden size, V vocabulary; `h_BTH`, `w_VH`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHUNK_ELEMENTS = 2**24  # of one float32 matrix [n, V]: 64 MiB; some five of them live at once


class HeadKl:
    """The distance at one layer.

    Args:
        head: W, a linear layer H → V; its weights get no gradient.
        norm: N; None where the states are behind it already.
        chunk_elements: logits computed at once.
    """

    def __init__(
        self, head: nn.Linear, norm: nn.Module | None, *, chunk_elements: int = CHUNK_ELEMENTS
    ) -> None:
        self._head, self._norm = head, norm
        self._chunk = max(1, chunk_elements // head.weight.shape[0])

    def __call__(self, student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
        """0-d, float32."""
        if self._norm is not None:
            student_BTH, teacher_BTH = self._norm(student_BTH), self._norm(teacher_BTH)
        divergence = _ChunkedKl.apply(  # type: ignore[no-untyped-call] # torch has no annotation for it
            student_BTH.flatten(0, -2),
            teacher_BTH.detach().flatten(0, -2),
            self._head.weight.detach(),
            self._head.bias,
            self._chunk,
        )
        return cast(Tensor, divergence)


class _ChunkedKl(torch.autograd.Function):
    """The mean divergence, and its gradient (q - p)·W / N with respect to the student's states."""

    @staticmethod
    def forward(
        ctx: Any, student_NH: Tensor, teacher_NH: Tensor, w_VH: Tensor, b_V: Tensor | None, chunk: int
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=student_NH.device)
        gradients = []
        for s_nH, t_nH in zip(torch.split(student_NH, chunk), torch.split(teacher_NH, chunk), strict=True):
            log_q_nV = F.log_softmax(F.linear(s_nH, w_VH, b_V).float(), dim=-1)
            log_p_nV = F.log_softmax(F.linear(t_nH, w_VH, b_V).float(), dim=-1)
            p_nV = log_p_nV.exp()
            if ctx.needs_input_grad[0]:
                gradients.append((log_q_nV.exp() - p_nV).to(w_VH.dtype) @ w_VH)
            total += (p_nV * log_p_nV.sub_(log_q_nV)).sum()
        if gradients:
            ctx.save_for_backward((torch.cat(gradients) / len(student_NH)).to(student_NH.dtype))
        return total / len(student_NH)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient_NH,) = ctx.saved_tensors
        return gradient_NH * grads[0], None, None, None, None
