"""Queries, keys and values of one layer, caught where the projections put them out. Used by `distill`.

Shapes: B sequences, T tokens, D features of a projection (keys and values have fewer where heads share them).

Forward hooks, so that no model is changed: models of the Llama family name their projections alike, and a
projection that is wrapped (in a norm, a quantiser) keeps the name for the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trainer.errors import ConfigError

NAMES = ("q_proj", "k_proj", "v_proj")


def attention_layers(model: nn.Module) -> list[tuple[nn.Module, ...]]:
    """The three projections of each layer, in the layers' order.

    Raises:
        ConfigError: the model has none of that name, or a layer lacks one.
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
    """Catches what the projections of one layer put out. A context manager: outside it there are no hooks.

    Args:
        layer: as a list is indexed; negative from the end.

    Raises:
        ConfigError: the model is of another kind.
        IndexError: there is no such layer.
    """

    def __init__(self, model: nn.Module, layer: int) -> None:
        self._modules = attention_layers(model)[layer]
        self._caught: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def take(self) -> tuple[Tensor, ...]:
        """Queries, keys and values [B, T, D] of the last forward pass; they are kept no longer."""
        caught = tuple(self._caught[index] for index in range(len(self._modules)))
        self._caught.clear()
        return caught

    def __enter__(self) -> Projections:
        for index, module in enumerate(self._modules):
            self._handles.append(module.register_forward_hook(self._catch(index)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._caught.clear()

    def _catch(self, index: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._caught[index] = output

        return hook


def widths(projections: tuple[nn.Module, ...]) -> tuple[int, ...]:
    """D of queries, keys and values, each that of the linear layer that it is, or of the last inside it."""
    found = []
    for projection in projections:
        linear = [part for part in projection.modules() if hasattr(part, "out_features")]
        found.append(int(cast(Any, linear[-1]).out_features))
    return tuple(found)
