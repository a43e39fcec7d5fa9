"""Numbers for computations that are recorded as a graph and compiled, as XLA does. Used by `quant.shared`,
`optim`, `model` and `checkpoint`.

XLA compiles a graph once for each form that it has. A Python number in it becomes a constant, or an input
that is kept by its value: two numbers that happen to be equal in one step are one input, and unequal in the
next they are two, which is another form. So a number that changes from step to step goes there as an array of
one element, which is always an input of its own.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

_NUMBER = TypeVar("_NUMBER", float, Tensor)


def is_lazy(tensor: Tensor) -> bool:
    """Whether operations on it are recorded, and run later as one graph."""
    return tensor.device.type == "xla"


def set_value(place: Tensor, value: float) -> None:
    """Sets a 0-d tensor, in place."""
    if is_lazy(place):
        place.copy_(to_device(torch.tensor(value, dtype=place.dtype), place.device))
    else:
        place.fill_(value)


def step_scalar(value: float, like: Tensor) -> float | Tensor:
    """A number of this step alone, as operations on `like` take it."""
    if is_lazy(like):
        return to_device(torch.tensor(value), like.device)
    return value


def copied(place: Tensor, tensor: Tensor) -> Tensor:
    """The place, a CPU tensor, with a copy of the tensor in it."""
    if not is_lazy(tensor):
        return place.copy_(tensor)
    from trainer.devices.xla_sharding import copy_into  # torch_xla, which others need not have

    copy_into(place, tensor)
    return place


def to_device(kept: Tensor, device: torch.device) -> Tensor:
    """A copy of a CPU tensor on the device; a number too is an input of its own there."""
    if device.type == "xla" and not kept.ndim:
        return kept.reshape(1).to(device)[0]
    return kept.to(device, copy=True)
