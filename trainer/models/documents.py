"""Masks between documents of a packed window (`data.document_masks`). Used by `causal_lm` and Stage 3.

A token attends only to tokens of its own document, and positions restart at 0 in each document. The losses
still cover all tokens: the last token of a document, its end, predicts the first one of the next.

Shapes: B sequences, T tokens; `ids_BT`.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from trainer.devices.lazy_tensor import is_lazy
from trainer.devices.sdpa import ignores_padding
from trainer.errors import ConfigError

KEY = "data.document_masks"
_END = "document_end"  # an attribute of the model, so that its copies have it; it is saved nowhere

_Model = TypeVar("_Model", bound=nn.Module)


def separate_documents(model: _Model, end: int | None) -> _Model:
    """Have the model's forward passes keep documents apart, and return it.

    Args:
        model: of transformers, on its device. Copies of it do the same.
        end: id of the token that ends a document; None: the tokenizer has none.

    Raises:
        ConfigError: the model cannot keep documents apart, or nothing says where they end.
    """
    if end is None:
        raise ConfigError(
            "the tokenizer has no end-of-text token to tell documents by; write false, or name a "
            "data.tokenizer that has one",
            key=KEY,
        )
    setattr(model, _END, end)
    weight = next(model.parameters())
    if isinstance(weight, FakeTensor):  # of `trainer.preflight`: there are no numbers to compare
        return model
    apart = ignores_padding(model) or not is_lazy(weight)
    if not apart or not _keeps_apart(model, end, weight.device):
        raise ConfigError(
            f"{type(model).__name__} lets tokens read other documents of their window on this device; "
            "write false",
            key=KEY,
        )
    return model


def document_numbers(model: nn.Module, ids_BT: Tensor) -> Tensor | None:
    """Return the number of each token's document in its window [B, T], from 0; None: no masks are used."""
    end: int | None = getattr(model, _END, None)
    if end is None:
        return None
    ended_BT: Tensor = (ids_BT == end).long()  # sums of booleans are booleans on XLA
    return ended_BT.cumsum(dim=-1) - ended_BT  # the end is the last token of its own document


def positions(numbers_BT: Tensor) -> Tensor:
    """Return the position of each token in its document, or the part of it in the window, [B, T]."""
    index_T = torch.arange(numbers_BT.shape[-1], device=numbers_BT.device)
    begins_BT = torch.diff(numbers_BT, dim=-1, prepend=numbers_BT[:, :1]) != 0
    # The running maximum of the indices of first tokens is where the present document began.
    return index_T - (begins_BT * index_T).cummax(dim=-1).values


def arguments(model: nn.Module, ids_BT: Tensor) -> dict[str, Tensor]:
    """Return the model's arguments for masks between documents; none if it does not use them."""
    numbers_BT = document_numbers(model, ids_BT)
    if numbers_BT is None:
        return {}
    found = {"position_ids": positions(numbers_BT)}
    if ignores_padding(model):  # otherwise transformers finds the documents by their positions
        found["attention_mask"] = numbers_BT.unsqueeze(1)  # `devices.sdpa` knows it by its three dimensions
    return found


@torch.no_grad()
def _keeps_apart(model: nn.Module, end: int, device: torch.device) -> bool:
    """Return whether another first document leaves the logits of the second one as they are."""
    first, other, *second = (token for token in range(6) if token != end)
    ids_BT = torch.tensor([[each, each, end, *second] for each in (first, other)], device=device)
    modes = [(module, module.training) for module in model.modules()]
    try:
        # A model may refuse the positions, or fail on them.
        logits = cast(Any, model.eval())(
            input_ids=ids_BT, use_cache=False, **arguments(model, ids_BT)
        ).logits.float()
    except (TypeError, ValueError):
        return False
    finally:
        for module, training in modes:
            module.training = training
    return torch.allclose(logits[0, 3:], logits[1, 3:], rtol=1e-3, atol=1e-3)
