"""Checks before any training that every optimizer of a run works on this machine and with its model.

`optim.build` would raise the same errors, but only when its stage begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import nn

from sweeps.text.counted import counted
from trainer.config import Config, OptimizerConfig
from trainer.devices.device import Device
from trainer.errors import ConfigError
from trainer.models.adapters import require_package as require_peft
from trainer.optim.adamw_8bit import require_bitsandbytes
from trainer.optim.qk_clip import clippable_attentions
from trainer.optim.stochastic_rounding import require_bfloat16


def require_packages(config: Config) -> None:
    """Raise MachineError if an optimizer, or the adapters, need a package that is not installed."""
    if config.recovery.max_steps:
        require_peft("recovery.max_steps")
    for key, optimizer in optimizers(config):
        if optimizer.type == "adamw_8bit":
            require_bitsandbytes(key)


def require_device(config: Config, device: Device) -> None:
    """Raise ConfigError if the device does not support what the configuration enables in a stage."""
    for key, optimizer in optimizers(config.model):
        if optimizer.stochastic_rounding:
            raise ConfigError(
                "a tiny teacher's weights are float32, and only bfloat16 is rounded; write false",
                key=f"model.{key}.stochastic_rounding",
            )
    if device.kind != "xla":
        return
    for key, optimizer in optimizers(config):
        if optimizer.type == "adamw_8bit":
            raise ConfigError("adamw_8bit has no kernels for XLA; write adamw or apollo", key=f"{key}.type")
        if optimizer.stochastic_rounding:
            raise ConfigError(
                "the random numbers of each step would be compiled into XLA's graph; write false, or train "
                "float32 weights",
                key=f"{key}.stochastic_rounding",
            )
    if device.recompute and config.stage3.max_steps and config.stage3.attention_weight:
        raise ConfigError(
            "recomputation on XLA hides from Stage 3 what its layers project; write false, or "
            "stage3.attention_weight=0",
            key="device.recompute",
        )
    if device.recompute and config.recovery.max_steps:
        raise ConfigError(
            "recomputation on XLA gives adapters on frozen weights no gradients; write false, or "
            "recovery.max_steps=0",
            key="device.recompute",
        )
    for name in ("stage1_9", "stage2", "stage3", "recovery"):
        stage = getattr(config, name)
        size = stage.micro_batch_size or stage.batch_size
        if stage.max_steps and size % device.chips:
            which = "micro_batch_size" if stage.micro_batch_size else "batch_size"
            raise ConfigError(
                f"{counted(size, 'sequence')} cannot be shared out evenly among {device.chips} chips; "
                f"write a multiple of {device.chips}, or fewer chips in device.num_chips",
                key=f"{name}.{which}",
            )


def require_model(config: Config, model: nn.Module) -> None:
    """Raise ConfigError if an optimizer cannot train a model of this kind."""
    for key, optimizer in optimizers(config):
        if optimizer.type == "muonclip":
            clippable_attentions(model, key=key)


def require_student(config: Config, student: nn.Module) -> None:
    """Raise ConfigError if the optimizer of a stage cannot update weights of the student's dtype."""
    for key, optimizer in optimizers(config):
        if key != "model.teacher.optimizer":
            require_bfloat16(student, optimizer, key=key)


def optimizers(part: Any, key: str = "") -> Iterator[tuple[str, OptimizerConfig]]:
    """Yield the key and the optimizer of each stage below a part of the configuration that has steps."""
    if isinstance(part, OptimizerConfig):
        yield key, part
    elif dataclasses.is_dataclass(part) and getattr(part, "max_steps", None) != 0:
        for field in dataclasses.fields(part):
            yield from optimizers(getattr(part, field.name), f"{key}.{field.name}" if key else field.name)
