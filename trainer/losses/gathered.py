"""A head's logits of a few tokens per position, straight from hidden states. Used by `stages.distill`.

    z_nc = s_n · w_{i_nc}        s: a hidden state, w_i: the row of the head's weight for token i

The logits of all V tokens, [N, V], are never made, in neither direction. The rows themselves would be large:
[N, C, H] floats for C candidates, more than [N, V] as soon as C·H > V. So positions come in chunks, whose
rows are dropped again; the backward pass takes them from the weight a second time, for the saved ids:

    ds_n = Σ_c dz_nc·w_{i_nc},  dw_i = Σ over the n, c with i_nc = i of dz_nc·s_n

The gradient of the weight is a whole matrix [V, H], as an optimizer takes it; where the head is tied to the
embeddings, autograd adds theirs to it. Chunks have sizes that depend on shapes alone, so the work is one
graph for a compiler.

Shapes: N positions, n of a chunk, C candidates, H hidden size, V vocabulary. N may be two dimensions, [B, T],
and n then [B, t]: where chips share the rows of a batch, each has a part of each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.losses.chunked import HeadInputs, chunk_tokens, suitable_elements


def candidate_logits(inputs: HeadInputs, ids_NC: Tensor, *, chunk_elements: int | None = None) -> Tensor:
    """Return the logits z [N, C] in float32 at least; [B, T, C] if the states are [B, T, H].

    Products are made in the states' dtype, as by `torch.nn.functional.linear`.

    Args:
        inputs: states and head, both of which get gradients.
        ids_NC: int32 or int64; a token may occur several times.
        chunk_elements: numbers in the rows that are taken at once; None: what suits the device.
    """
    states_NH = inputs.states
    *positions, count = ids_NC.shape
    elements = chunk_elements or suitable_elements(states_NH.device)
    size = chunk_tokens(positions, count * states_NH.shape[-1], elements)
    logits_NC: Tensor = _Gathered.apply(states_NH, inputs.head, ids_NC, size)  # type: ignore[no-untyped-call]
    return logits_NC.to(torch.promote_types(states_NH.dtype, torch.float32))


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_NH: Tensor, head_VH: Tensor, ids_NC: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(states_NH, head_VH, ids_NC)
        ctx.size = size
        logits = []
        for n in _chunks(ids_NC, size):
            rows_nCH = _rows(head_VH, ids_NC[n], states_NH.dtype)
            states_nH1 = states_NH[n].flatten(0, -2).unsqueeze(-1)
            logits.append(torch.bmm(rows_nCH, states_nH1).view(ids_NC[n].shape))
        return torch.cat(logits, dim=-2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        states_NH, head_VH, ids_NC = ctx.saved_tensors
        grad_NC = grads[0].to(states_NH.dtype)
        of_states, of_head = ctx.needs_input_grad[:2]
        grads_NH = []
        # bfloat16 is too coarse to add up what many positions contribute to one row.
        wide = torch.promote_types(head_VH.dtype, torch.float32)
        grad_VH = torch.zeros_like(head_VH, dtype=wide) if of_head else None
        for n in _chunks(ids_NC, ctx.size):
            ids_nC, g_nC = ids_NC[n], grad_NC[n].flatten(0, -2)
            if of_states:
                rows_nCH = _rows(head_VH, ids_nC, states_NH.dtype)
                grads_NH.append(torch.bmm(g_nC.unsqueeze(1), rows_nCH).view(states_NH[n].shape))
                del rows_nCH  # before the next of its size is made
            if grad_VH is not None:
                states_n1H = states_NH[n].flatten(0, -2).unsqueeze(1)
                outer_nCH = torch.bmm(g_nC.unsqueeze(-1), states_n1H)
                grad_VH.index_add_(0, ids_nC.flatten(), outer_nCH.flatten(0, 1).to(wide))
        return (
            torch.cat(grads_NH, dim=-2) if of_states else None,
            None if grad_VH is None else grad_VH.to(head_VH.dtype),
            None,
            None,
        )


def _chunks(ids_NC: Tensor, size: int) -> Iterator[tuple[slice, ...]]:
    """Yield the index of each chunk's positions."""
    for start in range(0, ids_NC.shape[-2], size):
        yield *[slice(None)] * (ids_NC.ndim - 2), slice(start, start + size)


def _rows(head_VH: Tensor, ids_nC: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the head's rows for the candidates, [n, C, H]; n is all positions of a chunk."""
    return head_VH.index_select(0, ids_nC.flatten()).to(dtype).view(-1, ids_nC.shape[-1], head_VH.shape[-1])
