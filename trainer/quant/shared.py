"""A scalar tensor that all layers of a model share.

`warmup.Lambda` holds two; `saliency.Share` and `losses.distill_schedule.DistillWeight` are subclasses. It is
a tensor because a Python float would be a constant of a compiled graph, compiled anew for each value. It is
an object and not a global because two models in one process need one each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer.devices.lazy_tensor import is_lazy, set_value


class SharedScalar(nn.Module):
    """A 0-d float32 tensor. Layers hold the module, so that they still share it after `.to(device)`."""

    value: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        # Not in the state dict: it belongs to the step of a run, not to the weights.
        self.register_buffer("value", torch.tensor(value, dtype=torch.float32), persistent=False)
        self._last_set = value

    def set(self, value: float) -> None:
        """Set the value in place, for all layers that share it."""
        set_value(self.value, value)
        self._last_set = value

    @property
    def last_set(self) -> float:
        """Return the value without a device synchronisation."""
        return self._last_set

    def known_to_be(self, value: float) -> bool:
        """Return whether eager code may rely on the scalar being `value`, without a device synchronisation.

        Always False while torch.compile or XLA traces a graph: the answer would become a constant of the
        graph, and a new answer would recompile it.
        """
        if torch.compiler.is_compiling() or is_lazy(self.value):
            return False
        return self._last_set == value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SharedScalar:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # torch has no annotation here
        self.value = self.value.float()  # `.to(bfloat16)` is meant for weights; a ramp would lose precision
        return self
