"""A number of a loss that a sweep varies. Used by `next_token` and by stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Varied:
    """A number in eager code, and an input of the graph while a step is compiled.

    As a constant it would be a part of the graph. So the trials of a sweep have one graph, whose kernels are
    found in inductor's cache.

    Args:
        value: the number.
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
