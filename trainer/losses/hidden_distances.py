"""Distances between a student's hidden states and its teacher's, one for each `stage1_9.loss_type`.

A distance takes two tensors [B, T, H] and returns a 0-d float32 tensor, the mean over B·T tokens. Gradients
reach the student only; the teacher's states come without a graph. Called by `stages.layerwise`.

Shapes: B sequences, T tokens, N = B·T, n tokens of a chunk, H hidden size, V vocabulary; `h_BTH`, `w_VH`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.causal_lm import output_head

Distance = Callable[[Tensor, Tensor], Tensor]
"""(student_BTH, teacher_BTH) → 0-d float32."""

EPS = 1e-8  # under the norm: a state of zeros stays one
CHUNK_ELEMENTS = 2**24  # of one float32 matrix [n, V]: 64 MiB; some five of them live at once


def layer_distances(loss_type: str, teacher: nn.Module, layers: int) -> Sequence[Distance]:
    """Return the distance at each of the student's layers 1..L.

    They differ for `kl` alone, where the last layer's states have passed the final norm already.

    Args:
        loss_type: a key of `WITHOUT_HEAD`, or `kl`.
        teacher: the model whose output head `kl` uses.
        layers: L.

    Raises:
        ConfigError: `kl`, and the teacher has no head and norm that can be used so.
    """
    if loss_type != "kl":
        return [WITHOUT_HEAD[loss_type]] * layers
    head = output_head(teacher)
    return [HeadKl(head.linear, head.norm)] * (layers - 1) + [HeadKl(head.linear, None)]


def unit(h_BTH: Tensor) -> Tensor:
    """Divide each token's vector by its Euclidean norm, in float32. [B, T, H] → [B, T, H]."""
    return F.normalize(h_BTH.float(), dim=-1, eps=EPS)


def mse_normalized(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """Compute the mean over tokens of ‖ s/‖s‖ - t/‖t‖ ‖², between 0 and 4.

    The term that OneBit's knowledge transfer adds to the cross-entropy of the logits (arXiv:2402.11295),
    there summed over layers and tokens, here a mean over tokens, so that it does not grow with the batch. The
    scale of a layer's output does not count: the norm that follows it removes that.
    """
    return (unit(student_BTH) - unit(teacher_BTH)).square().sum(dim=-1).mean()


def cosine(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """Compute the mean over tokens of 1 - s·t / (‖s‖ ‖t‖), between 0 and 2.

    Half of `mse_normalized`, since ‖a - b‖² = 2 - 2·a·b for unit vectors: the two differ only in their weight
    beside the other parts of the loss. DistilBERT's L_cos (arXiv:1910.01108).
    """
    return (1 - F.cosine_similarity(student_BTH.float(), teacher_BTH.float(), dim=-1, eps=EPS)).mean()


def inner_product(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """Compute the mean over tokens of -(s/‖s‖)·(t/‖t‖), between -1 and 1.

    The research notebook's `inner_product`. It is `cosine` less 1 and has its gradient, to rounding: choose
    it to repeat a run of the notebook, and `cosine` otherwise. Without norms it would have no lower bound.
    """
    return -(unit(student_BTH) * unit(teacher_BTH)).sum(dim=-1).mean()


def mse(student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
    """Compute the mean over tokens and features of (s - t)²: the scale of the states counts.

    FitNets' hint loss without its regressor (arXiv:1412.6550): student and teacher are equally wide.
    """
    return F.mse_loss(student_BTH.float(), teacher_BTH.float())


WITHOUT_HEAD: dict[str, Distance] = {
    "mse_normalized": mse_normalized,
    "cosine": cosine,
    "mse": mse,
    "inner_product": inner_product,
}


class HeadKl:
    """Divergence between the teacher head's predictions from the teacher's and from the student's states.

        p = softmax(W·N(t)),  q = softmax(W·N(s)),  L = mean over tokens of Σ_V p·(log p - log q)

    W is the teacher's output head and N its final norm, for both sides: the predictions compared are those
    that the teacher would make if it ended at that layer (the logit lens, arXiv:2303.08112). The last layer's
    states have passed the final norm of their own model, so there N is left out.

    Nothing of the teacher is trained, so only the student's states need a gradient. It is computed together
    with the loss, a chunk of tokens at a time: logits exist for one chunk only, and none are stored for the
    backward pass. Cross-entropy less entropy replaces `F.kl_div`, which XLA lowers badly.

    Args:
        head: W, a linear layer H → V; its weights get no gradient.
        norm: N; None where the states have passed it already.
        chunk_elements: logits computed at once.
    """

    def __init__(
        self, head: nn.Linear, norm: nn.Module | None, *, chunk_elements: int = CHUNK_ELEMENTS
    ) -> None:
        self._head, self._norm = head, norm
        self._chunk = max(1, chunk_elements // head.weight.shape[0])

    def __call__(self, student_BTH: Tensor, teacher_BTH: Tensor) -> Tensor:
        """Return the divergence at this layer, 0-d float32."""
        if self._norm is not None:
            student_BTH, teacher_BTH = self._norm(student_BTH), self._norm(teacher_BTH)
        student_BTH = student_BTH.to(self._head.weight.dtype)  # its master weights may have another one
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
