"""How the processes of a run train one model together. Called by `loop` and `step`; `sharing` is the door.

Each process computes the loss of its own rows of a batch; gradients come back as means over all processes. An
objective is no module and reads the model in ways of its own (hidden states, the head's weights), so what DDP
and FSDP wrap is `ObjectiveModule`, whose forward pass is whatever objective it is given.

Outside of a stage every process has the whole model in plain parameters: it can be evaluated, saved and
counted as if nothing had been shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks

# torch 2.13 calls it by another name, and warns of the old one.
_NAMES = ("forward_sync_buffers", "broadcast_buffers")
_SYNC_BUFFERS = next(name for name in _NAMES if name in signature(DistributedDataParallel).parameters)

Losses = Callable[[Tensor], Mapping[str, Tensor]]


class ParallelStrategy:
    """A model's training by one process alone. A context manager around the training of a stage."""

    may_hold_weights = True
    """Whether gradients may gather elsewhere than in the parameters, over the micro-batches of a step."""

    def __call__(self, objective: Losses, ids: Tensor) -> Mapping[str, Tensor]:
        """The objective of this process's rows; `loss` may be propagated backwards."""
        return objective(ids)

    def adding(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around the forward and backward pass of a micro-batch: gradients are exchanged after the last."""
        return nullcontext()

    def mean(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Means over all processes of what each has computed of its rows."""
        return dict(parts)

    def share_out(self) -> None:
        """Each process keeps its part alone, from here to the end of the stage."""

    def __enter__(self) -> ParallelStrategy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the whole model back to every process, unless an error came."""


class ObjectiveModule(nn.Module):
    """A model whose forward pass is an objective's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Losses, ids: Tensor) -> dict[str, Tensor]:
        """The losses; only the one that is minimised has a gradient."""
        return {name: part if name == "loss" else part.detach() for name, part in objective(ids).items()}


class DDPStrategy(ParallelStrategy):
    """DDP: each process has the whole model and the whole optimizer."""

    may_hold_weights = False  # DDP takes gradients where a backward pass leaves them: at the parameters

    def __init__(self, model: nn.Module, device: Device) -> None:
        self._ranks = device.ranks
        never_sync_buffers: Any = {_SYNC_BUFFERS: False}  # lambda and the like are set alike everywhere
        self._module = DistributedDataParallel(
            ObjectiveModule(model),
            device_ids=[device.torch_device] if device.kind == "cuda" else None,
            gradient_as_bucket_view=True,  # no second copy of the gradients
            **never_sync_buffers,
        )

    def __call__(self, objective: Losses, ids: Tensor) -> Mapping[str, Tensor]:
        losses: dict[str, Tensor] = self._module(objective, ids)
        return losses

    def adding(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._module.no_sync()

    def mean(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return mean_of(parts, self._ranks)


def mean_of(parts: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Means of 0-d and 1-D tensors over all processes, in one exchange."""
    flat = ranks.mean(torch.cat([part.reshape(-1) for part in parts.values()]))
    pieces = torch.split(flat, [part.numel() for part in parts.values()])
    return {name: piece.view(part.shape) for (name, part), piece in zip(parts.items(), pieces, strict=True)}


_ALONE = ParallelStrategy()
# Each model is wrapped once: a second wrapper over the same parameters would exchange gradients twice.
_WRAPPED: dict[int, tuple[nn.Module, ParallelStrategy]] = {}


def strategy_for(model: nn.Module, device: Device) -> ParallelStrategy:
    """How the model is trained by the processes of this run. To be called before an optimizer is made: the
    parameters are now those that it has to update.

    Raises:
        ConfigError: the model cannot be shared so.
    """
    if device.ranks.alone:
        return _ALONE
    if id(model) not in _WRAPPED:
        _WRAPPED[id(model)] = (model, _wrapped(model, device))
    wrapped = _WRAPPED[id(model)][1]
    wrapped.share_out()
    return wrapped


def _wrapped(model: nn.Module, device: Device) -> ParallelStrategy:
    if device.ranks.parallel == "ddp":
        return DDPStrategy(model, device)
    from trainer.training.fsdp import FSDPStrategy  # loads much that others do not need

    return FSDPStrategy(model, device)
