"""State of torch optimizers as plain tensors and values, by the names of the parameters. Used by `parts`.

Not `Optimizer.load_state_dict`, which casts a state to its parameter's dtype: float32 averages of bfloat16
weights would be rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.checkpoint.state import State, StateError
from trainer.devices.lazy_tensor import set_value, to_device
from trainer.distributed.tensors import is_dtensor, redistribute_like

OPTIMIZER = "optimizer"
_KERNELS = ("fused", "foreach", "capturable")


class OptimizerState:
    """The states of one or more optimizers over parameters of `module`.

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
        parameters = {
            f"{index}/{self._name(parameter)}": (optimizer, parameter)
            for index, optimizer in enumerate(self._optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        theirs = self._by_parameter(state)
        for prefix in theirs:
            if prefix not in parameters:
                raise StateError(OPTIMIZER, f"there is no parameter for {prefix}")
        self._restore_groups(state)
        for optimizer in self._optimizers:
            optimizer.state.clear()
        on_cpu = set(state.values["on_cpu"])
        for prefix, entries in theirs.items():
            optimizer, parameter = parameters[prefix]
            optimizer.state[parameter] = {
                name: _placed(value, parameter, optimizer, on_cpu=f"{prefix}/{name}" in on_cpu)
                for name, value in entries.items()
            }

    def _restore_groups(self, state: State) -> None:
        saved = iter(state.values["groups"])
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for name, value in next(saved).items():
                    if name in _KERNELS:  # of an older checkpoint
                        continue
                    if isinstance(current := group.get(name), Tensor):
                        set_value(current, value)
                    else:
                        group[name] = tuple(value) if isinstance(current, tuple) else value

    @staticmethod
    def _by_parameter(state: State) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {
            prefix: dict(values) for prefix, values in state.values["states"].items()
        }
        for path, tensor in state.tensors.items():
            prefix, _, name = path.rpartition("/")
            found.setdefault(prefix, {})[name] = tensor
        return found

    def _name(self, parameter: Tensor) -> str:
        try:
            return self._names[parameter]
        except KeyError:
            raise StateError(OPTIMIZER, "it updates a tensor that is no parameter of the model") from None


def _placed(value: Any, parameter: Tensor, optimizer: Optimizer, *, on_cpu: bool) -> Any:
    """Move a saved tensor to its parameter's device, sharded if the parameter is and has the same shape."""
    if not isinstance(value, Tensor):
        return value
    if (
        is_dtensor(parameter)
        and value.shape == parameter.shape
        and not getattr(optimizer, "WHOLE_STATE", False)
    ):
        return redistribute_like(parameter, value).clone()  # a shard, and not a view of the full tensor
    return to_device(value, torch.device("cpu") if on_cpu else parameter.device)


def _plain(where: str, value: Any) -> Any:
    """Return the value if JSON can hold it, a tuple as a list; raise StateError otherwise."""
    if isinstance(value, list | tuple):
        return [_plain(where, item) for item in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    raise StateError(OPTIMIZER, f"{where} is a {type(value).__name__}, which no checkpoint can hold")
