"""The interface of the strategies that processes train one model with; they are in `parallel` and `fsdp`.

Each process computes the loss of its own rows of a batch; gradients are averaged over all processes. An
objective is no module and uses the model in its own ways (hidden states, the head's weights), so DDP and FSDP
wrap `ObjectiveModule`, whose forward pass is the objective that it is called with.

Outside of a stage every process has the full model in plain parameters, to be evaluated and saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed.ranks import Ranks

Losses = Callable[[Tensor], Mapping[str, Tensor]]


class ParallelStrategy:
    """Training by a single process; base of the others. A context manager around the training of a stage."""

    may_hold_weights = True
    """Whether quantised weights may be held, and gather the gradients, over a step's micro-batches."""

    def __call__(self, objective: Losses, ids: Tensor) -> Mapping[str, Tensor]:
        """Return the objective of this process's rows [B, T]; `loss` has a gradient."""
        return objective(ids)

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        """Wrap the forward and backward pass of a micro-batch; gradients are exchanged after the last."""
        return nullcontext()

    def mean(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the means over all processes of each one's own means."""
        return dict(parts)

    def shard(self) -> None:
        """Shard the parameters, until the end of the stage, if the strategy does so."""

    def full_weights(self) -> AbstractContextManager[None]:
        """Return a context within a stage in which each process has the full weights, as after the stage."""
        return nullcontext()

    def __enter__(self) -> ParallelStrategy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unshard the parameters, unless an error is passing."""


class ObjectiveModule(nn.Module):
    """A model whose forward pass is the objective it is called with."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Losses, ids: Tensor) -> dict[str, Tensor]:
        """Return the losses, of which only the minimised one has a gradient."""
        return {name: part if name == "loss" else part.detach() for name, part in objective(ids).items()}


def mean_of(parts: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the means of 0-d and 1-D tensors over all processes, in one exchange."""
    flat = ranks.mean(torch.cat([part.reshape(-1) for part in parts.values()]))
    pieces = torch.split(flat, [part.numel() for part in parts.values()])
    return {name: piece.view(part.shape) for (name, part), piece in zip(parts.items(), pieces, strict=True)}
