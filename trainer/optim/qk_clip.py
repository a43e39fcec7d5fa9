"""QK-clip, which turns Muon into MuonClip (Kimi K2, arXiv:2507.20534, §2.1). Built by `optim.build`.

Shapes: N attention modules that are alike, H query heads, G key heads, S = H / G query heads that share a key
head, D the size of a head, I input features; `gamma_NGS`, `w_OI` with O = H·D or G·D.

After a step, the queries and keys of every head h whose largest logit S_max in that step's forward passes
exceeded tau are scaled down, so that the same inputs would give tau: gamma_h = min(1, tau / S_max). With as
many key heads as query heads, both are scaled by √gamma_h, as in the report. With grouped queries, a key head
is scaled by √gamma of its query head that is clipped least, and each query head by the remainder of its own
gamma. So each head's logits shrink by exactly its gamma, no weight ever grows, and a key head that also
serves a head within bounds is not changed: the report's own rule for the rotary key that all of its heads
share.

Weights and biases of the projections are scaled; in ternary layers these are the master weights. There the
clip reaches the logits through the quantiser: at once if scales are per row (`group_size`), but with one
scale per matrix only over some steps, as the head's weights round to zero.

Logits are recorded while the model trains, from queries `q_BHTD` and keys `k_BGTD` after rotary embeddings,
in the attention function that transformers calls (B sequences, T tokens). Ours records and then calls the
model's own (eager, sdpa or another), so the model's outputs are unchanged. The module's `training` flag
switches recording, so nothing has to be restored after an evaluation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.devices.lazy_tensor import is_lazy
from trainer.devices.sdpa import RECORDING
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.tensors import local_tensor, redistribute_like
from trainer.errors import ConfigError

_BUFFER = "max_logit_H"
MAX_LOGITS = 2**24  # in memory at a time, in float32: 64 MiB
MAX_CHUNKS = 64  # of an XLA graph, where each is about fifty operations to compile in every layer
_NORMS = ("q_norm", "k_norm", "qk_norm", "q_layernorm", "k_layernorm")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """An attention module, its query and key projections (any linear layers), and its numbers of heads.

    Args:
        query: has `weight` [H·D, I] and `bias` [H·D] or None.
        key: has `weight` [G·D, I] and `bias` [G·D] or None.
        heads: H.
        key_heads: G.
    """

    module: nn.Module
    query: Any
    key: Any
    heads: int
    key_heads: int


class QkClip:
    """QK-clip of one model, which records its attention logits from construction until `close`.

    Args:
        model: a transformers model; the caller trains it in place and calls `clip` after each step.
        tau: upper bound of the logits.
        key: of the optimizer in the configuration, for error messages.

    Raises:
        ConfigError: scaling this model's projections would not scale its logits.
    """

    def __init__(self, model: nn.Module, tau: float, *, key: str, ranks: Ranks = ALONE) -> None:
        self.tau = tau
        self._model, self._ranks = model, ranks
        attentions = clippable_attentions(model, key=key)
        alike: dict[tuple[int, ...], list[Attention]] = {}
        for each in attentions:
            biases = each.query.bias is None, each.key.bias is None
            sizes = each.heads, each.key_heads, each.query.weight.shape[0]
            alike.setdefault((*sizes, *biases), []).append(each)
        self._alike, self._all_reduced = list(alike.values()), False
        record_logits(model, {attention.module: attention.heads for attention in attentions})

    @torch.no_grad()
    def clip(self, finite: Tensor | None = None) -> None:
        """Scale down the heads that exceeded tau since the last call, without a device synchronisation.

        Args:
            finite: 0-d bool on the device; where it is False nothing is scaled. None: True.
        """
        self._all_reduce()
        for alike in self._alike:
            logits_NH = _stacked_logits(alike)
            gamma_NH = self._gamma(logits_NH)
            if finite is not None:
                gamma_NH = torch.where(finite, gamma_NH, 1.0)
            # The factor of each key head, and of each query head what is left of gamma.
            gamma_NGS = gamma_NH.view(len(alike), alike[0].key_heads, -1)
            key_NG = gamma_NGS.amax(dim=2).sqrt()
            query_NH = (gamma_NGS / key_NG[..., None]).flatten(1)
            _scale([attention.query for attention in alike], query_NH)
            _scale([attention.key for attention in alike], key_NG)
            reset(*(attention.module for attention in alike))
        self._all_reduced = False

    def readings(self) -> dict[str, Tensor]:
        """Return the largest logit since the last `clip`, and the number of heads that the next will clip."""
        self._all_reduce()
        logits = torch.cat([_stacked_logits(alike).flatten() for alike in self._alike])
        clipped = (self._gamma(logits) < 1).sum().float()
        return {"qk_max_logit": logits.max(), "qk_clipped_heads": clipped}

    def close(self) -> None:
        stop_recording(self._model)

    def _all_reduce(self) -> None:
        """Replace the logits of this process's rows by the maximum over all processes, once for a step."""
        if not self._all_reduced:
            self._ranks.all_reduce_max_(
                [recorded_logits(each.module) for alike in self._alike for each in alike]
            )
        self._all_reduced = True

    def _gamma(self, largest: Tensor) -> Tensor:
        """Return the gamma_h of largest logits, of any shape."""
        return torch.where(largest > self.tau, self.tau / largest, 1.0)


def _stacked_logits(alike: Sequence[Attention]) -> Tensor:
    """Return the largest logits of modules with as many heads, [N, H]."""
    return torch.stack([recorded_logits(attention.module) for attention in alike])


def clippable_attentions(model: nn.Module, *, key: str) -> list[Attention]:
    """Return the attention modules of a model, in order.

    Raises:
        ConfigError: there are none, or scaling their projections would not scale their logits. `key` is the
            optimizer's in the configuration.
    """
    found = []
    for module in model.modules():
        if all(hasattr(module, name) for name in ("q_proj", "k_proj", "head_dim")):
            each: Any = module
            attention = Attention(
                module=module,
                query=each.q_proj,
                key=each.k_proj,
                heads=each.q_proj.weight.shape[0] // each.head_dim,
                key_heads=each.k_proj.weight.shape[0] // each.head_dim,
            )
            found.append(attention)
    obstacles = [_obstacle(attention.module) for attention in found]
    if not found:
        obstacles = ["has no attention with q_proj and k_proj, which muonclip scales"]
    for obstacle in filter(None, obstacles):
        raise ConfigError(f"{type(model).__name__} {obstacle}; write muon", key=f"{key}.type")
    return found


def _obstacle(module: nn.Module) -> str | None:
    """Return the reason why QK-clip cannot bound the logits of this attention; None if it can."""
    norms = [name for name in _NORMS if isinstance(getattr(module, name, None), nn.Module)]
    if norms:
        return (
            f"normalises queries and keys ({norms[0]}), so that scaling their weights changes nothing and "
            "its logits are bounded already"
        )
    if eager_attention(module) is None:
        return "does not use the attention functions of transformers, where muonclip measures"
    return None


def _scale(projections: Sequence[Any], factor_NH: Tensor) -> None:
    """Scale the rows of each head in float32, rounded once; a factor of 1 changes no bit."""
    outputs = projections[0].weight.shape[0]
    rows_NO = factor_NH.repeat_interleave(outputs // factor_NH.shape[1], dim=1)
    _multiply([each.weight for each in projections], rows_NO[..., None].unbind())
    if projections[0].bias is not None:
        _multiply([each.bias for each in projections], rows_NO.unbind())


def _multiply(parameters: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
    """Scale parameters, which may be sharded, by factors of their rows, which every process has."""
    own = [local_tensor(redistribute_like(p, factor)) for p, factor in zip(parameters, factors, strict=True)]
    torch._foreach_mul_([local_tensor(parameter) for parameter in parameters], own)


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
            group = getattr(module.q_proj, "group", None)  # whose processes have the other heads
            largest_H = largest_H if group is None else group.own(largest_H, 0)
            largest_H.copy_(torch.maximum(largest_H, largest_logits(query, key, mask, scaling)))
        function: Any = eager_attention(module) if inner == "eager" else ALL_ATTENTION_FUNCTIONS[inner]
        return function(module, query, key, value, attention_mask, **options)

    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[inner])
    return name
