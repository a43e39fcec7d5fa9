"""The strategy that the processes of a run train a model with: alone, DDP or FSDP. Used by `loop`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.devices.device import Device
from trainer.models.causal_lm import ADAPTER
from trainer.training.strategy import Losses, ObjectiveModule, ParallelStrategy, mean_of

# torch 2.13 renames this argument, and warns of the old name.
_NAMES = ("forward_sync_buffers", "broadcast_buffers")
_SYNC_BUFFERS = next(name for name in _NAMES if name in signature(DistributedDataParallel).parameters)


class DDPStrategy(ParallelStrategy):
    """DDP: each process has the full model and the full optimizer."""

    may_hold_weights = False  # DDP exchanges the gradients that a backward pass leaves at the parameters

    def __init__(self, model: nn.Module, device: Device) -> None:
        self._ranks = device.ranks
        never_sync_buffers: Any = {_SYNC_BUFFERS: False}  # lambda and the like are equal in all processes
        self._module = DistributedDataParallel(
            ObjectiveModule(model),
            device_ids=[device.torch_device] if device.kind == "cuda" else None,
            gradient_as_bucket_view=True,  # no second copy of the gradients
            **never_sync_buffers,
        )

    def __call__(self, objective: Losses, ids: Tensor) -> Mapping[str, Tensor]:
        losses: dict[str, Tensor] = self._module(objective, ids)
        return losses

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._module.no_sync()

    def mean(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return mean_of(parts, self._ranks)


_ALONE = ParallelStrategy()
# Each model is wrapped once: a second wrapper over the same parameters would exchange gradients twice. With
# adapters it is another model, as all that was wrapped before is frozen.
_WRAPPED: dict[tuple[int, bool], tuple[nn.Module, ParallelStrategy]] = {}


def strategy_for(model: nn.Module, device: Device) -> ParallelStrategy:
    """Return the strategy that the device's processes train the model with.

    To be called before the optimizer is built, which updates the parameters that the strategy leaves.

    Raises:
        ConfigError: the model cannot be sharded.
    """
    if device.ranks.alone:
        return _ALONE
    key = id(model), any(ADAPTER in name for name, _ in model.named_parameters())
    if key not in _WRAPPED:
        _WRAPPED[key] = (model, _wrapped(model, device))
    wrapped = _WRAPPED[key][1]
    wrapped.shard()
    return wrapped


def _wrapped(model: nn.Module, device: Device) -> ParallelStrategy:
    if device.ranks.parallel == "ddp":
        return DDPStrategy(model, device)
    from trainer.training.fsdp import FSDPStrategy  # loads much that others do not need

    return FSDPStrategy(model, device)
