"""A stage's optimizers, all of which a flag on the device skips together."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trainer.api import check
from trainer.optim.build import OptimizerSet, build_optimizer

TYPES = ("adamw", "muon", "muonclip", "apollo", "apollo_mini")


def optimizer_of(model: nn.Module, kind: str) -> OptimizerSet:
    return build_optimizer(model, check([f"stage2.optimizer.type={kind}"]).stage2.optimizer)


def set_gradients(model: nn.Module, value: float) -> None:
    for number, parameter in enumerate(model.parameters(), start=1):
        parameter.grad = torch.full_like(parameter, value / number)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def changed(before: list[Tensor], model: nn.Module) -> list[bool]:
    return [not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True)]


@pytest.mark.parametrize("kind", TYPES)
def test_once_skipped_no_weight_changes(kind: str, llama: Callable[..., nn.Module]) -> None:
    """By no decay, by no momentum of the steps before, and not by what is no number."""
    model = llama()
    optimizer = optimizer_of(model, kind)
    assert optimizer.can_skip
    for finite, gradient in ((True, 1.0), (False, math.nan), (False, math.inf), (False, 1.0)):
        before = weights(model)
        set_gradients(model, gradient)
        optimizer.step(torch.tensor(finite))
        assert changed(before, model) == [finite] * len(before)
    optimizer.close()


@pytest.mark.parametrize("kind", TYPES)
def test_the_flag_of_a_finite_step_changes_no_bit(kind: str, llama: Callable[..., nn.Module]) -> None:
    ours, theirs = llama(), llama()
    theirs.load_state_dict(ours.state_dict())
    flagged, plain = optimizer_of(ours, kind), optimizer_of(theirs, kind)
    for gradient in (1.0, -0.5, 0.25):
        set_gradients(ours, gradient)
        set_gradients(theirs, gradient)
        flagged.step(torch.tensor(True))
        plain.step()
    assert changed(weights(theirs), ours) == [False] * len(weights(ours))


def test_an_optimizer_that_knows_no_flag_cannot_skip(llama: Callable[..., nn.Module]) -> None:
    model = llama()
    known = OptimizerSet(lambda: [torch.optim.AdamW(model.parameters(), fused=True)])
    other = OptimizerSet(lambda: [torch.optim.AdamW(model.parameters(), fused=False)])
    assert known.can_skip
    assert not other.can_skip
