"""A flag on the device that skips an update, as torch's GradScaler passes it, for our own optimizers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer.config import OptimizerConfig
from trainer.optim.build import build_optimizer
from trainer.optim.qk_clip import QkClip

KINDS = [(kind, rounded) for kind in ("muon", "adamw", "apollo", "apollo_mini") for rounded in (False, True)]


@pytest.mark.parametrize("skipped", [True, False])
@pytest.mark.parametrize(("kind", "rounded"), KINDS, ids=str)
def test_skipped_step_changes_no_weight(
    kind: str,
    rounded: bool,
    skipped: bool,
    llama: Callable[..., nn.Module],
    configure: Callable[..., OptimizerConfig],
) -> None:
    """Also where its gradient is not finite; and a flag that is not set changes no bit."""
    ended = []
    for flagged in (True, False):
        model = llama().to(torch.bfloat16 if rounded else torch.float32)
        optimizer = build_optimizer(model, configure(kind, weight_decay=0.1, stochastic_rounding=rounded))
        for step in range(3):
            for number, parameter in enumerate(model.parameters()):
                value = torch.nan if skipped and step == 2 else 0.1 * (1 + number + step)
                parameter.grad = torch.full_like(parameter, value)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            for each in optimizer.optimizers:
                each.found_inf = torch.tensor(float(skipped and step == 2)) if flagged else None  # type: ignore[attr-defined]
            optimizer.step()
        after = [parameter.detach() for parameter in model.parameters()]
        ended.append(after)
        if skipped:
            assert all(map(torch.equal, before, after)) == flagged
        else:
            assert not any(map(torch.equal, before, after))
    assert all(map(torch.equal, *ended)) != skipped


@pytest.mark.parametrize("finite", [True, False])
def test_skipped_step_clips_nothing(finite: bool, llama: Callable[..., nn.Module]) -> None:
    model = llama().train()
    clip = QkClip(model, 1e-3, key="optimizer")
    model(input_ids=torch.arange(8)[None])
    before = model.get_submodule("model.layers.0.self_attn.q_proj").weight.detach().clone()
    clip.clip(torch.tensor(finite))
    after = model.get_submodule("model.layers.0.self_attn.q_proj").weight.detach()
    assert torch.equal(before, after) == (not finite)
