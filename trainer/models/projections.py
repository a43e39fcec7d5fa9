"""Queries, keys and values of one layer, captured at the projections' outputs. Used by `distill`.

Shapes: B sequences, T tokens, D features of a projection (fewer for keys and values with grouped queries).

Forward hooks leave the model as it is. Models of the Llama family name their projections alike, and a module
that wraps a projection (with a norm, a quantiser) has the projection's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trainer.errors import ConfigError

NAMES = ("q_proj", "k_proj", "v_proj")


def attention_layers(model: nn.Module) -> list[tuple[nn.Module, ...]]:
    """Return the query, key and value projections of each layer, in the layers' order.

    Raises:
        ConfigError: the model has no modules of those names, or a layer lacks one.
    """
    found: dict[str, dict[str, nn.Module]] = {}
    for path, module in model.named_modules():
        parent, _, name = path.rpartition(".")
        if name in NAMES:
            found.setdefault(parent, {})[name] = module
    if not found or any(len(projections) < len(NAMES) for projections in found.values()):
        raise ConfigError(
            f"{type(model).__name__} has no {', '.join(NAMES)} in its layers to compare; write 0",
            key="stage3.attention_weight",
        )
    return [tuple(projections[name] for name in NAMES) for projections in found.values()]


class Projections:
    """A context manager that captures the outputs of one layer's projections by forward hooks.

    Raises:
        ConfigError: the model has no such projections.
        IndexError: there is no such layer.
    """

    def __init__(self, model: nn.Module, layer: int) -> None:
        self._modules = attention_layers(model)[layer]
        self._outputs: dict[int, Tensor] = {}
        self._captures = False
        self._handles: list[RemovableHandle] = []

    def begin(self) -> None:
        """Capture the next forward pass; without this, as in evaluations, nothing is kept."""
        self._captures = True

    def take(self) -> tuple[Tensor, ...]:
        """Return and release queries, keys and values [B, T, D] of the forward pass since `begin`."""
        outputs = tuple(self._outputs[index] for index in range(len(self._modules)))
        self._outputs.clear()
        self._captures = False  # as it was before: another state would compile the step again
        return outputs

    def __enter__(self) -> Projections:
        for index, module in enumerate(self._modules):
            self._handles.append(module.register_forward_hook(self._capture(index)))
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._outputs.clear()
        self._captures = False

    def _capture(self, index: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if self._captures:
                group = getattr(module, "group", None)  # whose processes have parts of it
                self._outputs[index] = output if group is None else group.gather(output, -1)

        return hook


def widths(projections: tuple[nn.Module, ...]) -> tuple[int, ...]:
    """Return D of each projection: `out_features` of the last linear layer inside it."""
    found = []
    for projection in projections:
        linear = [part for part in projection.modules() if hasattr(part, "out_features")]
        found.append(int(cast(Any, linear[-1]).out_features))
    return tuple(found)
