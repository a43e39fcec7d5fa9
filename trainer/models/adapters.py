"""Low-rank adapters (LoRA, arXiv:2106.09685) on the ternary layers of a student, by the package peft.

A layer with an adapter computes TernaryLinear(x) + alpha/rank · B·A·x, where x is not quantised. A begins at
random and B at 0, so that the adapter changes nothing before it is trained. Adapters are float32, whatever
the student's weights are. Used by `pipeline`, `preflight`, `student_folder` and `export`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import nn

from sweeps.text.installation import install_command
from trainer.config import RecoveryConfig
from trainer.errors import ConfigError, MachineError
from trainer.quant.ternary import TernaryLinear

_NAME = "default"  # peft's name of the only adapter
_BASE = ".base_layer"  # of the layer inside of peft's
_TARGETS = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """The adapters of a student.

    Args:
        rank: inner dimension r of B·A.
        alpha: B·A counts alpha / rank times.
        modules: names of the ternary layers, as they are without adapters.
    """

    rank: int
    alpha: float
    modules: tuple[str, ...]


def require_package(key: str) -> None:
    """Raise MachineError, about that key, if the package peft cannot be imported, which takes two seconds."""
    try:
        import peft  # noqa: F401 - a release that does not go with transformers is to fail here, not later
    except ImportError as error:
        raise MachineError(
            f"adapters need the package peft ({error}); {install_command('lora')}", key=key
        ) from error


def adapters_for(student: nn.Module, config: RecoveryConfig) -> Adapters:
    """Return the adapters that a configuration asks for.

    Raises:
        ConfigError: the student has no such layers.
    """
    names = [name for name, _ in _ternary(student)]
    if config.targets != "all":
        last = _TARGETS[config.targets]
        names = [name for name in names if name.removesuffix(".projection").rpartition(".")[2] in last]
    if not names:
        raise ConfigError(
            f"{type(student).__name__} has no ternary layers named {', '.join(_TARGETS[config.targets])}; "
            "write all",
            key="recovery.targets",
        )
    return Adapters(rank=config.rank, alpha=config.alpha, modules=tuple(names))


def parameter_count(student: nn.Module, adapters: Adapters) -> int:
    """Return the number of parameters that adapters have, or would have."""
    return sum(
        adapters.rank * (layer.in_features + layer.out_features)
        for name, layer in _ternary(student)
        if name in adapters.modules
    )


def add_adapters(student: nn.Module, adapters: Adapters, *, seed: int) -> None:
    """Put adapters on ternary layers, in place, and freeze all other parameters.

    Args:
        student: without adapters.
        seed: of the initial weights. They depend on nothing else, and the global random state stays.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=adapters.rank,
        lora_alpha=cast(int, adapters.alpha),  # peft computes with the number that it is
        target_modules=list(adapters.modules),
    )
    config._register_custom_module({TernaryLinear: _layer_class()})  # peft's way to layers it does not know
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unsupported layer type", UserWarning)
        # peft makes them on the CPU; torch.manual_seed would seed all devices.
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(config, student, adapter_name=_NAME)


@cache
def _layer_class() -> type[Any]:
    """Return peft's linear layer, which needs the two widths of the layer inside alone."""
    from peft.tuners.lora import Linear

    class AdaptedLinear(Linear):  # type: ignore[misc] # untyped
        """Adapters on the device of the layer inside, and float32 where peft takes its dtype."""

        def _move_adapter_to_device_of_base_layer(self, adapter_name: str, device: Any = None) -> None:
            to = device or self.get_base_layer().weight.device
            for linear in (self.lora_A[adapter_name], self.lora_B[adapter_name]):
                linear.weight = nn.Parameter(linear.weight.detach().to(to, torch.float32))

    return AdaptedLinear


def adapters_of(student: nn.Module) -> Adapters | None:
    """Return the adapters that a student has; None: it has none."""
    layers = dict(_adapted_layers(student))
    if not layers:
        return None
    first = cast(Any, next(iter(layers.values())))
    rank, alpha = int(first.r[_NAME]), float(first.lora_alpha[_NAME])
    return Adapters(rank=rank, alpha=alpha, modules=tuple(layers))


def remove_adapters(student: nn.Module) -> None:
    """Remove the adapters, in place; what remains is the ternary student as it was before them."""
    for name, layer in list(_adapted_layers(student)):
        student.set_submodule(name, cast(Any, layer).base_layer)
    del student.peft_config


def without_base(name: str) -> str:
    """Return the name that a ternary layer, or a parameter of one, has without adapters."""
    return name.replace(_BASE, "")


def as_loaded(name: str) -> str:
    """Return the name of an adapter's parameter in the files of peft, which leave out the adapter's name."""
    return name.replace(f".{_NAME}.", ".")


def _adapted_layers(student: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that have an adapter, by name."""
    for name, module in student.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def _ternary(student: nn.Module) -> Iterator[tuple[str, TernaryLinear]]:
    for name, module in student.named_modules():
        if isinstance(module, TernaryLinear):
            yield without_base(name), module
