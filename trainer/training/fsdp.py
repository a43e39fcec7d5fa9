"""FSDP2 (`torch.distributed.fsdp.fully_shard`) as a `ParallelStrategy`. Used by `parallel`.

Each process holds a shard (some rows) of every parameter, of its gradient and of the optimizer's state, and
all of a decoder layer only while it computes it. The teacher is not trained, and not sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainer.devices.device import Device
from trainer.errors import ConfigError
from trainer.training.strategy import Losses, ObjectiveModule, ParallelStrategy, mean_of


class FSDPStrategy(ParallelStrategy):
    """A model that is sharded while it is trained, and unsharded in between."""

    may_hold_weights = False  # there is no room for unsharded weights held for a step

    def __init__(self, model: nn.Module, device: Device) -> None:
        _require_one_dtype(model)
        self._ranks = device.ranks
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        mesh = init_device_mesh(device.kind, (device.ranks.world,))
        layers = [fully_shard(layer, mesh=mesh) for layer in cast(Any, model).get_decoder().layers]
        # The embeddings, the head and the last norm are in no layer: they stay unsharded for the full step.
        self._module = fully_shard(ObjectiveModule(model), mesh=mesh, reshard_after_forward=False)
        self._layers = cast(list[FSDPModule], layers)
        if device.recompute:
            # Gathering the next layer while this one recomputes its activations was a deadlock. FSDP
            # prefetches nothing by itself once it has a list; the one in this list is gathered already.
            for part in (self._module, *self._layers):
                part.set_modules_to_backward_prefetch([part])
        with torch.no_grad():  # the first module to run is the root, and an evaluation begins with a layer
            self(lambda ids: {}, torch.empty(0))

    def __call__(self, objective: Losses, ids: Tensor) -> Mapping[str, Tensor]:
        losses: dict[str, Tensor] = cast(nn.Module, self._module)(objective, ids)
        return losses

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        self._module.set_requires_gradient_sync(last)
        return nullcontext()

    def mean(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return mean_of(parts, self._ranks)

    def shard(self) -> None:
        for layer in self._layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()
        self._module.reshard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._unshard()

    @contextmanager
    def full_weights(self) -> Iterator[None]:
        self._unshard()
        yield
        self.shard()

    def _unshard(self) -> None:
        for part in (self._module, *self._layers):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()


def _require_one_dtype(model: nn.Module) -> None:
    """FSDP moves the parameters of a layer as one tensor."""
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})
    if len(dtypes) > 1:
        raise ConfigError(
            f"fsdp needs parameters of one dtype, and the model has {' and '.join(dtypes)}; "
            f"write model.dtype={dtypes[0]}",
            key="device.parallel",
        )
