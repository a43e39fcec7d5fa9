"""A frozen model whose decoder layers lie in host memory, and are on the device while they compute.

The layers of a forward pass are copied one after another into two buffers on the device, each while the layer
before it computes. Results are the same bits, as the weights are. For `device.teacher=host`: used by
`stages.teacher`, by `models.subln` to copy such a model, and by `preflight.trace`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from trainer.devices.device import Device
from trainer.errors import ConfigError

_ALIGNMENT = 256  # bytes, of a tensor within a buffer; as torch's allocator aligns on CUDA


class HostLayers:
    """The decoder layers of a frozen model, in host memory.

    Between forward passes the layers' parameters are tensors of the host, where digests and copies of the
    model read them.

    Args:
        layers: in the order in which they compute; on the host or on the device.
        device: where they compute.
    """

    def __init__(self, layers: nn.ModuleList, device: torch.device) -> None:
        self._layers, self._device = layers, device
        self._packed = [_Packed(layer, device) for layer in layers]
        self._buffers: list[Tensor] = []  # two, during a forward pass
        real = not any(isinstance(packed.bytes, FakeTensor) for packed in self._packed)
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and real:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch has no annotation
        self.attach()

    def attach(self) -> None:
        """Copy the layers to the device in forward passes from now on."""
        self._hooks = []
        for index, layer in enumerate(self._layers):
            self._hooks.append(layer.register_forward_pre_hook(partial(self._before, index)))
            self._hooks.append(layer.register_forward_hook(partial(self._after, index)))

    def detach(self) -> None:
        """Leave the layers where they are from now on."""
        for hook in self._hooks:
            hook.remove()

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the layers in host memory."""
        return [packed.bytes for packed in self._packed]

    def _before(self, index: int, *_: object) -> None:
        if index == 0:
            most = max(len(packed.bytes) for packed in self._packed)
            self._buffers = [
                torch.empty(most, dtype=torch.uint8, device=self._device) for _ in self._packed[:2]
            ]
            self._copy(0)
        if self._stream:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._packed[index].use(self._buffers[index % 2])
        if index + 1 < len(self._packed):
            self._copy(index + 1)

    def _copy(self, index: int) -> None:
        source = self._packed[index].bytes
        target = self._buffers[index % 2][: len(source)]
        if self._stream is None:
            target.copy_(source)
            return
        # What was submitted so far read the buffer last: the layer before the one that computes next.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def _after(self, index: int, *_: object) -> None:
        self._packed[index].use(self._packed[index].bytes)
        if index + 1 == len(self._packed):
            self._buffers = []


class _Packed:
    """The tensors of a layer in one piece of host memory, page-locked if the device is CUDA."""

    def __init__(self, layer: nn.Module, device: torch.device) -> None:
        self._tensors: list[Tensor] = [*layer.parameters(), *layer.buffers()]
        self._offsets, size = [], 0
        for tensor in self._tensors:
            self._offsets.append(size)
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        fake = any(isinstance(tensor, FakeTensor) for tensor in self._tensors)
        # The fake tensors of the preflight are all on one device.
        self.bytes = torch.empty(
            size,
            dtype=torch.uint8,
            device=device if fake else "cpu",
            pin_memory=device.type == "cuda" and not fake,
        )
        for tensor, view in zip(self._tensors, self._views(self.bytes), strict=True):
            view.copy_(tensor)
        self.use(self.bytes)

    def use(self, buffer: Tensor) -> None:
        """Let the layer's tensors be views of a buffer, which holds what `bytes` does."""
        for tensor, view in zip(self._tensors, self._views(buffer), strict=True):
            tensor.data = view

    def _views(self, buffer: Tensor) -> Iterator[Tensor]:
        for tensor, offset in zip(self._tensors, self._offsets, strict=True):
            yield buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


_ON_HOST: WeakKeyDictionary[nn.Module, HostLayers] = WeakKeyDictionary()


def place_teacher(teacher: nn.Module, device: Device) -> nn.Module:
    """Return the frozen teacher, moved to the device, with its layers in host memory if they are to be there.

    One that processes are to share stays on the host until it is sharded.

    Raises:
        ConfigError: its layers cannot stay in host memory.
    """
    if device.teacher == "sharded" and not device.ranks.alone:
        return teacher  # `parallel.shard_models` moves it layer by layer
    if device.teacher != "host":
        return device.move(teacher)
    if device.kind == "xla":
        raise ConfigError(
            "a TPU's graph reads no weights of the host; write device, or device.parallel=fsdp, which shares "
            "the teacher among chips",
            key="device.teacher",
        )
    decoder: Any = getattr(teacher, "get_decoder", lambda: None)()
    if not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        raise ConfigError(
            f"{type(teacher).__name__} has no list of decoder layers; write device", key="device.teacher"
        )
    layers, decoder.layers = decoder.layers, nn.ModuleList()
    device.move(teacher)
    decoder.layers = layers
    return keep_layers_on_host(teacher, device)


def keep_layers_on_host(model: nn.Module, device: Device) -> nn.Module:
    """Move the decoder layers of a frozen model on the device to the host; return the model."""
    _ON_HOST[model] = HostLayers(cast(Any, model).get_decoder().layers, device.torch_device)
    return model


def tensors_on_host(model: nn.Module) -> list[Tensor]:
    """Return the tensors that hold a model's layers in host memory; none if they are on the device."""
    layers = _ON_HOST.get(model)
    return layers.tensors if layers else []


def device_copy(model: nn.Module, device: Device) -> nn.Module:
    """Return a copy of a model that is on the device as a whole."""
    found = copied(model)
    return device.move(found) if model in _ON_HOST else found


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy of a model, whose layers stay where the model's are between forward passes.

    Args:
        memo: of `copy.deepcopy`.
    """
    layers = _ON_HOST.get(model)
    if layers is None:
        return copy.deepcopy(model, memo)
    layers.detach()  # a copy would have the hooks too
    try:
        return copy.deepcopy(model, memo)
    finally:
        layers.attach()
