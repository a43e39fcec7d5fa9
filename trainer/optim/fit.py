"""Whether every optimizer of a run can do its work here. Asked before any training, by `__main__` and others.

`optim.build` would refuse the same, but only when its stage begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import nn

from trainer.config import Config, OptimizerConfig
from trainer.optim.adamw_8bit import require_bitsandbytes
from trainer.optim.qk_clip import clippable_attentions


def require_packages(config: Config) -> None:
    """Raises ConfigError if an optimizer needs a package that is not installed."""
    for key, optimizer in optimizers(config):
        if optimizer.type == "adamw_8bit":
            require_bitsandbytes(key)


def require_model(config: Config, model: nn.Module) -> None:
    """Raises ConfigError if an optimizer cannot train a model of this kind."""
    for key, optimizer in optimizers(config):
        if optimizer.type == "muonclip":
            clippable_attentions(model, key=key)


def optimizers(part: Any, key: str = "") -> Iterator[tuple[str, OptimizerConfig]]:
    """Every optimizer below a part of the configuration and its key, but for those of stages left out."""
    if isinstance(part, OptimizerConfig):
        yield key, part
    elif dataclasses.is_dataclass(part) and getattr(part, "max_steps", None) != 0:
        for field in dataclasses.fields(part):
            yield from optimizers(getattr(part, field.name), f"{key}.{field.name}" if key else field.name)
