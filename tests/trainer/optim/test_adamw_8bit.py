"""AdamW in 8 bits: near torch's AdamW, and exactly what bitsandbytes does."""

from __future__ import annotations

from collections.abc import Callable

import bitsandbytes
import pytest
import torch
from torch import nn
from torch.optim import AdamW

from sweeps.text.installation import install_command
from trainer import __main__ as program
from trainer.api import check
from trainer.errors import ConfigError
from trainer.optim import build
from trainer.optim.build import build_adamw_8bit, build_optimizer

LR, BETAS, EPS, DECAY, STEPS = 1e-3, (0.9, 0.95), 1e-8, 0.01, 30


def parameters() -> list[nn.Parameter]:
    """A parameter whose state is quantised, and one of fewer than 4,096 elements."""
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((64, 80), (40, 40))]


def train(optimizer: torch.optim.Optimizer, theirs: list[nn.Parameter]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for parameter in theirs:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [parameter.detach() for parameter in theirs]


def ours() -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    mine = parameters()
    groups = [{"params": mine, "lr": LR, "weight_decay": DECAY}]
    return build_adamw_8bit(groups, betas=BETAS, eps=EPS, key="optimizer"), mine


def test_it_steps_as_adamw_within_what_8_bits_hold() -> None:
    exact = parameters()
    large, small = train(AdamW(exact, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY), exact)
    large_8, small_8 = train(*ours())
    moved = (large - parameters()[0].detach()).abs().mean()
    assert (large_8 - large).abs().mean() < 0.03 * moved
    assert not torch.equal(large_8, large)
    assert (small_8 - small).abs().max() < 1e-6  # its moments are in float32


def test_it_steps_exactly_as_the_package_does() -> None:
    theirs = parameters()
    package = bitsandbytes.optim.AdamW8bit(theirs, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    for mine, reference in zip(train(*ours()), train(package, theirs), strict=True):
        assert torch.equal(mine, reference)


def test_the_moments_of_large_tensors_take_two_bytes_a_weight() -> None:
    optimizer, mine = ours()
    train(optimizer, mine)
    large, small = (optimizer.state[parameter] for parameter in mine)
    assert (large["state1"].dtype, large["state2"].dtype) == (torch.uint8, torch.uint8)
    assert (small["state1"].dtype, small["state2"].dtype) == (torch.float32, torch.float32)


def test_the_groups_of_a_model_keep_their_rates(llama: Callable[..., nn.Module], configure) -> None:
    config = configure("adamw_8bit", lr=0.01, adamw_lr_ratio=0.5, weight_decay=0.1)
    model = llama()
    (optimizer,) = build_optimizer(model, config).optimizers
    assert isinstance(optimizer, bitsandbytes.optim.AdamW8bit)
    rates = {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert rates == {(0.01, 0.1), (0.005, 0.1), (0.005, 0.0)}


def test_missing_package_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    status = program.main(["stage2.optimizer.type=adamw_8bit", f"run_dir={tmp_path / 'run'}", "device=cpu"])
    assert status == 2
    err = capsys.readouterr().err
    assert err.startswith("trainer: error: not on this machine: stage2.optimizer.type: ")
    assert install_command("bnb") in err
    assert not (tmp_path / "run").exists()


def test_without_the_package_a_configuration_is_still_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep may be set up on a machine that does not train."""
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    assert check(["optimizer@stage2.optimizer=adamw_8bit"]).stage2.optimizer.type == "adamw_8bit"


def test_without_the_package_it_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^stage2\.optimizer\.type: .*bitsandbytes"):
        build_adamw_8bit([], betas=BETAS, eps=EPS, key="stage2.optimizer")
