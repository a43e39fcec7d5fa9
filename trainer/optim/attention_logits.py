"""The largest attention logit of every head, recorded while a model trains. Used by `optim.qk_clip`.

Shapes: B sequences, H query heads, G key heads, S = H / G query heads that share a key head, T tokens, D the
size of a head; `q_BHTD`, `k_BGTD`, `max_H`.

Queries and keys are taken after rotary embeddings, in the attention function that transformers calls. Ours
records and then calls the model's own (eager, sdpa or another), so the model's outputs are unchanged. The
module's `training` flag switches recording, so nothing has to be restored after an evaluation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.devices.lazy_tensor import is_lazy
from trainer.devices.sdpa import RECORDING

_BUFFER = "max_logit_H"
MAX_LOGITS = 2**24  # in memory at a time, in float32: 64 MiB
MAX_CHUNKS = 64  # of an XLA graph, where each is about fifty operations to compile in every layer


def record_logits(model: nn.Module, attentions: dict[nn.Module, int]) -> None:
    """Make attention modules record their largest logits in training mode, until `stop_recording`.

    Args:
        model: a transformers model, changed in place.
        attentions: the number of query heads of each of its modules that records.
    """
    inner = str(cast(Any, model).config._attn_implementation).removeprefix(RECORDING)
    for attention, heads in attentions.items():
        device = next(attention.parameters()).device
        attention.register_buffer(_BUFFER, torch.full((heads,), -torch.inf, device=device), persistent=False)
    cast(Any, model).set_attn_implementation(_register(inner))


def stop_recording(model: nn.Module) -> None:
    """Undo `record_logits`; do nothing if the model does not record."""
    for module in model.modules():
        if _BUFFER in module._buffers:
            delattr(module, _BUFFER)
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if isinstance(implementation, str) and implementation.startswith(RECORDING):
        cast(Any, model).set_attn_implementation(implementation.removeprefix(RECORDING))


def recorded_logits(attention: nn.Module) -> Tensor:
    """Return the largest logits [H] since `reset`, float32; minus infinity for a head that has none."""
    return attention.get_buffer(_BUFFER)


def reset(*attentions: nn.Module) -> None:
    """Set the recorded logits of modules with as many heads back to minus infinity."""
    buffers = [recorded_logits(attention) for attention in attentions]
    torch._foreach_copy_(buffers, [torch.full_like(buffers[0], -torch.inf)] * len(buffers))


def eager_attention(attention: nn.Module) -> Callable[..., Any] | None:
    """Return the eager attention function of the module's architecture; None if transformers has none."""
    return getattr(sys.modules[type(attention).__module__], "eager_attention_forward", None)


@torch.no_grad()
def largest_logits(q_BHTD: Tensor, k_BGTD: Tensor, visible: Tensor | None, scaling: float) -> Tensor:
    """Return the largest attention logit of each head, over all queries and the keys visible to them.

    Args:
        visible: [B or 1, 1, T, T], booleans or the additive mask of eager attention; None is causal.
        scaling: factor of the products.

    Returns:
        [H], float32 whatever the dtype of the inputs.
    """
    batch, heads, length, _ = q_BHTD.shape
    largest_H = torch.full((heads,), -torch.inf, device=q_BHTD.device)
    # Autocast would take the products of float32 in bfloat16, which resolves a logit of 100 to 0.5.
    with torch.autocast(q_BHTD.device.type, enabled=False):
        q_BGSTD = q_BHTD.float().reshape(batch, k_BGTD.shape[1], -1, *q_BHTD.shape[2:])
        k_BG1DT = k_BGTD.float().transpose(-1, -2).unsqueeze(2)
        rows = max(1, MAX_LOGITS // (batch * heads * k_BGTD.shape[2]))
        if is_lazy(q_BHTD):
            rows = max(rows, math.ceil(length / MAX_CHUNKS))
        for start in range(0, length, rows):
            logits = (q_BGSTD[:, :, :, start : start + rows] @ k_BG1DT).flatten(1, 2)
            hidden = ~_visible(visible, start, logits)
            largest_H = torch.maximum(largest_H, logits.masked_fill_(hidden, -torch.inf).amax(dim=(0, 2, 3)))
    return largest_H * scaling  # which is above 0: the largest product is the largest logit, bit for bit


def _visible(mask: Tensor | None, start: int, logits_BHRT: Tensor) -> Tensor:
    """Return the visible keys of the R queries from `start` on, booleans [B or 1, 1, R, T]."""
    rows, length = logits_BHRT.shape[-2:]
    if mask is None or mask.ndim != 4:
        ones = torch.ones(rows, length, dtype=torch.bool, device=logits_BHRT.device)
        return ones.tril(diagonal=start)[None, None]
    part = mask[:, :, start : start + rows, :length]
    return part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2


def _register(inner: str) -> str:
    """Register a recording version of the attention function `inner` with transformers; return its name."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    name = RECORDING + inner

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> Any:
        if module.training and _BUFFER in module._buffers:
            scaling = options.get("scaling") or query.shape[-1] ** -0.5
            mask = attention_mask if isinstance(attention_mask, Tensor) else None
            largest_H = recorded_logits(module)
            largest_H.copy_(torch.maximum(largest_H, largest_logits(query, key, mask, scaling)))
        function: Any = eager_attention(module) if inner == "eager" else ALL_ATTENTION_FUNCTIONS[inner]
        return function(module, query, key, value, attention_mask, **options)

    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[inner])
    return name
