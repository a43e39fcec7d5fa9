"""Attention for a device that records a graph: SDPA, and flash attention where the text is long. Opened by
`xla`; `model` and `preflight.blueprint` ask which models it is not for.

transformers finds it under `NAME`, as it finds its own. Its own SDPA is not for XLA: there autocast leaves
queries and keys in float32 after their rotation and values in bfloat16, which SDPA refuses, and whether a
mask may be left out is read from a tensor, which ends a graph.

Shapes: B sequences, H query heads, G key heads, which divide them, T tokens, D the size of a head; `q_BHTD`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

NAME = "stagesweep_xla"
LONG = 4096
"""Tokens from which on flash attention pays."""
BLOCK = 1024
"""Tokens of the largest block that torch_xla's kernel computes at once; it divides all others' lengths."""
_LANES = 128  # of a TPU's registers: wider heads are whole multiples of it

Kernel = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""q_BHTD, k_BHTD, v_BHTD, the scale of their products → [B, H, T, D]: causal, with a backward pass."""

_Model = TypeVar("_Model", bound=nn.Module)
_log = logging.getLogger(__name__)


def register(kernel: Kernel, obstacle: str) -> str:
    """Makes it known to transformers; returns the name that it is known by.

    Args:
        kernel: flash attention.
        obstacle: why it cannot be called here, and what to do; "": it can.
    """
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        kind = query.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
        query, key, value = (each.to(dtype) for each in (query, key, value))
        # Autocast would take SDPA's sums of bfloat16, which it keeps in float32, in bfloat16.
        with torch.autocast(kind, enabled=False):
            if query.shape[2] >= LONG:
                against = obstacle or unsuitable(module, query, value, attention_mask, options)
                if not against:
                    scale = options.get("scaling") or query.shape[-1] ** -0.5
                    return _flash(kernel, query, key, value, scale), None
                _say(against)
            sdpa: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
            return cast(tuple[Tensor, None], sdpa(module, query, key, value, attention_mask, **options))

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, _mask)
    return NAME


def suited(model: _Model) -> _Model:
    """The model; with its own eager attention if that does more than SDPA can, such as to cap its scores."""
    this = cast(Any, model)
    # Before transformers 5.21 a model that caps its scores claimed SDPA, which then does not cap them.
    caps = getattr(this.config, "attn_logit_softcapping", None) is not None
    if this.config._attn_implementation == NAME and (caps or not getattr(this, "_supports_sdpa", False)):
        this.set_attn_implementation("eager")
    return model


def unsuitable(
    module: nn.Module, q_BHTD: Tensor, v_BGTD: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> str:
    """Why this is not what the kernel computes, and what to do where something can be done; "" if it is."""
    length, size = q_BHTD.shape[2:]
    causal = options.get("is_causal")
    if mask is not None or not (getattr(module, "is_causal", True) if causal is None else causal):
        return "the model's layers see other tokens than all before, such as a window of them"
    if options.get("dropout") or options.get("position_bias") is not None:
        return "the model changes its attention's scores, by dropout or by a bias"
    if size != v_BGTD.shape[-1] or (size > _LANES and size % _LANES):
        return f"its kernel has no heads of {size}"
    if length % BLOCK:
        shorter = length - length % BLOCK
        return f"{length} tokens are no multiple of {BLOCK}; write data.sequence_length={shorter}"
    return ""


def _flash(kernel: Kernel, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, scale: float) -> Tensor:
    """[B, T, H, D]."""
    shared = q_BHTD.shape[1] // k_BGTD.shape[1]
    k_BHTD, v_BHTD = (each.repeat_interleave(shared, dim=1) for each in (k_BGTD, v_BGTD))
    return kernel(q_BHTD, k_BHTD, v_BHTD, scale).transpose(1, 2).contiguous()


def _mask(**given: Any) -> Tensor | None:
    """Which keys each query sees, [B, 1, T, T], true where it does; None: those up to its own place.

    No tensor is read for it. The mask of padding that transformers has is left out: no text is padded here,
    and `model.inputs` gives one of ones.
    """
    from transformers.masking_utils import sdpa_mask

    window = given.get("local_size")
    if given.get("allow_is_causal_skip", True) and (window is None or given["kv_length"] <= window):
        return None
    whole = {"allow_is_causal_skip": False, "attention_mask": None}
    return cast(Tensor | None, sdpa_mask(**given | whole))


@cache
def _say(against: str) -> None:
    """Once a process."""
    _log.warning(
        "flash attention is not used for %s tokens and more: %s; SDPA keeps all scores in memory",
        f"{LONG:,}",
        against,
    )
