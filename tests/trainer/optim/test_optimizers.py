"""The optimizer and learning rate of each parameter."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon

from trainer.api import check
from trainer.config import TinyModelConfig
from trainer.models.causal_lm import build_tiny
from trainer.optim.apollo import Apollo
from trainer.optim.build import build_optimizer

MUON = dataclasses.replace(
    check(["optimizer@stage2.optimizer=muon"]).stage2.optimizer,
    lr=0.01,
    weight_decay=0.1,
    momentum=0.95,
    adamw_lr_ratio=0.5,
    max_grad_norm=1.0,
)
LAYER = "model.layers.0.self_attn.q_proj"
ADAMW = dataclasses.replace(MUON, type="adamw")
TYPES = ("muon", "muonclip", "adamw", "adamw_8bit", "apollo", "apollo_mini")


@pytest.fixture
def model(small: tuple[str, ...]) -> nn.Module:
    config = check(small).model
    assert isinstance(config, TinyModelConfig)
    return build_tiny(config, vocab_size=300, sequence_length=16, attention="eager")


def names_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)] for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize(
    ("kind", "theirs"), [("muon", Muon), ("muonclip", Muon), ("apollo", Apollo), ("apollo_mini", Apollo)]
)
def test_hidden_matrices_and_the_rest_have_their_optimizers(
    model: nn.Module, kind: str, theirs: type[torch.optim.Optimizer]
) -> None:
    muon, adamw = build_optimizer(model, dataclasses.replace(MUON, type=kind)).optimizers
    assert isinstance(muon, theirs)
    assert isinstance(adamw, AdamW)
    matrices = {n for n, p in model.named_parameters() if ".layers." in n and p.ndim == 2}
    assert names_of(model, muon) == matrices
    assert names_of(model, adamw) == {n for n, _ in model.named_parameters()} - matrices
    assert "lm_head.weight" in names_of(model, adamw)


def trained(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_it_steps_exactly_as_torchs_own(model: nn.Module, kind: str) -> None:
    in_bfloat16 = dataclasses.replace(
        MUON.muon, dtype="bfloat16"
    )  # torch's own; `test_muon.py` has the other
    theirs, config = copy.deepcopy(model), dataclasses.replace(MUON, type=kind, muon=in_bfloat16)
    matrices = [p for n, p in theirs.named_parameters() if ".layers." in n and p.ndim == 2]
    ends = [theirs.get_submodule(name).weight for name in ("model.embed_tokens", "lm_head")]
    gains = [p for p in theirs.parameters() if p.ndim == 1]
    rest = [{"params": ends, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    reference: list[torch.optim.Optimizer] = [AdamW(rest, lr=0.005, betas=(0.9, 0.95), fused=True)]
    if kind == "muon":
        options = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
        reference.append(Muon(matrices, **options))
    else:
        reference.append(AdamW(matrices, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, fused=True))
    ours = trained(model, build_optimizer(model, config).optimizers)
    for mine, yours in zip(ours, trained(theirs, reference), strict=True):
        assert torch.equal(mine, yours)


def test_adamw_alone_takes_every_parameter_once(model: nn.Module) -> None:
    (adamw,) = build_optimizer(model, ADAMW).optimizers
    parameters = [p for group in adamw.param_groups for p in group["params"]]
    assert len(parameters) == len({id(p) for p in parameters}) == len(list(model.parameters()))


def test_fused_adamw_equals_unfused_up_to_rounding(model: nn.Module) -> None:
    theirs = copy.deepcopy(model)
    fused = build_optimizer(model, ADAMW).optimizers
    composed = build_optimizer(theirs, ADAMW).optimizers
    for group in composed[0].param_groups:
        group.update(fused=False, foreach=False)
    assert all(group["fused"] for optimizer in fused for group in optimizer.param_groups)
    for ours, yours in zip(trained(model, fused), trained(theirs, composed), strict=True):
        torch.testing.assert_close(ours, yours, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", TYPES)
def test_lr_ratio_of_ends_and_no_decay_of_norms(model: nn.Module, kind: str) -> None:
    config = dataclasses.replace(MUON, type=kind)
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


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_updates_a_matrix_by_about_the_same(model: nn.Module, kind: str) -> None:
    """A search may share one range of learning rates between them."""
    config = dataclasses.replace(MUON, type=kind, weight_decay=0.0)
    config = dataclasses.replace(config, apollo=dataclasses.replace(config.apollo, rank=8))
    optimizer, weight = build_optimizer(model, config), model.get_submodule(LAYER).weight
    generator, moved = torch.Generator().manual_seed(0), 0.0
    for _ in range(20):
        before = weight.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        moved = (weight.detach() - before).square().mean().sqrt().item()
    # What AdamW settles at on noise, and what Muon is scaled to: 0.2 of a learning rate and something.
    assert moved == pytest.approx(0.25 * 0.01, rel=0.4)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("muon", 4),
        ("muonclip", 4),
        ("adamw", 8),
        ("adamw_8bit", 2.03),
        ("apollo", 8 * 32 / 128),
        ("apollo_mini", 8 / 128),
    ],
)
def test_state_bytes_are_those_of_the_docs(kind: str, expected: float) -> None:
    config = check([f"optimizer@stage2.optimizer={kind}", "model.layers=1"])
    assert isinstance(config.model, TinyModelConfig)
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    optimizer, weight = build_optimizer(model, config.stage2.optimizer), model.get_submodule(LAYER).weight
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    (state,) = (each.state[weight] for each in optimizer.optimizers if weight in each.state)
    shared = ("step", "scaled_norm", "qmap1", "qmap2")  # a number, or the same table for all matrices
    kept = [value for name, value in state.items() if name not in shared]
    assert sum(value.nbytes for value in kept) / weight.numel() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("kind", TYPES)
def test_the_loss_goes_down_with_every_type(small: tuple[str, ...], kind: str) -> None:
    config = check([*small, f"optimizer@stage2.optimizer={kind}"])
    assert isinstance(config.model, TinyModelConfig)
    torch.manual_seed(0)
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager").train()
    optimizer, ids_BT, losses = (
        build_optimizer(model, config.stage2.optimizer),
        torch.arange(64).view(4, 16),
        [],
    )
    for _ in range(25):
        losses.append(model(input_ids=ids_BT, labels=ids_BT).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]
