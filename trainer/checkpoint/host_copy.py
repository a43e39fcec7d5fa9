"""Copies of tensors in host memory, in reused buffers. Used by `checkpoints`.

The copy is all that a checkpoint costs the training step. Touching fresh memory takes 20 times as long as the
copy (240 MB: 1.8 s and 0.08 s on 2 shared cores).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.devices.lazy_tensor import copy_to_host
from trainer.distributed.tensors import full_tensor


class HostCopies:
    """The copies that were taken last; `take` overwrites them."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies on the CPU, contiguous and detached, by name.

        DTensors are gathered one at a time, while the other processes `contribute`.
        """
        held, self._buffers = self._buffers, {}
        for name, part in tensors.items():
            tensor = full_tensor(part.detach())
            buffer = held.get(name)
            if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
            self._buffers[name] = copy_to_host(buffer, tensor)
        return self._buffers


def contribute(tensors: Mapping[str, Tensor]) -> None:
    """Contribute this process's shards of the same tensors to the process that takes copies."""
    for part in tensors.values():
        full_tensor(part.detach())
