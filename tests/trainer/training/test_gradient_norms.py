"""Norms by kind of parameter, before clipping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.training.train_step import GradientNorms


def test_they_are_the_norms_of_the_three_kinds(llama: Callable[..., nn.Module]) -> None:
    model = llama()
    for name, parameter in model.named_parameters():
        size = 3.0 if parameter.ndim == 1 else 2.0 if "layers" in name else 1.0
        parameter.grad = torch.full_like(parameter, size)
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    total, by_kind = GradientNorms(model)()
    norms = {name: norm.item() for name, norm in by_kind.items()}
    assert torch.equal(total, torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
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
    total, by_kind = measure()
    assert by_kind == {"grad_norm_ends": total}


class Operations(TorchDispatchMode):
    """The names of all operations within the context."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_each_gradient_is_read_once_for_all_norms(llama: Callable[..., nn.Module]) -> None:
    """By one operation for all gradients, whatever the number of layers; the others are of the norms alone."""
    model = llama()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    measure = GradientNorms(model)
    with Operations() as operations:
        measure()
    assert operations.names.count("_foreach_norm") == 1
    # Of the norms: stacked and unbound, then a norm of all and of three kinds.
    assert len(operations.names) <= 1 + 2 + 1 + 3 * 2, operations.names


def test_they_are_logged_and_make_up_the_whole(run_small, tmp_path) -> None:
    import json

    run_small("stage2.optimizer.max_grad_norm=0.01")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        parts = [line[f"grad_norm_{kind}"] for kind in ("matrices", "ends", "gains")]
        assert math.hypot(*parts) == pytest.approx(line["grad_norm"], rel=1e-5)
    assert lines[-1]["grad_norm"] > 0.1  # before clipping
