"""Gradient norms by kind of parameter, to show the part that diverges. Called by `train_step`."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from trainer.distributed.tensors import full_tensor
from trainer.models.causal_lm import hidden_matrices


class GradientNorms:
    """Gradient norms of three kinds: hidden matrices; embeddings and head; gains and biases."""

    def __init__(self, model: nn.Module) -> None:
        matrices = hidden_matrices(model)
        hidden_ids = {id(parameter) for parameter in matrices}
        rest = [p for p in model.parameters() if p.requires_grad and id(p) not in hidden_ids]
        self._kinds = {
            "grad_norm_matrices": matrices,
            "grad_norm_ends": [p for p in rest if p.ndim >= 2],
            "grad_norm_gains": [p for p in rest if p.ndim < 2],
        }

    def __call__(self) -> dict[str, Tensor]:
        """Return the current norms as 0-d tensors, without kinds that have no gradients."""
        norms = {}
        for name, parameters in self._kinds.items():
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                norms[name] = full_tensor(get_total_norm(gradients))
        return norms
