"""Which parameter is updated by what, and how fast."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon

from trainer.api import check
from trainer.config import OptimizerConfig, TinyModelConfig
from trainer.model import build_tiny
from trainer.optim.build import build_optimizer

MUON = OptimizerConfig(
    type="muon",
    lr=0.01,
    weight_decay=0.1,
    momentum=0.95,
    adamw_lr_ratio=0.5,
    beta1=0.9,
    beta2=0.95,
    max_grad_norm=1.0,
)
LAYER = "model.layers.0.self_attn.q_proj"
ADAMW = dataclasses.replace(MUON, type="adamw")


@pytest.fixture
def model(small: tuple[str, ...]) -> nn.Module:
    config = check(small).model
    assert isinstance(config, TinyModelConfig)
    return build_tiny(config, vocab_size=300, sequence_length=16, attention="eager")


def names_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)] for group in optimizer.param_groups for p in group["params"]}


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest(model: nn.Module) -> None:
    muon, adamw = build_optimizer(model, MUON).optimizers
    assert isinstance(muon, Muon)
    assert isinstance(adamw, AdamW)
    matrices = {n for n, p in model.named_parameters() if ".layers." in n and p.ndim == 2}
    assert names_of(model, muon) == matrices
    assert names_of(model, adamw) == {n for n, _ in model.named_parameters()} - matrices
    assert "lm_head.weight" in names_of(model, adamw)


def test_adamw_alone_takes_every_parameter_once(model: nn.Module) -> None:
    (adamw,) = build_optimizer(model, ADAMW).optimizers
    parameters = [p for group in adamw.param_groups for p in group["params"]]
    assert len(parameters) == len({id(p) for p in parameters}) == len(list(model.parameters()))


@pytest.mark.parametrize("config", [MUON, ADAMW], ids=lambda config: config.type)
def test_embeddings_head_and_norms_have_the_ratio_and_norms_do_not_decay(
    model: nn.Module, config: OptimizerConfig
) -> None:
    matrices = {id(p) for n, p in model.named_parameters() if ".layers." in n and p.ndim == 2}
    for optimizer in build_optimizer(model, config).optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                assert group["lr"] == (0.01 if id(parameter) in matrices else 0.005)
                assert group["weight_decay"] == (0.1 if parameter.ndim == 2 else 0.0)


def test_scaling_the_learning_rate_is_relative_to_the_peak(model: nn.Module) -> None:
    optimizer = build_optimizer(model, MUON)
    for factor in (0.1, 0.5):
        optimizer.scale_lr(factor)
    rates = {group["lr"] for each in optimizer.optimizers for group in each.param_groups}
    assert rates == {0.005, 0.0025}


def test_one_learning_rate_moves_a_matrix_about_as_far_with_either_type(model: nn.Module) -> None:
    """Why a search may share one range of learning rates between the two."""
    moved = {}
    for config in (MUON, ADAMW):
        copied = copy.deepcopy(model)
        torch.manual_seed(0)
        for parameter in copied.parameters():
            parameter.grad = torch.randn_like(parameter)
        build_optimizer(copied, dataclasses.replace(config, weight_decay=0.0)).step()
        change = copied.get_submodule(LAYER).weight - model.get_submodule(LAYER).weight
        moved[config.type] = change.square().mean().sqrt().item()
    # AdamW's first step is a full learning rate; 0.2 of one is what it settles at, and what Muon is scaled to.
    assert moved["adamw"] == pytest.approx(0.01, rel=0.01)
    assert moved["muon"] == pytest.approx(0.2 * 0.01, rel=0.3)
