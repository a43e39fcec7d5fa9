"""Recomputation: less memory, as much of it as the layers hold; and models that cannot are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.tensor_memory import peak_bytes
from trainer.api import ConfigError, check
from trainer.config import TinyModelConfig
from trainer.devices.device import open_device
from trainer.models.causal_lm import build_tiny
from trainer.stages.pretrain import cross_entropy
from trainer.training.context import StageContext, StagePlan
from trainer.training.loop import recompute_layers, train

LAYERS, HIDDEN, TOKENS = 6, 64, 8 * 32
SHAPE = (
    f"model.layers={LAYERS}",
    f"model.hidden_size={HIDDEN}",
    "model.intermediate_size=256",
    "model.heads=2",
    "data.sequence_length=32",
    "data.vocab_size=300",
    "device=cpu",
    "device.threads=1",
    "device.dtype=float32",
    "optimizer@stage2.optimizer=adamw",  # Muon's stacks would be the peak
)


def peak_of_a_step(*overrides: str) -> int:
    """Of one step of `train`, which is given what the configuration says."""
    config = check([*SHAPE, *overrides])
    device = open_device(config.device)
    assert isinstance(config.model, TinyModelConfig)
    model = build_tiny(config.model, vocab_size=300, sequence_length=32, attention=device.attention_for(32))
    stage = config.stage2
    plan = StagePlan(name="toy", steps=1, optimizer=stage.optimizer, schedule=stage.schedule)
    ids = torch.zeros(8, 32, dtype=torch.long)
    return peak_bytes(
        lambda: train(plan, model, cross_entropy(model), iter([ids]), StageContext(device=device))
    )


def test_memory_is_counted_once_for_all_views_and_given_back() -> None:
    def work() -> None:
        for _ in range(3):
            a = torch.zeros(1000)
            b = a.view(10, 100).t()
            b.add_(1)
            del a, b
            c = torch.ones(500) * 2  # two of 2,000 bytes at once
            del c

    assert peak_bytes(work) == 4000


def test_recomputation_holds_one_layer() -> None:
    """The layers' inside is at least their MLPs' four tensors of the inner width."""
    saved = peak_of_a_step() - peak_of_a_step("device.recompute=true")
    assert saved > (LAYERS - 1) * TOKENS * 4 * 256 * 4


def test_a_model_that_cannot_recompute_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^device.recompute: Linear "):
        recompute_layers(nn.Linear(2, 2))
