"""Optimizers, clipping and checkpoints over matrices of which each of two processes has a part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import AdamW, Optimizer

from trainer.checkpoint.parts import OptimizerState, Weights
from trainer.checkpoint.state import State
from trainer.checkpoint.writer import HostCopies, contribute
from trainer.distributed.tensors import full_tensor, redistribute_like
from trainer.optim.apollo import Apollo
from trainer.optim.muon import BatchedMuon
from trainer.optim.stochastic_rounding import RoundedAdamW, StochasticRounding

pytestmark = pytest.mark.timeout(600)  # processes that load torch, on a busy machine

InTwo = Callable[[Callable[[], Any]], list[Any]]
SHAPES = {
    "tall": (7, 4),
    "wide": (5, 8),
    "square": (6, 6),
    "thin": (1, 6),
}  # uneven parts, and one that is empty
STEPS = 3


def matrices(*, parts: bool) -> nn.ParameterDict:
    generator = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    if not parts:
        return nn.ParameterDict(weights)
    mesh = init_device_mesh("cpu", (2,))
    return nn.ParameterDict(
        {n: nn.Parameter(distribute_tensor(w, mesh, [Shard(0)])) for n, w in weights.items()}
    )


def optimizers_over(model: nn.Module) -> dict[str, Optimizer]:
    each = list(model.parameters())
    apollo = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "update_interval": 2, "seed": 3}
    return {
        "muon": BatchedMuon(each, lr=0.1, weight_decay=0.1, momentum=0.9),
        "adamw": AdamW(each, lr=0.1, fused=True),
        "apollo": Apollo(each, lr=0.1, rank=5, tensorwise=False, scale=None, **apollo),
        "apollo_mini": Apollo(each, lr=0.1, rank=1, tensorwise=True, scale=None, **apollo),
    }


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> list[Tensor]:
    """Steps with gradients that follow from their number; the norms before clipping."""
    norms = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = redistribute_like(parameter, drawn)
        norms.append(full_tensor(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
    return norms


def trained(*, parts: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in optimizers_over(matrices(parts=parts)):
        model = matrices(parts=parts)
        norms = train(model, optimizers_over(model)[name], range(STEPS))
        found[name] = [full_tensor(weight.detach()) for weight in model.parameters()], norms
    return found


def in_parts() -> dict[str, Any]:
    return trained(parts=True)


def test_updates_and_norms_are_those_of_whole_matrices(in_two: InTwo) -> None:
    expected = trained(parts=False)
    for found in in_two(in_parts):
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6, msg=name)


def kept_in_parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """After two steps, as the first process would write it (the other gives its parts); and after the third."""
    kept, after = {}, {}
    for name in optimizers_over(matrices(parts=True)):
        model = matrices(parts=True)
        optimizer = optimizers_over(model)[name]
        train(model, optimizer, range(STEPS - 1))
        states = Weights(model).state(), OptimizerState([optimizer], model).state()
        if torch.distributed.get_rank() == 0:
            kept[name] = [State(tensors=HostCopies().take(s.tensors), values=s.values) for s in states]
        else:
            for state in states:
                contribute(state.tensors)
        train(model, optimizer, range(STEPS - 1, STEPS))
        after[name] = [full_tensor(weight.detach()) for weight in model.parameters()]
    return kept, after


def resumed(kept: dict[str, Any], *, parts: bool) -> dict[str, Any]:
    after = {}
    for name, (weights, state) in kept.items():
        model = matrices(parts=parts)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        optimizer = optimizers_over(model)[name]
        Weights(model).restore(weights)
        OptimizerState([optimizer], model).restore(state)
        train(model, optimizer, range(STEPS - 1, STEPS))
        after[name] = [full_tensor(weight.detach()) for weight in model.parameters()]
    return after


def kept_and_resumed() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    kept, after = kept_in_parts()
    received = [kept]
    torch.distributed.broadcast_object_list(received, src=0)
    return received[0], after, resumed(received[0], parts=True)


def test_full_state_resumes_sharded_or_not(in_two: InTwo) -> None:
    (kept, after, in_parts), (_, _, in_other) = in_two(kept_and_resumed)
    for name in after:
        torch.testing.assert_close(in_parts[name], after[name], rtol=0, atol=0, msg=name)
        torch.testing.assert_close(in_other[name], after[name], rtol=0, atol=0, msg=name)
    alone = resumed(kept, parts=False)
    for name in after:
        torch.testing.assert_close(alone[name], after[name], rtol=1e-5, atol=1e-6, msg=name)


def rounded(*, parts: bool) -> dict[str, tuple[list[Tensor], bool]]:
    """Weights after a step that is rounded stochastically, and whether a step that is skipped left them so."""
    rank = torch.distributed.get_rank() if parts else 0
    apollo = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "update_interval": 2, "seed": 3}
    kinds: dict[str, Callable[..., Any]] = {
        "muon": partial(BatchedMuon, lr=0.1),
        "adamw": lambda each, **options: RoundedAdamW([{"params": each}], lr=0.1, **options),
        "apollo": partial(Apollo, lr=0.1, rank=5, tensorwise=False, scale=None, **apollo),
    }
    found = {}
    for name, kind in kinds.items():
        model = matrices(parts=parts).bfloat16()
        optimizer = kind(list(model.parameters()), rounding=StochasticRounding(f"{name} of {rank}", 1))
        train(model, optimizer, range(1))
        after = [full_tensor(weight.detach()) for weight in model.parameters()]
        optimizer.found_inf = torch.ones(())
        train(model, optimizer, range(1, 2))
        still = [full_tensor(weight.detach()) for weight in model.parameters()]
        found[name] = after, all(map(torch.equal, after, still))
    return found


def rounded_in_parts() -> dict[str, tuple[list[Tensor], bool]]:
    return rounded(parts=True)


def test_rounding_in_parts_gives_neighbours(in_two: InTwo) -> None:
    """Each process draws for its own rows, so that numbers differ from those of one alone by a rounding."""
    one, other = in_two(rounded_in_parts)
    for name, (weights, stayed) in rounded(parts=False).items():
        assert stayed
        assert one[name][1]
        for mine, theirs, expected in zip(one[name][0], other[name][0], weights, strict=True):
            assert mine.dtype == torch.bfloat16
            assert torch.equal(mine, theirs)
            torch.testing.assert_close(mine, expected, rtol=2**-6, atol=2**-9)
