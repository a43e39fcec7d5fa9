"""The losses on a model's next-token predictions, by whichever way fits. Used by `stages` and `evaluate`.

Small logits are computed whole, by the model itself. Large ones never exist whole: `losses.chunked` reads
them from the hidden states, unless the model does more to them than a linear layer (caps, scales, a bias).

Shapes: B sequences, T tokens, N predicted ones of all sequences, H hidden size, V vocabulary; `ids_BT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.devices.lazy_tensor import recorded
from trainer.losses import chunked
from trainer.losses.distillation import tempered_divergence
from trainer.losses.next_token import next_token_loss
from trainer.models.causal_lm import embedding_count, inputs, plain_head, run


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a batch came to.

    Args:
        total: CE + factor·KL, the one to minimise.
        ce, kl: its parts, without a gradient where logits were chunked; no `kl` without a teacher.
        hidden, teacher_hidden: as `model.Outputs` has them, where they were asked for.
    """

    total: Tensor
    ce: Tensor
    kl: Tensor | None
    hidden: tuple[Tensor, ...]
    teacher_hidden: tuple[Tensor, ...]

    @property
    def parts(self) -> dict[str, Tensor]:
        """What the total is made of, to be logged."""
        return {"ce": self.ce} if self.kl is None else {"ce": self.ce, "kl": self.kl}


class Predictions:
    """The losses of a model, with a teacher's predictions beside the true tokens where there is one.

    Args:
        factor: weight of KL(teacher || model) in the total.
        temperature: of that divergence.
        hidden: whether the hidden states of all layers are wanted too.
    """

    def __init__(
        self,
        model: nn.Module,
        teacher: nn.Module | None = None,
        *,
        factor: float = 1.0,
        temperature: float = 1.0,
        hidden: bool = False,
    ) -> None:
        self._model, self._teacher = model, teacher
        self._factor, self._temperature, self._hidden = factor, temperature, hidden
        self._chunkable = all(plain_head(each) is not None for each in (model, teacher) if each is not None)
        self._vocabulary = embedding_count(model) if self._chunkable else 0

    def __call__(self, ids_BT: Tensor) -> Predicted:
        """Of one batch."""
        if self._chunkable and ids_BT.numel() * self._vocabulary > chunked.suitable_elements(ids_BT.device):
            return self._in_chunks(ids_BT)
        return self._whole(ids_BT)

    def _whole(self, ids_BT: Tensor) -> Predicted:
        if self._teacher is None:
            ours = run(self._model, ids_BT, hidden=self._hidden)
            ce = next_token_loss(ours.logits, ids_BT)
            return Predicted(total=ce, ce=ce, kl=None, hidden=ours.hidden, teacher_hidden=())
        with torch.no_grad():
            theirs = run(self._teacher, ids_BT, hidden=self._hidden)
        ours = run(self._model, ids_BT, hidden=self._hidden)
        ce = next_token_loss(ours.logits, ids_BT)
        kl = tempered_divergence(ours.logits, theirs.logits, temperature=self._temperature)
        total = ce + self._factor * kl
        return Predicted(total=total, ce=ce, kl=kl, hidden=ours.hidden, teacher_hidden=theirs.hidden)

    def _in_chunks(self, ids_BT: Tensor) -> Predicted:
        theirs: chunked.Read | None = None
        teacher_hidden: tuple[Tensor, ...] = ()
        if self._teacher is not None:
            with torch.no_grad():
                theirs, teacher_hidden = read(self._teacher, ids_BT, hidden=self._hidden)
        ours, hidden = read(self._model, ids_BT, hidden=self._hidden)
        losses = chunked.head_losses(
            ours,
            ids_BT[:, 1:].reshape(ours.states.shape[:-1]),
            teacher=theirs,
            factor=self._factor,
            temperature=self._temperature,
        )
        return Predicted(
            total=losses.total, ce=losses.ce, kl=losses.kl, hidden=hidden, teacher_hidden=teacher_hidden
        )


def read(
    model: nn.Module, ids_BT: Tensor, *, hidden: bool = False
) -> tuple[chunked.Read, tuple[Tensor, ...]]:
    """What the head of a model with a plain one reads before each predicted token, as autocast has it, and
    the head; and the hidden states of all layers where they are asked for.

    The tokens are N = B·(T-1); where steps are recorded as a graph, [B, T-1], as each chip may have some of
    the rows.
    """
    outputs = cast(Any, model).get_decoder()(**inputs(ids_BT), output_hidden_states=hidden)
    head = cast(Any, model).get_output_embeddings()
    states_BTH = outputs.last_hidden_state[:, :-1]
    states_NH = states_BTH if recorded(states_BTH) else states_BTH.flatten(0, 1)
    kind = states_NH.device.type
    if torch.is_autocast_enabled(kind):
        states_NH = states_NH.to(torch.get_autocast_dtype(kind))
    layers = tuple(outputs.hidden_states[1:]) if hidden else ()
    return chunked.Read(states=states_NH, head=head.weight), layers
