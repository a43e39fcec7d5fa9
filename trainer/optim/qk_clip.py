"""QK-clip, which makes MuonClip of Muon (Kimi K2, arXiv:2507.20534, §2.1). Built by `optim.build`.

Shapes: H query heads, G key heads, S = H / G query heads that share a key head, D the size of a head,
I input features; `gamma_GS`, `w_OI` with O = H·D or G·D.

After a step, every head h whose largest logit S_max in that step's forward passes went above tau has its
queries and keys scaled down, so that the same inputs would give tau: gamma_h = min(1, tau / S_max). With as
many key heads as query heads that is √gamma_h on either, as in the report. A key head that several query
heads share (grouped queries) takes √gamma of the one of them that is clipped least, and each query head
takes what it still lacks to its own gamma. So each head's logits shrink by exactly its gamma, no weight ever
grows, and a key head that also serves a head within bounds is left alone: the report's own rule for the
rotary key that all of its heads share.

Weights and biases of the projections are scaled, which are the master weights where the layer is ternary.
There the clip reaches the logits through the quantiser: at once where scales are per row (`group_size`); with
one scale for the whole matrix only as the head's weights round to zero, over some steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import ConfigError
from trainer.optim.attention_logits import (
    eager_attention,
    record_logits,
    recorded,
    reset,
    stop_recording,
)

_NORMS = ("q_norm", "k_norm", "qk_norm", "q_layernorm", "k_layernorm")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """An attention module, its projections to queries and keys (linear layers of any make), and its heads.

    Args:
        heads, key_heads: H and G.
    """

    module: nn.Module
    query: Any
    key: Any
    heads: int
    key_heads: int


class QkClip:
    """Watches the attention of a model that trains, until `close`.

    Args:
        model: a transformers model, trained in place by whoever calls `clip` after each step.
        tau: the largest logit.
        key: of the optimizer in the configuration, for refusals.
        ranks: the processes that train the model together.

    Raises:
        ConfigError: scaling this model's projections would not scale its logits.
    """

    def __init__(self, model: nn.Module, tau: float, *, key: str, ranks: Ranks = ALONE) -> None:
        self._model, self._tau, self._ranks = model, tau, ranks
        self._attentions = clippable_attentions(model, key=key)
        record_logits(model, {attention.module: attention.heads for attention in self._attentions})

    @torch.no_grad()
    def clip(self) -> None:
        """Scales down what went above tau since the last call. Nothing is read back from the device."""
        self.agree()
        for attention in self._attentions:
            gamma_H = self._gamma(attention)
            key_G, query_H = _shares(gamma_H.view(attention.key_heads, -1))
            _scale(attention.query, query_H)
            _scale(attention.key, key_G)
            reset(attention.module)

    def agree(self) -> None:
        """Each process has seen the logits of its own rows: from here on, those of all."""
        self._ranks.all_reduce_max_([recorded(attention.module) for attention in self._attentions])

    def readings(self) -> dict[str, Tensor]:
        """Since the last `clip`: the largest logit of all heads, and how many heads the next will clip."""
        self.agree()
        largest = torch.stack([recorded(attention.module).max() for attention in self._attentions])
        clipped = torch.stack([(self._gamma(attention) < 1).sum() for attention in self._attentions])
        return {"qk_max_logit": largest.max(), "qk_clipped_heads": clipped.sum().float()}

    def _gamma(self, attention: Attention) -> Tensor:
        """gamma_h of each head, [H]."""
        largest_H = recorded(attention.module)
        return torch.where(largest_H > self._tau, self._tau / largest_H, 1.0)

    def close(self) -> None:
        """The model computes as it did before."""
        stop_recording(self._model)


def clippable_attentions(model: nn.Module, *, key: str) -> list[Attention]:
    """The attention modules of a model, in order. Raises ConfigError."""
    found = [_attention(module) for module in model.modules() if _is_attention(module)]
    obstacles = [_obstacle(attention.module) for attention in found]
    if not found:
        obstacles = ["has no attention with q_proj and k_proj, which muonclip scales"]
    for obstacle in filter(None, obstacles):
        raise ConfigError(f"{type(model).__name__} {obstacle}; write muon", key=f"{key}.type")
    return found


def _is_attention(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("q_proj", "k_proj", "head_dim"))


def _attention(module: Any) -> Attention:
    query, key, size = module.q_proj, module.k_proj, module.head_dim
    return Attention(
        module=module,
        query=query,
        key=key,
        heads=query.weight.shape[0] // size,
        key_heads=key.weight.shape[0] // size,
    )


def _obstacle(module: nn.Module) -> str | None:
    """Why scaling the projections of this attention would not scale its logits, or could not be decided."""
    norms = [name for name in _NORMS if isinstance(getattr(module, name, None), nn.Module)]
    if norms:
        return (
            f"normalises queries and keys ({norms[0]}), so that scaling their weights changes nothing and "
            "its logits are bounded already"
        )
    if eager_attention(module) is None:
        return "does not use the attention functions of transformers, where muonclip measures"
    return None


def _shares(gamma_GS: Tensor) -> tuple[Tensor, Tensor]:
    """What each key head [G] and each query head [H] takes of the gammas."""
    key_G = gamma_GS.amax(dim=1).sqrt()
    return key_G, (gamma_GS / key_G[:, None]).flatten()


def _scale(projection: Any, factor_H: Tensor) -> None:
    """Scales the rows of each head, in float32, rounded once; a factor of 1 leaves every bit."""
    for parameter in (projection.weight, projection.bias):
        if parameter is not None:
            by_head = parameter.float().view(len(factor_H), -1)
            parameter.copy_((by_head * factor_H[:, None]).view_as(parameter))
