"""Scalars and copies for lazy tensors, whose operations XLA records and compiles as one graph.

XLA compiles each distinct graph once. A Python number becomes a constant of the graph, or an input that equal
numbers share: two numbers that are equal in one step and unequal in the next make two graphs. So a number
that changes from step to step is passed as an array of one element, which is always an input of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_lazy(tensor: Tensor) -> bool:
    """Return whether operations on the tensor are recorded, to run later as one graph."""
    return tensor.device.type == "xla"


def set_value(target: Tensor, value: float) -> None:
    """Set a 0-d tensor, in place."""
    if is_lazy(target):
        target.copy_(to_device(torch.tensor(value, dtype=target.dtype), target.device))
    else:
        target.fill_(value)


def step_scalar(value: float, like: Tensor) -> float | Tensor:
    """Return a number that changes from step to step, in the form that operations on `like` need."""
    if is_lazy(like):
        return to_device(torch.tensor(value), like.device)
    return value


def copy_to_host(buffer: Tensor, tensor: Tensor) -> Tensor:
    """Copy the tensor, which may be sharded over chips, into a CPU buffer; return the buffer."""
    if not is_lazy(tensor):
        return buffer.copy_(tensor)
    from trainer.devices.xla_sharding import copy_into  # imports torch_xla, which is optional

    copy_into(buffer, tensor)
    return buffer


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a CPU tensor on the device; on XLA a 0-d tensor stays an input of its own."""
    if device.type == "xla" and not tensor.ndim:
        return tensor.reshape(1).to(device)[0]
    return tensor.to(device, copy=True)
