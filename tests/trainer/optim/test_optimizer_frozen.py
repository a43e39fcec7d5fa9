"""An optimizer rebuilt without frozen parameters updates the others as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer.config import OptimizerConfig
from trainer.optim.build import build_optimizer


@pytest.mark.parametrize("kind", ["muon", "adamw", "adamw_8bit", "apollo", "apollo_mini"])
@pytest.mark.parametrize("all_matrices", [False, True])
def test_freezing_keeps_the_state_of_other_parameters(
    kind: str, all_matrices: bool, llama: Callable[..., nn.Module], configure: Callable[..., OptimizerConfig]
) -> None:
    """Against one that is not rebuilt, whose frozen parameters have no gradient."""
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    config = configure(kind)
    came_to = []
    for anew in (True, False):
        model = llama()
        optimizer = build_optimizer(model, config)
        generator = torch.Generator().manual_seed(0)
        for step in range(4):
            optimizer.scale_lr(1.0 if step < 3 else 0.5)
            if step == 2:
                for name, parameter in model.named_parameters():
                    if "norm" in name or (all_matrices and "layers" in name):
                        parameter.requires_grad_(False)
                        parameter.grad = None
                if anew:
                    optimizer.leave_out_frozen()
            for parameter in model.parameters():
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.grad = drawn if parameter.requires_grad else None
            optimizer.step()
        came_to.append([parameter.detach().clone() for parameter in model.parameters()])
        held = {p for each in optimizer.optimizers for p in each.state}
        assert anew == (held == {p for p in model.parameters() if p.requires_grad})
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*came_to, strict=True))
