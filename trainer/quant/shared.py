"""A number that all layers of a model share, as a tensor. `warmup.Lambda` holds two, `saliency.Share` and
`losses.distill_schedule.DistillWeight` are one each.

A tensor and not a Python float: a float would be baked into a compiled graph, and each new value would
compile it again. One object and not a global: two models in one process have one each.
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
        """Changes it for all layers that share it, in place."""
        set_value(self.value, value)
        self._last_set = value

    def known_to_be(self, value: float) -> bool:
        """Whether it is `value`, for code that runs operation by operation and can spare some if so.

        Answered without a look at the device. Never True while a graph is recorded, by torch.compile or by
        XLA: the answer would become part of the graph, and a new answer would compile it again.
        """
        if torch.compiler.is_compiling() or is_lazy(self.value):
            return False
        return self._last_set == value

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SharedScalar:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # torch has no annotation here
        self.value = self.value.float()  # `.to(bfloat16)` is meant for weights; a ramp would lose its steps
        return self
