"""The strategies that processes train one model with: alone, DDP or FSDP. Used by `loop`.

Each process computes the loss of its own rows of a batch; gradients are averaged over all processes. An
objective is no module and uses the model in its own ways (hidden states, the head's weights), so DDP and FSDP
wrap `ObjectiveModule`, whose forward pass is the objective that it is called with.

With DDP every process has the full model. With FSDP it stays in shards between stages, too, and whatever runs
it there, such as an evaluation, does so within `running`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from inspect import signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.devices.device import Device
from trainer.distributed.ranks import ALONE
from trainer.distributed.tensor_group import TensorGroup
from trainer.distributed.tensors import is_dtensor
from trainer.errors import ConfigError
from trainer.models.causal_lm import ADAPTER
from trainer.models.deferred_weights import fill
from trainer.models.tensor_parallel import group_of, in_parts

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Losses = Callable[[Tensor], Mapping[str, Tensor]]

# torch 2.13 renames this argument, and warns of the old name.
_NAMES = ("forward_sync_buffers", "broadcast_buffers")
_SYNC_BUFFERS = next(name for name in _NAMES if name in signature(DistributedDataParallel).parameters)


class ParallelStrategy:
    """Training by a single process; base of the others. A context manager around the training of a stage."""

    _ranks = ALONE
    may_hold_weights = True
    """Whether quantised weights may be held over a step's micro-batches."""
    may_retry = True
    """Whether a step that has failed may be computed again, without the other processes."""

    def __call__(self, objective: Losses, ids: Tensor) -> Mapping[str, Tensor]:
        """Return the objective of this process's rows [B, T]; `loss` has a gradient."""
        return objective(ids)

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        """Wrap the forward and backward pass of a micro-batch, after which gradients are exchanged.

        DDP exchanges them after the last alone. FSDP does not wait: gradients that do would be whole.
        """
        return nullcontext()

    def mean(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the means over all processes of each one's own, which are 0-d and 1-D, in one exchange."""
        if self._ranks.alone:
            return dict(parts)
        flat = self._ranks.mean(torch.cat([part.reshape(-1) for part in parts.values()]))
        pieces = torch.split(flat, [part.numel() for part in parts.values()])
        shaped = zip(parts.items(), pieces, strict=True)
        return {name: piece.view(part.shape) for (name, part), piece in shaped}

    def begin(self) -> None:
        """Prepare the model for the training of a stage, before its optimizer is built."""

    def running(self) -> AbstractContextManager[None]:
        """Return a context for forward passes outside of training; see the function `running`."""
        return nullcontext()

    def __enter__(self) -> ParallelStrategy:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the training of the stage, unless an error is passing."""


class ObjectiveModule(nn.Module):
    """A model whose forward pass is the objective it is called with."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Losses, ids: Tensor) -> dict[str, Tensor]:
        """Return the losses, of which only the minimised one has a gradient."""
        return {name: part if name == "loss" else part.detach() for name, part in objective(ids).items()}


class DDPStrategy(ParallelStrategy):
    """DDP: each process has the full model and the full optimizer."""

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
        self.may_retry = True
        losses: dict[str, Tensor] = self._module(objective, ids)
        # From here on the reducer counts this pass's gradients, and takes no other pass before it has all.
        self.may_retry = not self._module.require_backward_grad_sync
        return losses

    def accumulation(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._module.no_sync()


class FSDPStrategy(ParallelStrategy):
    """FSDP2 (`torch.distributed.fsdp.fully_shard`): the model is sharded from now on.

    Each process holds a shard (some rows) of every parameter, of its gradient and of the optimizer's state,
    and all of a decoder layer only while it computes it. `shard_teacher` shards the teacher, if it is to be.

    With a mesh of data and tensor dimensions the weights are sharded over all processes as without it, and a
    layer's heads and features are computed in parts by those of a tensor group (`models.tensor_parallel`).
    """

    may_hold_weights = False  # there is no room for unsharded weights held for a step
    may_retry = False  # another process may wait for the next layer, and would get the first one's weights

    def __init__(self, model: nn.Module, device: Device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard  # loads much that others do not need

        dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})
        if len(dtypes) > 1:  # FSDP moves the parameters of a layer as one tensor
            raise ConfigError(
                f"fsdp needs parameters of one dtype, and the model has {' and '.join(dtypes)}; "
                f"write model.dtype={dtypes[0]}",
                key="device.parallel",
            )
        self._ranks = device.ranks
        mesh = init_device_mesh(device.kind, (device.ranks.world,))
        self._model, self._group, self._in_parts = model, None, ExitStack()
        if device.ranks.tensor > 1:
            shape = device.ranks.data_world, device.ranks.tensor
            names = ("data", "tensor")
            self._group = TensorGroup(init_device_mesh(device.kind, shape, mesh_dim_names=names)["tensor"])
        layers = cast(Any, model).get_decoder().layers
        for layer in layers:  # one is whole at a time
            _fill_alike(layer, device)
            fully_shard(layer, mesh=mesh)
        _fill_alike(model, device)
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
        # The embeddings, the head and the last norm are in no layer: they stay unsharded for the full step.
        self._module = fully_shard(ObjectiveModule(model), mesh=mesh, reshard_after_forward=False)
        self._layers = cast("list[FSDPModule]", [*layers])
        if device.recompute:
            # Gathering the next layer while this one recomputes its activations was a deadlock. FSDP
            # prefetches nothing by itself once it has a list; the one in this list is gathered already.
            for part in (self._module, *self._layers):
                part.set_modules_to_backward_prefetch([part])
        with torch.no_grad():  # the first module to run is the root, and an evaluation begins with a layer
            self(lambda ids: {}, torch.empty(0))
        self._reshard()

    def __call__(self, objective: Losses, ids: Tensor) -> Mapping[str, Tensor]:
        losses: dict[str, Tensor] = cast(nn.Module, self._module)(objective, ids)
        return losses

    def begin(self) -> None:
        self._reshard()
        if self._group:
            self._in_parts.enter_context(in_parts(self._model, self._group))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._in_parts.close()
            self._reshard()

    @contextmanager
    def running(self) -> Iterator[None]:
        splits = group_of(self._model) is not None
        self._in_parts.close()
        self._module.unshard()
        yield
        self._reshard()
        if splits:
            self.begin()

    def _reshard(self) -> None:
        for part in (self._module, *self._layers):
            part.reshard()


def _fill_alike(module: nn.Module, device: Device) -> None:
    """Let a part of a model have the first process's weights, on the device."""
    fill(module, device.torch_device)
    for parameter in module.parameters():
        if not is_dtensor(parameter):
            dist.broadcast(parameter.detach(), src=0)


def shard_models(student: nn.Module, teacher: nn.Module, device: Device) -> None:
    """Shard a run's models, if processes share them: the student, with FSDP, and then the teacher.

    The student's weights come from the whole teacher. On the device both are whole in one layer at a time.

    Raises:
        ConfigError: the student cannot be sharded.
    """
    if device.ranks.parallel == "fsdp":
        strategy_for(student, device)
    shard_teacher(teacher, device)


def shard_teacher(teacher: nn.Module, device: Device) -> None:
    """Leave each process a shard of a frozen model's decoder layers, if `device.teacher` asks for it.

    A layer is gathered from all processes while the one before it computes, so that all must run the model
    alike from now on. Embeddings, head and the last norm, which losses read too, stay whole.
    """
    if device.teacher != "sharded":
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # loads much that others do not need

    layers = cast(Any, teacher).get_decoder().layers
    mesh = init_device_mesh(device.kind, (device.ranks.world,))
    whole = set(teacher.parameters()) - set(layers.parameters())
    sharded = [fully_shard(layer, mesh=mesh) for layer in layers]  # which moves it to the device
    for tensor in (*whole, *teacher.buffers()):
        tensor.data = tensor.data.to(device.torch_device)
    # Not the model or its decoder: transformers knows by their classes, which this changes, what they return.
    root: Any = fully_shard(ObjectiveModule(teacher), mesh=mesh, ignored_params=whole)
    for layer, following in pairwise(sharded):
        layer.set_modules_to_forward_prefetch([following])
    with torch.no_grad():  # the first module to run is the root, which losses do not call
        root(lambda ids: {}, torch.empty(0))


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
        kind = DDPStrategy if device.ranks.parallel == "ddp" else FSDPStrategy
        _WRAPPED[key] = (model, kind(model, device))
    return _WRAPPED[key][1]


@contextmanager
def running(model: nn.Module) -> Iterator[None]:
    """Within the context, run forward passes of a model outside of its training; all processes enter it.

    Of a model that FSDP shards each process then has embeddings, head and the last norm, and gathers each
    decoder layer while it computes it. So the processes must run the model equally often; with a tensor
    dimension too each computes whole layers, of rows of its own.
    """
    with ExitStack() as stack:
        for wrapped, strategy in _WRAPPED.values():
            if wrapped is model:
                stack.enter_context(strategy.running())
        yield
