"""The largest attention logit of every head, recorded while a model trains. Used by `optim.qk_clip`.

Shapes: B sequences, H query heads, G key heads, S = H / G query heads that share a key head, T tokens, D the
size of a head; `q_BHTD`, `k_BGTD`, `max_H`.

Queries and keys are taken where the softmax sees them: after rotary embeddings, in the attention function
that transformers calls. Ours records, and then calls the one that the model had (eager, sdpa or another), so
what the model computes is unchanged. No hook has to be put back after an evaluation: it is the module's own
`training` flag that switches recording off and on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.devices.lazy_tensor import is_lazy

_BUFFER = "max_logit_H"
_PREFIX = "recording_"
_MAX_LOGITS = 2**24  # held at a time, in float32: 64 MiB
_MOST_PIECES = 64  # of a recorded graph, where each is some fifty operations to compile in every layer


def record_logits(model: nn.Module, attentions: dict[nn.Module, int]) -> None:
    """From here on the given attention modules, each with its number of heads, record in training mode."""
    inner = str(cast(Any, model).config._attn_implementation).removeprefix(_PREFIX)
    for attention, heads in attentions.items():
        device = next(attention.parameters()).device
        attention.register_buffer(_BUFFER, torch.full((heads,), -torch.inf, device=device), persistent=False)
    _switch(model, _registered(inner))


def stop_recording(model: nn.Module) -> None:
    """The model is as it was before `record_logits`; nothing if it never was recorded."""
    for module in model.modules():
        if _BUFFER in module._buffers:
            delattr(module, _BUFFER)
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if isinstance(implementation, str) and implementation.startswith(_PREFIX):
        _switch(model, implementation.removeprefix(_PREFIX))


def recorded(attention: nn.Module) -> Tensor:
    """[H], the largest logits since `reset`; minus infinity where nothing was computed."""
    return attention.get_buffer(_BUFFER)


def reset(attention: nn.Module) -> None:
    """Forgets what was recorded."""
    attention.get_buffer(_BUFFER).fill_(-torch.inf)


def eager_attention(attention: nn.Module) -> Callable[..., Any] | None:
    """The model's own eager attention, which transformers keeps beside each architecture."""
    return getattr(sys.modules[type(attention).__module__], "eager_attention_forward", None)


@torch.no_grad()
def largest_logits(q_BHTD: Tensor, k_BGTD: Tensor, visible: Tensor | None, scaling: float) -> Tensor:
    """[H], the largest scaled product of a query and a key that it may see; float32 whatever comes in.

    Args:
        visible: [B or 1, 1, T, T], booleans or the additive mask of eager attention; None is causal.
    """
    batch, heads, length, _ = q_BHTD.shape
    largest_H = torch.full((heads,), -torch.inf, device=q_BHTD.device)
    # Autocast would take the products of float32 in bfloat16, where a logit of 100 is known to 0.5.
    with torch.autocast(q_BHTD.device.type, enabled=False):
        q_BGSTD = q_BHTD.float().reshape(batch, k_BGTD.shape[1], -1, *q_BHTD.shape[2:])
        k_BG1DT = k_BGTD.float().transpose(-1, -2).unsqueeze(2)
        rows = max(1, _MAX_LOGITS // (batch * heads * k_BGTD.shape[2]))
        if is_lazy(q_BHTD):
            rows = max(rows, math.ceil(length / _MOST_PIECES))
        for start in range(0, length, rows):
            logits = (q_BGSTD[:, :, :, start : start + rows] @ k_BG1DT).flatten(1, 2) * scaling
            hidden = ~_visible(visible, start, logits)
            largest_H = torch.maximum(largest_H, logits.masked_fill(hidden, -torch.inf).amax(dim=(0, 2, 3)))
    return largest_H


def _visible(mask: Tensor | None, start: int, logits_BHRT: Tensor) -> Tensor:
    """Which keys the queries from `start` on may see, [B or 1, 1, R, T]."""
    rows, length = logits_BHRT.shape[-2:]
    if mask is None or mask.ndim != 4:
        whole = torch.ones(rows, length, dtype=torch.bool, device=logits_BHRT.device)
        return whole.tril(diagonal=start)[None, None]
    part = mask[:, :, start : start + rows, :length]
    return part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2


def _registered(inner: str) -> str:
    """The name under which transformers finds a recording version of the attention function `inner`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    name = _PREFIX + inner

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> Any:
        if module.training and _BUFFER in module._buffers:
            scaling = options.get("scaling") or query.shape[-1] ** -0.5
            mask = attention_mask if isinstance(attention_mask, Tensor) else None
            seen_H = recorded(module)
            seen_H.copy_(torch.maximum(seen_H, largest_logits(query, key, mask, scaling)))
        function: Any = eager_attention(module) if inner == "eager" else ALL_ATTENTION_FUNCTIONS[inner]
        return function(module, query, key, value, attention_mask, **options)

    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[inner])
    return name


def _switch(model: Any, implementation: str) -> None:
    model.set_attn_implementation(implementation)
