"""Losses on next-token predictions, from all logits or in chunks. Called by stages and by evaluation.

Small logits are computed by the model itself. Large ones, and those of a model that processes compute in
parts, never exist in full: `chunked` computes the losses from the hidden states, unless the model does more
to them than a linear layer (caps, scales, a bias).

Shapes: B sequences, T tokens, N predicted ones of all sequences, H hidden size, V vocabulary; `ids_BT`,
`logits_BTV`. Losses are in nats per predicted token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.devices.lazy_tensor import is_lazy
from trainer.losses import chunked
from trainer.losses.distillation import tempered_divergence
from trainer.models.causal_lm import embedding_count, inputs, plain_head, run
from trainer.models.tensor_parallel import group_of


class GraphInput:
    """A number of a loss that a sweep varies: an input of the graph while a step is compiled.

    As a constant it would be part of the graph. As an input, the trials of a sweep share one graph, whose
    kernels are found in inductor's cache.

    Args:
        model: on whose device the tensor is.
    """

    def __init__(self, value: float, model: nn.Module) -> None:
        self._value = value
        parameter = next(model.parameters(), None)
        device = None if parameter is None else parameter.device
        self._tensor = torch.tensor(value, dtype=torch.float32, device=device)

    def __call__(self) -> float | Tensor:
        """Return the number; a 0-d float32 tensor while torch.compile traces."""
        return self._tensor if torch.compiler.is_compiling() else self._value


@dataclass(frozen=True, kw_only=True)
class NextTokenLosses:
    """Losses of one batch.

    Args:
        total: CE + factor·KL, which is minimised; 0-d.
        ce, kl: its parts, without a gradient where logits were chunked; `kl` is None without a teacher.
        hidden, teacher_hidden: hidden states of all layers as `causal_lm.Outputs` has them, if requested; of
            this process's tokens alone, where several compute the model in parts.
    """

    total: Tensor
    ce: Tensor
    kl: Tensor | None
    hidden: tuple[Tensor, ...]
    teacher_hidden: tuple[Tensor, ...]

    @property
    def parts(self) -> dict[str, Tensor]:
        """Return the parts of the total by name, to be logged."""
        return {"ce": self.ce} if self.kl is None else {"ce": self.ce, "kl": self.kl}


class NextTokenLoss:
    """Next-token losses of a model: cross-entropy, and KL from a teacher where there is one.

    Args:
        teacher: with whose predictions they are compared; None: cross-entropy alone.
        factor: weight of KL(teacher ‖ model) in the total.
        hidden: whether the hidden states of all layers are returned too.
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
        self._hidden = hidden
        self._factor = GraphInput(factor, model)
        # At 1 the losses share their softmax: a graph of its own.
        self._temperature = GraphInput(temperature, model) if temperature != 1 else lambda: temperature
        self._chunkable = all(plain_head(each) is not None for each in (model, teacher) if each is not None)
        self._vocabulary = embedding_count(model) if self._chunkable else 0

    def __call__(self, ids_BT: Tensor) -> NextTokenLosses:
        """Return the losses of one batch of token ids [B, T]."""
        losses = self._from_chunks(ids_BT) if self.chunks(ids_BT) else self._from_logits(ids_BT)
        group = group_of(self._model)
        if group is None:
            return losses
        own = tuple(group.own(hidden_BTH, 1) for hidden_BTH in losses.teacher_hidden)
        return replace(losses, teacher_hidden=own)

    @torch.no_grad()
    def by_sequence(self, ids_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy of each sequence's tokens 2..T, [B] float32, of token ids [B, T]."""
        labels_BT = ids_BT[:, 1:]
        if self.chunks(ids_BT):
            ours, _ = head_inputs(self._model, ids_BT)
            labels = labels_BT.reshape(ours.states.shape[:-1])
            return chunked.token_losses(ours, labels).view(labels_BT.shape).mean(dim=1)
        logits_BVT = run(self._model, ids_BT).logits[:, :-1].float().transpose(1, 2)
        return F.cross_entropy(logits_BVT, labels_BT, reduction="none").mean(dim=1)

    def chunks(self, ids_BT: Tensor) -> bool:
        """Return whether the logits of the batch are never to exist in full."""
        large = ids_BT.numel() * self._vocabulary > chunked.suitable_elements(ids_BT.device)
        return self._chunkable and (large or group_of(self._model) is not None)

    def _from_logits(self, ids_BT: Tensor) -> NextTokenLosses:
        if self._teacher is None:
            ours = run(self._model, ids_BT, hidden=self._hidden)
            ce = next_token_loss(ours.logits, ids_BT)
            return NextTokenLosses(total=ce, ce=ce, kl=None, hidden=ours.hidden, teacher_hidden=())
        with torch.no_grad():
            theirs = run(self._teacher, ids_BT, hidden=self._hidden)
        ours = run(self._model, ids_BT, hidden=self._hidden)
        ce = next_token_loss(ours.logits, ids_BT)
        kl = tempered_divergence(ours.logits, theirs.logits, temperature=self._temperature())
        total = ce + self._factor() * kl
        return NextTokenLosses(total=total, ce=ce, kl=kl, hidden=ours.hidden, teacher_hidden=theirs.hidden)

    def _from_chunks(self, ids_BT: Tensor) -> NextTokenLosses:
        theirs: chunked.HeadInputs | None = None
        teacher_hidden: tuple[Tensor, ...] = ()
        if self._teacher is not None:
            with torch.no_grad():
                theirs, teacher_hidden = head_inputs(self._teacher, ids_BT, hidden=self._hidden)
        ours, hidden = head_inputs(self._model, ids_BT, hidden=self._hidden)
        losses = chunked.head_losses(
            ours,
            ids_BT[:, 1:].reshape(ours.states.shape[:-1]),
            teacher=theirs,
            factor=self._factor(),
            temperature=self._temperature(),
        )
        return NextTokenLosses(
            total=losses.total, ce=losses.ce, kl=losses.kl, hidden=hidden, teacher_hidden=teacher_hidden
        )


def next_token_loss(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy of tokens 2..T given those before them, 0-d float32."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), ids_BT[:, 1:].flatten())


def cross_entropy(model: nn.Module) -> Callable[[Tensor], Mapping[str, Tensor]]:
    """Return the objective of plain pre-training: ids [B, T] → `loss`. The teacher is trained with it too."""
    losses_of = NextTokenLoss(model)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        return {"loss": losses_of(ids_BT).total}

    return losses


def head_inputs(
    model: nn.Module, ids_BT: Tensor, *, hidden: bool = False
) -> tuple[chunked.HeadInputs, tuple[Tensor, ...]]:
    """Run a model with a plain output head up to that head.

    The tokens are N = B·(T-1). Where steps are recorded as a graph they are [B, T-1] instead, because each
    chip may have some of the rows.

    Returns:
        The states that the head takes for each predicted token, in autocast's dtype, with the head's weight;
        and the hidden states of all layers [B, T, H], if `hidden`.
    """
    outputs = cast(Any, model).get_decoder()(**inputs(model, ids_BT), output_hidden_states=hidden)
    head = cast(Any, model).get_output_embeddings()
    states_BTH = outputs.last_hidden_state[:, :-1]
    states_NH = states_BTH if is_lazy(states_BTH) else states_BTH.flatten(0, 1)
    kind = states_NH.device.type
    if torch.is_autocast_enabled(kind):
        states_NH = states_NH.to(torch.get_autocast_dtype(kind))
    layers = tuple(outputs.hidden_states[1:]) if hidden else ()
    return chunked.HeadInputs(states=states_NH, head=head.weight, group=group_of(model)), layers
