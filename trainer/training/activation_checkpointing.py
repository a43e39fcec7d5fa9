"""Activation checkpointing: layers drop their inner activations and recompute them for the backward pass.

It saves memory for one more forward pass of the layers (Chen et al., arXiv:1604.06174). Called by `loop`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import nn

from trainer.errors import ConfigError


def recompute_layers(model: nn.Module, by: Callable[..., Any] | None = None) -> None:
    """Make each decoder layer save its input alone while the model is trained.

    Args:
        by: called with a layer's function and its inputs; None: `torch.utils.checkpoint`.

    Raises:
        ConfigError: the model does not support it.
    """
    this = cast(Any, model)
    if not getattr(this, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"{type(model).__name__} cannot recompute its activations; write device.recompute=false and, "
            "for less memory, a smaller micro_batch_size",
            key="device.recompute",
        )
    # Without reentrance: hooks, keyword arguments and torch.compile work as they do without recomputation.
    settings = {"use_reentrant": False}
    if hasattr(this, "activation_checkpointing_enable"):
        this.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
    else:  # its earlier name
        this.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    if by is not None:
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                cast(Any, module)._gradient_checkpointing_func = by
