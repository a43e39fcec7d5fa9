"""Models of the run's architecture at any depth. Used by `trace`, under FakeTensorMode."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from trainer.config import Config, HfModelConfig
from trainer.devices.device import Device
from trainer.devices.sdpa import with_supported_attention
from trainer.models.causal_lm import build_tiny
from trainer.models.depth import shorten
from trainer.preflight.dimensions import Dimensions, teacher_dimensions


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """The teacher's architecture.

    Args:
        build: makes a model of so many layers.
    """

    dimensions: Dimensions
    build: Callable[[int], nn.Module]


def blueprint(config: Config, device: Device) -> Blueprint:
    """Return the architecture of the run's model.

    Raises:
        OSError: a pretrained model's configuration cannot be read.
        ValueError: it is not one that transformers knows.
        ConfigError: it lacks a size.
    """
    model = config.model
    if model.kind == "hf":
        return _pretrained_blueprint(config, model, device)

    def build(layers: int) -> nn.Module:
        return build_tiny(
            dataclasses.replace(model, layers=layers),
            vocab_size=config.data.vocab_size,
            sequence_length=config.data.sequence_length,
            attention=device.attention_for(config.data.sequence_length),
        )

    return Blueprint(dimensions=teacher_dimensions(config), build=build)


def _pretrained_blueprint(config: Config, model: HfModelConfig, device: Device) -> Blueprint:
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    from trainer.data import local_folder

    found = AutoConfig.from_pretrained(local_folder(model.name))
    dimensions = teacher_dimensions(config, found)
    dtype = torch.bfloat16 if dimensions.weight_bytes == 2 else torch.float32
    attention = device.attention_for(config.data.sequence_length)

    def build(layers: int) -> nn.Module:
        fewer = copy.deepcopy(found)
        shorten(fewer, range(layers))
        made: Any = AutoModelForCausalLM.from_config(fewer, dtype=dtype, attn_implementation=attention)
        return with_supported_attention(cast(nn.Module, made))

    return Blueprint(dimensions=dimensions, build=build)
