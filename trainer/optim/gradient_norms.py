"""Gradient norms of a step: of all parameters, and by kind, to show what diverges. Called by `train_step`."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from trainer.devices.lazy_tensor import is_lazy
from trainer.distributed.tensors import full_tensor
from trainer.models.causal_lm import hidden_matrices

KINDS = ("grad_norm_matrices", "grad_norm_ends", "grad_norm_gains")
"""Hidden matrices; embeddings and head; gains and biases."""


class GradientNorms:
    """Gradient norms of all parameters of a model, and by kind."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._hidden = model, {id(parameter) for parameter in hidden_matrices(model)}

    def __call__(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the current norm, 0-d, and those of the kinds that have gradients.

        All are made of one norm per parameter, so that each gradient is read once.
        """
        trained = [p for p in self._model.parameters() if p.grad is not None]
        if not trained:
            return torch.zeros(()), {}
        gradients = [cast(Tensor, p.grad) for p in trained]
        # XLA has no norm of a list, and compiles a loop to one graph.
        lazy = is_lazy(gradients[0])
        norms = [vector_norm(each) for each in gradients] if lazy else torch._foreach_norm(gradients)
        norms_P = full_tensor(torch.stack(list(norms)))
        kinds: dict[str, list[Tensor]] = {}
        for parameter, norm in zip(trained, norms_P.unbind(), strict=True):
            ends_or_gains = KINDS[1] if parameter.ndim >= 2 else KINDS[2]
            kind = KINDS[0] if id(parameter) in self._hidden else ends_or_gains
            kinds.setdefault(kind, []).append(norm)
        by_kind = {name: vector_norm(torch.stack(kinds[name])) for name in KINDS if name in kinds}
        return vector_norm(norms_P), by_kind
