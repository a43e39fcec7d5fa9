"""Stateful parts of a stage: weights, buffers and random states here, optimizers in `optimizer_state`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.checkpoint.optimizer_state import OPTIMIZER, OptimizerState
from trainer.checkpoint.policy import Parts
from trainer.checkpoint.state import State, StateError, Stateful
from trainer.devices.lazy_tensor import is_lazy, to_device
from trainer.distributed.tensors import redistribute_like

MODEL, RANDOM, BUFFERS, BATCHES = "model", "random", "buffers", "batches"


def parts_of(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    batches: object,
    trace: Stateful,
    *,
    device: torch.device,
    more: Mapping[str, Stateful],
    lasting: Mapping[str, Stateful] | None = None,
) -> Parts:
    """Return everything to save of a stage that trains `model`. Called by `loop`.

    Args:
        model: whose weights and buffers are saved.
        optimizers: over its parameters.
        batches: the stage's stream of batches.
        trace: results of the stage, saved when it is over, too.
        device: whose random state is saved.
        more: further parts of the stage.
        lasting: further parts of the run, restored before those of the stage.

    Raises:
        TypeError: `batches` cannot save and restore their position.
        ValueError: `more` has a name that every stage has.
    """
    if not isinstance(batches, Stateful):
        raise TypeError(f"{type(batches).__name__} is not Stateful: the run could not go on from its middle")
    passing: dict[str, Stateful] = {
        BUFFERS: Buffers(model),
        OPTIMIZER: OptimizerState(optimizers, model),
        BATCHES: batches,
    }
    if taken := passing.keys() & more.keys():
        raise ValueError(f"{taken} are parts that every stage has")
    return Parts(
        lasting={MODEL: Weights(model), RANDOM: Random(device), **(lasting or {})},
        passing={**passing, **more},
        trace=trace,
    )


class Weights:
    """A module's parameters, and the buffers of its state dict; tied ones once."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._kept = module, _kept_buffers(module)

    def state(self) -> State:
        return State(tensors=dict(self._tensors()))

    def restore(self, state: State) -> None:
        copy_into(dict(self._tensors()), state.tensors, part=MODEL)

    def check(self, state: State) -> None:
        """Raise StateError if `restore` would."""
        require_fit(dict(self._tensors()), state.tensors, part=MODEL)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_parameters()
        yield from ((name, buffer) for name, buffer in self._module.named_buffers() if name in self._kept)


def _kept_buffers(module: nn.Module) -> frozenset[str]:
    """Return the names of the buffers in its state dict.

    To be called before tensors are taken: a state dict under FSDP reshards full parameters, and frees the
    memory of those that somebody holds.
    """
    kept = module.state_dict().keys()
    return frozenset(name for name, _ in module.named_buffers() if name in kept)


class Buffers:
    """A module's other buffers: lambda, the saliency's norms and ranks, and those that a stage attaches."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._kept = module, _kept_buffers(module)

    def state(self) -> State:
        return State(tensors=self._tensors())

    def restore(self, state: State) -> None:
        copy_into(self._tensors(), state.tensors, part=BUFFERS)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self._module.named_buffers() if name not in self._kept}


class Random:
    """The global random states of torch (of the CPU, and of the CUDA device in use), numpy and Python."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state(self) -> State:
        version, python, python_gauss = random.getstate()
        name, numpy, position, has_gauss, gauss = np.random.get_state(legacy=True)
        tensors = {
            "torch": torch.get_rng_state(),
            "python": torch.tensor(python, dtype=torch.int64),
            "numpy": torch.from_numpy(np.asarray(numpy).astype(np.int64)),
        }
        if self._device.type == "cuda":
            tensors["cuda"] = torch.cuda.get_rng_state(self._device)
        values = {"python": [version, python_gauss], "numpy": [name, int(position), int(has_gauss), gauss]}
        return State(tensors=tensors, values=values)

    def restore(self, state: State) -> None:
        tensors, values = state.tensors, state.values
        torch.set_rng_state(tensors["torch"])
        if self._device.type == "cuda" and "cuda" in tensors:
            torch.cuda.set_rng_state(tensors["cuda"], self._device)
        version, python_gauss = values["python"]
        random.setstate((version, tuple(tensors["python"].tolist()), python_gauss))
        name, position, has_gauss, gauss = values["numpy"]
        key = tensors["numpy"].numpy().astype(np.uint32)
        np.random.set_state((name, key, position, has_gauss, gauss))


@torch.no_grad()
def copy_into(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor], *, part: str) -> None:
    """Copy every saved tensor into its target; raise StateError, before any copy, if one does not fit."""
    require_fit(targets, saved, part=part)
    for name, target in targets.items():
        full = to_device(saved[name], target.device) if is_lazy(target) else saved[name]
        target.copy_(redistribute_like(target, full))


def require_fit(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor], *, part: str) -> None:
    """Raise StateError unless there is a saved tensor of the same shape and dtype for each target."""
    if targets.keys() != saved.keys():
        odd = sorted(targets.keys() ^ saved.keys())[0]
        raise StateError(part, f"{odd} is in {'the checkpoint' if odd in saved else 'the run'} alone")
    for name, target in targets.items():
        ours, theirs = (tuple(target.shape), target.dtype), (tuple(saved[name].shape), saved[name].dtype)
        if ours != theirs:
            raise StateError(part, f"{name} is {theirs[0]} of {theirs[1]}, not {ours[0]} of {ours[1]}")
