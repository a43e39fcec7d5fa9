"""Depth pruning: a student with fewer layers than its teacher, and which of the teacher's they match.

Called by `models.subln` before other changes, and by stages that compare layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from trainer.errors import ConfigError


def matched_layers(student: int, teacher: int) -> tuple[int, ...]:
    """Return, for each layer of the student, the zero-based index of the teacher's layer.

    First maps to first, last to last, and the others are evenly spaced between, rounded to the nearest layer,
    halves up: the "maximally spaced" layers of Distil-Whisper, arXiv:2311.00430. A student of one layer maps
    to the teacher's last. Equal depths give the identity; no layer is used twice.

    Raises:
        ValueError: `student` is not between 1 and `teacher`.
    """
    if not 1 <= student <= teacher:
        raise ValueError(f"{student} layers cannot be matched with {teacher}")
    if student == 1:
        return (teacher - 1,)
    gaps = student - 1
    # index·(teacher - 1)/gaps in integers, halves up.
    return tuple((2 * index * (teacher - 1) + gaps) // (2 * gaps) for index in range(student))


def keep_layers(model: nn.Module, kept: Sequence[int]) -> None:
    """Drop all decoder layers but those with the zero-based indices `kept`, in place.

    Raises:
        ConfigError: the model does not store its layers as the Llama family does.
    """
    decoder, config = cast(Any, model).get_decoder(), cast(Any, model).config
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != config.num_hidden_layers:
        raise ConfigError(
            f"{type(model).__name__} has no plain list of decoder layers to choose from; write null",
            key="stage1.keep_layers",
        )
    decoder.layers = nn.ModuleList(layers[index] for index in kept)
    for index, layer in enumerate(decoder.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):  # its index in a key-value cache
                module.layer_idx = index
    shorten(config, kept)


def shorten(config: Any, kept: Sequence[int]) -> None:
    """Adapt transformers' configuration: the number of layers, and lists with one item per layer."""
    for name, value in config.to_dict().items():
        if "layer" in name and isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(config, name, [value[index] for index in kept])
    config.num_hidden_layers = len(kept)
