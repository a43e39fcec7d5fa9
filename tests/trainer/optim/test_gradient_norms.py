"""Norms by kind of parameter, before clipping."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer.optim.gradient_norms import GradientNorms


def test_they_are_the_norms_of_the_three_kinds(llama: Callable[..., nn.Module]) -> None:
    model = llama()
    for name, parameter in model.named_parameters():
        size = 3.0 if parameter.ndim == 1 else 2.0 if "layers" in name else 1.0
        parameter.grad = torch.full_like(parameter, size)
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    norms = {name: norm.item() for name, norm in GradientNorms(model)().items()}
    assert norms == pytest.approx(
        {
            "grad_norm_matrices": 2 * math.sqrt(layer),
            "grad_norm_ends": math.sqrt(2 * 50 * 32),
            "grad_norm_gains": 3 * math.sqrt(3 * 32),
        }
    )


def test_a_kind_without_gradients_is_left_out(llama: Callable[..., nn.Module]) -> None:
    model = llama()
    measure = GradientNorms(model)
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    assert set(measure()) == {"grad_norm_ends"}


def test_they_are_logged_and_make_up_the_whole(run_small, tmp_path) -> None:
    import json

    run_small("stage2.optimizer.max_grad_norm=0.01")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        parts = [line[f"grad_norm_{kind}"] for kind in ("matrices", "ends", "gains")]
        assert math.hypot(*parts) == pytest.approx(line["grad_norm"], rel=1e-5)
    assert lines[-1]["grad_norm"] > 0.1  # before clipping
