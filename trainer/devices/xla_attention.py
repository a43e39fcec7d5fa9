"""Attention on XLA: SDPA, and flash attention for long sequences.

Registered with transformers under `NAME`. transformers' own SDPA does not work on XLA: autocast leaves
queries and keys in float32 after their rotation and values in bfloat16, which SDPA refuses, and whether a
mask may be left out is read from a tensor, which breaks the graph.

Shapes: B sequences, H query heads, G key heads, which divide them, T tokens, D the size of a head; `q_BHTD`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.devices.sdpa import PREFIX, attention_mask

NAME = f"{PREFIX}xla"
LONG = 4096
"""Tokens from which on flash attention pays."""
BLOCK = 1024
"""Tokens of the largest block of torch_xla's kernel; sequence lengths must be multiples of it."""
_LANES = 128  # of a TPU's registers: wider heads must be multiples of it

Kernel = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""q_BHTD, k_BHTD, v_BHTD, the scale of their products → [B, H, T, D]: causal, with a backward pass."""

_log = logging.getLogger(__name__)


def register(kernel: Kernel, obstacle: str, *, heads_shared: bool = False) -> str:
    """Register the attention with transformers and return its name.

    Args:
        obstacle: why the kernel cannot be called here, and what to do; "": it can.
        heads_shared: whether chips share out the heads as well as the sequences.
    """
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        kind = query.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
        query, key, value = (each.to(dtype) for each in (query, key, value))
        # Under autocast SDPA's sums, which are float32, would be taken in bfloat16.
        with torch.autocast(kind, enabled=False):
            if query.shape[2] >= LONG:
                reason = obstacle or unsupported_reason(module, query, value, attention_mask, options)
                if not reason:
                    scale = options.get("scaling") or query.shape[-1] ** -0.5
                    return _flash(kernel, query, key, value, scale), None
                warn_once(reason)
            if heads_shared and not options.get("dropout") and options.get("position_bias") is None:
                return _by_einsum(module, query, key, value, attention_mask, options), None
            sdpa: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
            return cast(tuple[Tensor, None], sdpa(module, query, key, value, attention_mask, **options))

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, attention_mask)
    return NAME


def unsupported_reason(
    module: nn.Module, q_BHTD: Tensor, v_BGTD: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> str:
    """Return why the flash kernel cannot compute this attention, and what to do about it; "" if it can."""
    length, size = q_BHTD.shape[2:]
    if mask is not None or not _is_causal(module, options):
        return "the model's layers see other tokens than all before, such as a window of them"
    if options.get("dropout") or options.get("position_bias") is not None:
        return "the model changes its attention's scores, by dropout or by a bias"
    if size != v_BGTD.shape[-1] or (size > _LANES and size % _LANES):
        return f"its kernel has no heads of {size}"
    if length % BLOCK:
        shorter = length - length % BLOCK
        return f"{length} tokens are no multiple of {BLOCK}; write data.sequence_length={shorter}"
    return ""


def _by_einsum(
    module: nn.Module,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Return what SDPA returns, [B, T, H, D], by products over sequences and heads as they are.

    SDPA multiplies over B·H. Where two axes of a mesh share B and H no chip's part of that is in one piece:
    XLA's partitioner exchanged queries and keys, and computed each product twice.
    """
    k_BHTD, v_BHTD = (_repeat_key_heads(each, q_BHTD) for each in (k_BGTD, v_BGTD))
    scale = options.get("scaling") or q_BHTD.shape[-1] ** -0.5
    scores = (torch.einsum("bhtd,bhsd->bhts", q_BHTD, k_BHTD) * scale).float()
    if mask is None and _is_causal(module, options):
        length = scores.shape[-1]
        mask = torch.ones(length, length, dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    shares = torch.softmax(scores, dim=-1).to(v_BHTD.dtype)
    return torch.einsum("bhts,bhsd->bhtd", shares, v_BHTD).transpose(1, 2).contiguous()


def _is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    causal = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if causal is None else causal)


def _repeat_key_heads(x_BGTD: Tensor, q_BHTD: Tensor) -> Tensor:
    """Return keys or values with a head for each of the queries' [B, H, T, D]."""
    times = q_BHTD.shape[1] // x_BGTD.shape[1]
    # Of one head itself: to repeat it once would be a reshape, for which the partitioner exchanges heads.
    return x_BGTD if times == 1 else x_BGTD.repeat_interleave(times, dim=1)


def _flash(kernel: Kernel, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, scale: float) -> Tensor:
    """Return attention [B, T, H, D]."""
    k_BHTD, v_BHTD = (_repeat_key_heads(each, q_BHTD) for each in (k_BGTD, v_BGTD))
    return kernel(q_BHTD, k_BHTD, v_BHTD, scale).transpose(1, 2).contiguous()


@cache
def warn_once(reason: str) -> None:
    """Log, once per process, why flash attention is not used."""
    _log.warning(
        "flash attention is not used for %s tokens and more: %s; SDPA keeps all scores in memory",
        f"{LONG:,}",
        reason,
    )
