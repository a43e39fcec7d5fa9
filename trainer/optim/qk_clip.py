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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import ConfigError
from trainer.optim.attention_logits import (
    eager_attention,
    record_logits,
    recorded_logits,
    reset,
    stop_recording,
)

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
        """Stop recording; the model is as it was before."""
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
    torch._foreach_mul_([each.weight for each in projections], rows_NO[..., None].unbind())
    if projections[0].bias is not None:
        torch._foreach_mul_([each.bias for each in projections], rows_NO.unbind())
