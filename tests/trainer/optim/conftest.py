"""Fixtures of the optimizers' tests: configurations, and models of a few thousand weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainer.api import check
from trainer.config import OptimizerConfig

Configure = Callable[..., OptimizerConfig]


@pytest.fixture
def configure() -> Configure:
    """An optimizer's default configuration with fields replaced; `apollo={"rank": 2}` is nested."""

    def configured(kind: str, **changes: Any) -> OptimizerConfig:
        config = check([f"optimizer@stage2.optimizer={kind}"]).stage2.optimizer
        deep = {
            name: dataclasses.replace(getattr(config, name), **change)
            for name, change in changes.items()
            if isinstance(change, dict)
        }
        return dataclasses.replace(config, **{**changes, **deep})

    return configured


@pytest.fixture
def llama() -> Callable[..., nn.Module]:
    """A Llama with fresh weights; by default 4 query heads of size 8 share 2 key heads."""

    def build(**changes: Any) -> nn.Module:
        from transformers.models.llama.configuration_llama import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaForCausalLM

        options = {
            "vocab_size": 50,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16,
            "tie_word_embeddings": False,
            "attn_implementation": "eager",
            "initializer_range": 0.5,
        }
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**options | changes))

    return build
