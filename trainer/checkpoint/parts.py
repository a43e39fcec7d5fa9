"""The parts of a stage that torch owns: weights, buffers, random states, optimizers. Used by `loop`."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.checkpoint import sharded
from trainer.checkpoint.layout import Found
from trainer.checkpoint.manifest import TENSORS, WEIGHTS
from trainer.checkpoint.state import ReadInPlace, State, StateError
from trainer.devices.lazy_tensor import is_lazy, set_value, to_device
from trainer.distributed.tensors import is_dtensor, redistribute_like

MODEL, RANDOM, BUFFERS, BATCHES, OPTIMIZER = "model", "random", "buffers", "batches", "optimizer"
AVERAGE = "average"
EQUAL = (MODEL, OPTIMIZER, AVERAGE)
"""The parts whose plain tensors are large, and equal in all processes."""
_KERNELS = ("fused", "foreach", "capturable")  # of an optimizer


class _Tensors(ABC):
    """Tensors of a module, which a checkpoint is restored into."""

    _part: str

    def __init__(self, module: nn.Module) -> None:
        # Before tensors are taken: a state dict under FSDP reshards full parameters, and frees the memory of
        # those that somebody holds.
        kept = module.state_dict().keys()
        self._module, self._kept = module, {name for name, _ in module.named_buffers() if name in kept}

    def state(self) -> State:
        return State(tensors=self._tensors())

    def restore(self, state: State) -> None:
        copy_into(self._tensors(), state.tensors, part=self._part)

    def targets(self, saved: State) -> dict[str, Tensor]:
        return live_targets(self._tensors(), saved, part=self._part)

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """Return the live tensors, by name."""


class Weights(_Tensors):
    """A module's parameters, and the buffers of its state dict; tied ones once."""

    _part = MODEL

    def _tensors(self) -> dict[str, Tensor]:
        buffers = {name: buffer for name, buffer in self._module.named_buffers() if name in self._kept}
        return dict(self._module.named_parameters()) | buffers


class Buffers(_Tensors):
    """A module's other buffers: lambda, the saliency's norms and ranks, and those that a stage attaches."""

    _part = BUFFERS

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
        if saved[name] is target:  # read into it
            continue
        full = to_device(saved[name], target.device) if is_lazy(target) else saved[name]
        target.copy_(redistribute_like(target, full))


def live_targets(tensors: dict[str, Tensor], saved: State, *, part: str) -> dict[str, Tensor]:
    """Return the tensors of a part to read saved ones into; raise StateError if these do not fit."""
    require_fit(tensors, saved.tensors, part=part)
    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype) if is_lazy(tensor) else tensor
        for name, tensor in tensors.items()
    }


def require_fit(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor], *, part: str) -> None:
    """Raise StateError unless there is a saved tensor of the same shape and dtype for each target."""
    if targets.keys() != saved.keys():
        odd = sorted(targets.keys() ^ saved.keys())[0]
        raise StateError(part, f"{odd} is in {'the checkpoint' if odd in saved else 'the run'} alone")
    for name, target in targets.items():
        ours, theirs = (tuple(target.shape), target.dtype), (tuple(saved[name].shape), saved[name].dtype)
        if ours != theirs:
            raise StateError(part, f"{name} is {theirs[0]} of {theirs[1]}, not {ours[0]} of {ours[1]}")


class OptimizerState:
    """The states of one or more optimizers over parameters of `module`.

    Not `Optimizer.load_state_dict`, which casts a state to its parameter's dtype: float32 averages of
    bfloat16 weights would be rounded.

    Tensors are named `INDEX/PARAMETER/NAME`; INDEX is the optimizer's. The numbers of a parameter group are
    kept as numbers, even those that a device holds as tensors; the choice of kernels is left out, as the run
    may resume on another device. A CPU tensor of a parameter on another device (AdamW's step) returns to the
    CPU.
    """

    def __init__(self, optimizers: Sequence[Optimizer], module: nn.Module) -> None:
        self._optimizers = optimizers
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}

    def state(self) -> State:
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {"states": {}, "groups": [], "on_cpu": []}
        for index, optimizer in enumerate(self._optimizers):
            for parameter, theirs in optimizer.state.items():
                prefix = f"{index}/{self._name(parameter)}"
                for name, value in theirs.items():
                    if isinstance(value, Tensor):
                        tensors[f"{prefix}/{name}"] = value
                        if value.device.type == "cpu" != parameter.device.type:
                            values["on_cpu"].append(f"{prefix}/{name}")
                    else:
                        values["states"].setdefault(prefix, {})[name] = _plain(f"{prefix}/{name}", value)
            for number, group in enumerate(optimizer.param_groups):
                plain = {
                    n: _plain(f"{index}/group {number}/{n}", float(v) if isinstance(v, Tensor) else v)
                    for n, v in group.items()
                    if n != "params" and n not in _KERNELS
                }
                values["groups"].append(plain)
        return State(tensors=tensors, values=values)

    def restore(self, state: State) -> None:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        if len(groups) != len(state.values["groups"]):
            raise StateError(OPTIMIZER, f"it has {len(state.values['groups'])} groups, not {len(groups)}")
        parameters = self._parameters()
        theirs = {prefix: dict(values) for prefix, values in state.values["states"].items()}
        for path, tensor in state.tensors.items():
            prefix, _, name = path.rpartition("/")
            theirs.setdefault(prefix, {})[name] = tensor
        for prefix in theirs:
            if prefix not in parameters:
                raise StateError(OPTIMIZER, f"there is no parameter for {prefix}")
        for group, values in zip(groups, state.values["groups"], strict=True):
            for name, value in values.items():
                if isinstance(current := group.get(name), Tensor):
                    set_value(current, value)
                else:
                    group[name] = tuple(value) if isinstance(current, tuple) else value
        for optimizer in self._optimizers:
            optimizer.state.clear()
        on_cpu = set(state.values["on_cpu"])
        for prefix, entries in theirs.items():
            optimizer, parameter = parameters[prefix]
            optimizer.state[parameter] = {
                name: value
                if state.in_place and not is_lazy(parameter)
                else _to_parameter(value, parameter, optimizer, on_cpu=f"{prefix}/{name}" in on_cpu)
                for name, value in entries.items()
            }

    def targets(self, saved: State) -> dict[str, Tensor]:
        parameters, on_cpu, targets = self._parameters(), set(saved.values["on_cpu"]), {}
        for path, tensor in saved.tensors.items():
            prefix = path.rpartition("/")[0]
            if prefix not in parameters:
                raise StateError(OPTIMIZER, f"there is no parameter for {prefix}")
            optimizer, parameter = parameters[prefix]
            if _in_parts(tensor, parameter, optimizer):
                targets[path] = torch.empty_like(parameter.detach(), dtype=tensor.dtype)
            else:
                whole_on_cpu = path in on_cpu or is_lazy(parameter)
                device = torch.device("cpu") if whole_on_cpu else parameter.device
                targets[path] = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        return targets

    def _parameters(self) -> dict[str, tuple[Optimizer, Tensor]]:
        """Return each parameter with its optimizer, by the prefix of the names of its state."""
        return {
            f"{index}/{self._name(parameter)}": (optimizer, parameter)
            for index, optimizer in enumerate(self._optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def _name(self, parameter: Tensor) -> str:
        try:
            return self._names[parameter]
        except KeyError:
            raise StateError(OPTIMIZER, "it updates a tensor that is no parameter of the model") from None


def _to_parameter(value: Any, parameter: Tensor, optimizer: Optimizer, *, on_cpu: bool) -> Any:
    """Move a saved tensor to its parameter's device, sharded if the parameter is and has the same shape."""
    if not isinstance(value, Tensor):
        return value
    if _in_parts(value, parameter, optimizer):
        return redistribute_like(parameter, value).clone()  # a shard, and not a view of the full tensor
    return to_device(value, torch.device("cpu") if on_cpu else parameter.device)


def _in_parts(value: Tensor, parameter: Tensor, optimizer: Optimizer) -> bool:
    """Return whether each process has its part of a state, as it has of the parameter."""
    same = is_dtensor(parameter) and value.shape == parameter.shape
    return same and not getattr(optimizer, "WHOLE_STATE", False)


def _plain(where: str, value: Any) -> Any:
    """Return the value if JSON can hold it, a tuple as a list; raise StateError otherwise."""
    if isinstance(value, list | tuple):
        return [_plain(where, item) for item in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    raise StateError(OPTIMIZER, f"{where} is a {type(value).__name__}, which no checkpoint can hold")


def read(found: Found, part: str, into: object = None) -> State:
    """Return the state of a part; an empty one for a part that the checkpoint does not have.

    Args:
        into: the part that will restore it. One that is `ReadInPlace` has its tensors then.
    """
    values = found.manifest.values.get(part, {})
    if not found.manifest.sharded:
        file_name, prefix = (WEIGHTS, "") if part == MODEL else (TENSORS, f"{part}/")
        with safe_open(found.path / file_name, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - it is no mapping
            tensors = {name.removeprefix(prefix): file.get_tensor(name) for name in names}
        return State(tensors=tensors, values=values)
    saved = State(tensors=meta_tensors(found, part), values=values)
    in_place = isinstance(into, ReadInPlace)
    if isinstance(into, ReadInPlace):
        targets = into.targets(saved)
    else:
        targets = {name: torch.empty_like(tensor, device="cpu") for name, tensor in saved.tensors.items()}
    sharded.load(found.path, {f"{part}/{name}": tensor for name, tensor in targets.items()})
    return State(tensors=targets, values=values, in_place=in_place)


def meta_tensors(found: Found, part: str) -> Mapping[str, Tensor]:
    """Return a tensor of the shape and dtype of each of a part's, which takes no memory."""
    if not found.manifest.sharded:
        return read(found, part).tensors  # mapped files, of which no page is read
    prefix = f"{part}/"
    known = sharded.meta_tensors(found.path)
    return {name.removeprefix(prefix): each for name, each in known.items() if name.startswith(prefix)}
