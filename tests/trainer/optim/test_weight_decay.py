"""Weight decay that ends within a stage (arXiv:2504.12285, §2.2.1)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from trainer_outcomes import weights_digest

from trainer.api import check
from trainer.config import OptimizerConfig
from trainer.optim.build import build_optimizer
from trainer.pipeline import Outcome


@pytest.mark.parametrize(
    ("until", "steps", "with_decay"), [(0.5, 10, 5), (0.25, 6, 2), (1.0, 7, 7), (0.0, 4, 0), (0.01, 5, 0)]
)
def test_the_first_share_of_the_steps_has_it(
    until: float, steps: int, with_decay: int, configure: Callable[..., OptimizerConfig]
) -> None:
    config = configure("muon", weight_decay=0.1, weight_decay_until=until)
    expected = [0.1] * with_decay + [0.0] * (steps - with_decay)
    assert [config.weight_decay_at(step, steps) for step in range(steps)] == expected


@given(st.integers(1, 500))
def test_by_default_it_never_ends(steps: int) -> None:
    config = check([]).stage2.optimizer
    assert not config.weight_decay_ends
    assert {config.weight_decay_at(step, steps) for step in range(steps)} == {config.weight_decay}


@pytest.mark.parametrize("kind", ["muon", "adamw", "adamw_8bit", "apollo", "apollo_mini"])
def test_every_type_takes_the_next_step_with_it(
    kind: str, llama: Callable[..., nn.Module], configure: Callable[..., OptimizerConfig]
) -> None:
    """A weight that is moved by nothing else: with decay it shrinks, without it stays."""
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    model = llama()
    optimizer = build_optimizer(model, configure(kind, lr=0.1, weight_decay=0.1))
    norms = [model.lm_head.weight.detach().norm().item()]
    for factor in (1.0, 0.5, 0.0, 1.0):
        optimizer.scale_weight_decay(factor)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        norms.append(model.lm_head.weight.detach().norm().item())
    shrunk = [after / before for before, after in itertools.pairwise(norms)]
    assert shrunk == pytest.approx([0.99, 0.995, 1.0, 0.99], abs=1e-5)
    free = [
        group for each in optimizer.optimizers for group in each.param_groups if group["params"][0].ndim == 1
    ]
    assert all(group["weight_decay"] == 0 for group in free)


def test_freezing_keeps_the_configured_weight_decay(
    llama: Callable[..., nn.Module], configure: Callable[..., OptimizerConfig]
) -> None:
    model = llama()
    optimizer = build_optimizer(model, configure("muon", weight_decay=0.1))
    optimizer.scale_weight_decay(0.0)
    model.lm_head.weight.requires_grad_(False)
    optimizer.leave_out_frozen()
    optimizer.scale_weight_decay(1.0)
    assert {g["weight_decay"] for each in optimizer.optimizers for g in each.param_groups} == {0.1, 0.0}


def test_the_weight_decay_of_each_step_is_logged_where_it_ends(
    run_small: Callable[..., Outcome], tmp_path: Path
) -> None:
    run_small("stage2.optimizer.weight_decay_until=0.5", "stage1_9.optimizer.weight_decay=0.2")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [line["weight_decay"] for line in lines if line["stage"] == "stage2" and "loss" in line]
    assert logged == [0.01] * 3 + [0.0] * 3
    assert not any("weight_decay" in line for line in lines if line["stage"] == "stage1_9")


def test_ending_at_once_is_no_weight_decay_at_all(run_small: Callable[..., Outcome]) -> None:
    ended, none = (
        weights_digest(run_small(f"stage2.optimizer.{each}"))
        for each in ("weight_decay_until=0.0", "weight_decay=0.0")
    )
    assert ended == none
