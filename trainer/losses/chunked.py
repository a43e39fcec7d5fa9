"""Cross-entropy and divergence straight from hidden states, in chunks of tokens. Used by `next_token`.

    z = s·Wᵀ,  CE = mean over tokens of -log softmax(z)_y
    u = t·Uᵀ,  KL = mean over tokens of Σ_V q·(log q - log p),  q = softmax(u/τ), p = softmax(z/τ)

Logits are by far the largest tensors of a step: a float32 matrix [N, V] of 8 x 2,048 tokens and 49,152 words
is 3 GiB, and the plain losses hold several. Here a chunk's logits live while its losses and gradient are
computed, which the backward pass then only scales (as Liger's fused cross-entropy does, arXiv:2410.10989):

    dz = (softmax(z) - onehot(y) + (factor/τ)·(p - q)) / N,  ds = dz·W,  dW = dzᵀ·s

No product is computed twice, as it would be under recomputation. The price is that the weight of the
divergence must be known beforehand: `total` alone has a gradient. The dz of several chunks are multiplied
together, as many as take about the room, in the head's dtype, that the head's gradient takes in float32.

Of processes that compute a model in parts each has the logits of its part of the vocabulary alone: what a
softmax sums over, and the losses themselves, are summed over the group (as Megatron-LM's vocabulary-parallel
cross-entropy, arXiv:1909.08053 §3).

Shapes: N predicted tokens, n of a chunk, m of several chunks, H hidden size of the student, K of the teacher,
V vocabulary. N may be two dimensions, [B, T], and n then [B, t]: where chips share the rows of a batch, each
has a part of each chunk. (For chunks across rows XLA's partitioner inserts exchanges, or aborts the process.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from trainer.distributed.tensor_group import TensorGroup

# Of one float32 matrix [n, V], some five of which live at once. 16 MiB stay in a CPU's cache: at 16,384 words
# that was 1.4x faster than 128 MiB, and 1.8x than whole logits. Accelerators want large products: 128 MiB.
_CPU_ELEMENTS, _ELEMENTS = 2**22, 2**25

# Each product for the head's gradient is added to a float32 matrix [V, H]. On a CPU that took longer than the
# product with the 85 tokens of a chunk (SmolLM2-135M in bfloat16); beside thousands it does not matter.
_PRODUCT_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class HeadInputs:
    """Hidden states [N, H] or [B, T, H], and the weights [V, H] of the output head that takes them.

    Args:
        group: the processes that have the same states, and each take a part of the vocabulary; None: all.
    """

    states: Tensor
    head: Tensor
    group: TensorGroup | None = None


@dataclass(frozen=True, kw_only=True)
class HeadLosses:
    """`total` = CE + factor·KL, which has the gradient; `ce`; `kl` where there is a teacher. 0-d, float32."""

    total: Tensor
    ce: Tensor
    kl: Tensor | None


def head_losses(
    student: HeadInputs,
    labels_N: Tensor,
    *,
    teacher: HeadInputs | None = None,
    factor: float | Tensor = 1.0,
    temperature: float | Tensor = 1.0,
    chunk_elements: int | None = None,
) -> HeadLosses:
    """Return the losses on the labels, and against the teacher's predictions, which get no gradient.

    Args:
        labels_N: ids of the tokens that follow; [B, T] if the states are [B, T, H].
        teacher: its states and head; None: cross-entropy alone.
        factor: weight of KL in the total.
        chunk_elements: logits of one model that are computed at once; None: what suits the device.
    """
    states_NH, head_VH, group = student.states, student.head, student.group
    theirs_VK = None if teacher is None else teacher.head.detach()
    if group is not None:
        labels_N = labels_N - group.part(len(head_VH)).start
        head_VH = group.own(head_VH, 0)
        theirs_VK = None if theirs_VK is None else group.own(theirs_VK, 0)
    # Cast here and once, so that no chunk does it again, and autograd casts the gradients back.
    head_VH = head_VH.to(states_NH.dtype)
    total, ce, kl = _Chunked.apply(  # type: ignore[no-untyped-call] # torch has no annotation for it
        states_NH,
        head_VH,
        labels_N,
        None if teacher is None else teacher.states.detach(),
        None if teacher is None or theirs_VK is None else theirs_VK.to(teacher.states.dtype),
        factor,
        temperature,
        chunk_tokens(labels_N.shape, len(head_VH), chunk_elements or suitable_elements(states_NH.device)),
        torch.is_grad_enabled() and (states_NH.requires_grad or head_VH.requires_grad),
        group,
    )
    return HeadLosses(total=total, ce=ce, kl=None if teacher is None else kl)


def token_losses(model: HeadInputs, labels_N: Tensor) -> Tensor:
    """Return the cross-entropy of each label, without a gradient, in the shape of the labels and float32.

    Args:
        labels_N: ids of the tokens that follow; [B, T] if the states are [B, T, H].
    """
    states_NH, head_VH = model.states, model.head.to(model.states.dtype)
    chunk, losses = chunk_tokens(labels_N.shape, len(head_VH), suitable_elements(states_NH.device)), []
    for start in range(0, labels_N.shape[-1], chunk):
        n = (slice(None),) * (labels_N.ndim - 1) + (slice(start, start + chunk),)
        log_p_nV = F.log_softmax(F.linear(states_NH[n], head_VH).to(_wide(states_NH)), dim=-1)
        losses.append(-log_p_nV.gather(-1, labels_N[n][..., None])[..., 0])
    return torch.cat(losses, dim=-1)


def suitable_elements(device: torch.device) -> int:
    """Return the number of logits to compute at once; more are worth chunks."""
    return _CPU_ELEMENTS if device.type == "cpu" else _ELEMENTS


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_NH: Tensor,
        head_VH: Tensor,
        labels_N: Tensor,
        theirs_NK: Tensor | None,
        theirs_VK: Tensor | None,
        factor: float | Tensor,
        temperature: float | Tensor,
        chunk: int,
        trained: bool,
        group: TensorGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, along = labels_N.numel(), labels_N.ndim - 1
        compute = chunk_losses if torch.compiler.is_compiling() else _compute.get()
        ce = torch.zeros((), dtype=_wide(states_NH), device=states_NH.device)
        kl, grads_NH, grad_VH = torch.zeros_like(ce), [], None
        length, together = labels_N.shape[-1], chunk * _chunks_together(chunk, labels_N, head_VH)
        for first in range(0, length, together):
            m = (slice(None),) * along + (slice(first, first + together),)
            dz_mV = None
            if trained and together > chunk:
                dz_mV = head_VH.new_empty((*labels_N[m].shape, len(head_VH)))
            starts: Sequence[int] = range(first, min(first + together, length), chunk)
            if isinstance(states_NH, FakeTensor) and not torch.compiler.is_compiling():
                # `trainer.preflight` asks for the peak alone, and each chunk leaves what the one before left.
                # To trace all of them, often hundreds, took most of the time of an estimate.
                starts = sorted({starts[0], starts[-1]})
            for start in starts:
                n = (slice(None),) * along + (slice(start, start + chunk),)
                s_nH, u_nV = states_NH[n], None
                if theirs_NK is not None and theirs_VK is not None:
                    u_nV = F.linear(theirs_NK[n], theirs_VK).to(ce.dtype)
                z_nV = F.linear(s_nH, head_VH).to(ce.dtype)
                logits = ChunkLogits(ours=z_nV, theirs=u_nV, labels=labels_N[n], group=group)
                del z_nV, u_nV
                found = compute(logits, factor, temperature, count if trained else None)
                del logits
                ce += found.ce
                kl += found.kl
                if found.grad is not None:
                    if dz_mV is None:
                        dz_mV = found.grad.to(head_VH.dtype)
                    else:
                        dz_mV[start - first : start - first + chunk] = found.grad
                del found  # each is as large as the logits, and the next chunk needs the room
            if dz_mV is not None:
                grads_NH.append(dz_mV @ head_VH)
                product_VH = dz_mV.flatten(0, -2).t() @ states_NH[m].flatten(0, -2)
                del dz_mV
                if grad_VH is not None:
                    grad_VH += product_VH
                else:  # what nothing is added to needs no other dtype
                    grad_VH = product_VH if together >= length else product_VH.to(_wide(head_VH))
                del product_VH
        ctx.processes = 1 if group is None else group.size
        if group is not None:
            ce, kl = group.all_sum(torch.stack((ce, kl)))
        ce, kl = ce / count, kl / count
        ctx.mark_non_differentiable(ce, kl)
        if grad_VH is not None:
            ctx.save_for_backward(torch.cat(grads_NH, dim=along), grad_VH.to(head_VH.dtype))
        return ce + factor * kl if theirs_NK is not None else ce.clone(), ce, kl

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_NH, grad_VH = ctx.saved_tensors
        # Of `total`, which is of each process of a group: what is minimised is the mean over processes. The
        # gradients themselves were computed in forward.
        scale = grads[0].to(grad_NH.dtype) * ctx.processes
        return grad_NH * scale, grad_VH * scale, *[None] * 8


class ChunkLogits(NamedTuple):
    """Logits of one chunk [n, V], float32, of the student and a teacher if there is one; its labels [n].

    With a group V is this process's part of the vocabulary, and labels outside of it are of others.
    """

    ours: Tensor
    theirs: Tensor | None
    labels: Tensor
    group: TensorGroup | None = None


class ChunkLosses(NamedTuple):
    """Sums over a chunk's tokens and logits, 0-d float32, and the gradient with respect to the student's."""

    ce: Tensor
    kl: Tensor
    grad: Tensor | None


ComputeChunk = Callable[[ChunkLogits, float | Tensor, float | Tensor, int | None], ChunkLosses]


def chunk_losses(
    logits: ChunkLogits, factor: float | Tensor, temperature: float | Tensor, count: int | None
) -> ChunkLosses:
    """Return the losses of one chunk, by operations on each logit: what `computing_chunks` compiles.

    Args:
        factor: weight of KL in the total.
        temperature: τ; the number 1 shares a softmax.
        count: tokens of all chunks, over which the gradient is a mean; None: no gradient is needed.
    """
    z_nV, u_nV, y_n1, group = logits.ours, logits.theirs, logits.labels[..., None], logits.group
    minus_n1 = torch.full_like(y_n1, -1, dtype=z_nV.dtype)
    if group is not None:
        minus_n1[(y_n1 < 0) | (y_n1 >= z_nV.shape[-1])] = 0
        y_n1 = y_n1.clamp(0, z_nV.shape[-1] - 1)
    log_p_nV = _log_softmax(z_nV, group)
    ce = (log_p_nV.gather(-1, y_n1) * minus_n1).sum()
    kl, grad_nV = torch.zeros_like(ce), None
    if count is not None:
        grad_nV = log_p_nV.exp().scatter_add_(-1, y_n1, minus_n1)
    if u_nV is not None:
        log_q_nV = _log_softmax(u_nV / temperature, group)
        if isinstance(temperature, Tensor) or temperature != 1:
            log_p_nV = _log_softmax(z_nV / temperature, group)
        q_nV = log_q_nV.exp()
        kl = (q_nV * log_q_nV.sub_(log_p_nV)).sum()
        if grad_nV is not None:
            _add_scaled(grad_nV, log_p_nV.exp().sub_(q_nV), factor / temperature)
    return ChunkLosses(ce, kl, None if grad_nV is None or count is None else grad_nV.div_(count))


def _log_softmax(z_nV: Tensor, group: TensorGroup | None) -> Tensor:
    if group is None:
        return F.log_softmax(z_nV, dim=-1)
    shifted_nV = z_nV - group.all_max(z_nV.amax(dim=-1, keepdim=True))
    return shifted_nV.sub_(group.all_sum(shifted_nV.exp().sum(dim=-1, keepdim=True)).log_())


_compute: ContextVar[ComputeChunk] = ContextVar("compute", default=chunk_losses)


@contextmanager
def computing_chunks(by: ComputeChunk) -> Iterator[None]:
    """Let `head_losses` compute its chunks by another function, such as a compiled `chunk_losses`."""
    before = _compute.set(by)
    try:
        yield
    finally:
        _compute.reset(before)


def _add_scaled(total: Tensor, x: Tensor, scale: float | Tensor) -> None:
    """Add scale·x to the total in place; `x` is spent."""
    if isinstance(scale, Tensor):
        total.add_(x.mul_(scale))
    else:
        total.add_(x, alpha=scale)


def chunk_tokens(shape: Sequence[int], per_token: int, elements: int) -> int:
    """Return the tokens per chunk, of each row: as many chunks as it takes, of one size but for the last."""
    chunks = math.ceil(math.prod(shape) / max(1, elements // per_token))
    return math.ceil(shape[-1] / chunks)


def _chunks_together(chunk: int, labels_N: Tensor, head_VH: Tensor) -> int:
    """Return of how many chunks the gradients are multiplied at once."""
    if labels_N.ndim > 1:  # chunks across chips: XLA plans its memory, and sees one program
        return 1
    room = head_VH.shape[1] * _wide(head_VH).itemsize // head_VH.dtype.itemsize
    return math.ceil(min(room, _PRODUCT_TOKENS, len(labels_N)) / chunk)


def _wide(x: Tensor) -> torch.dtype:
    """Return a dtype of at least float32: bfloat16 is too coarse for logarithms, and for sums over chunks."""
    return torch.promote_types(x.dtype, torch.float32)
