"""What a part of a run says of itself is enough to go on: weights, optimizers, random states, data."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from trainer.checkpoint.parts import Buffers, OptimizerState, Random, Weights
from trainer.checkpoint.state import State, StateError
from trainer.quant.saliency import ColumnSaliency, Share


def carried(state: State) -> State:
    """The state as a checkpoint brings it: tensors copied, values through JSON."""
    tensors = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
    return State(tensors=tensors, values=json.loads(json.dumps(state.values, allow_nan=False)))


def model(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).to(dtype)


def optimizers(of: nn.Module, kind: str) -> list[Optimizer]:
    matrices = [p for p in of.parameters() if p.ndim == 2]
    rest = [p for p in of.parameters() if p.ndim != 2]
    return {
        "muon and adamw": lambda: [Muon(matrices, lr=0.1), AdamW(rest, lr=0.01)],
        "adamw in two groups": lambda: [AdamW([{"params": matrices}, {"params": rest, "lr": 0.02}], lr=0.01)],
        "adamw with a tensor as its rate": lambda: [
            AdamW(of.parameters(), lr=torch.tensor(0.01), foreach=False)
        ],
        "without a state": lambda: [SGD(of.parameters(), lr=0.1)],
    }[kind]()


def steps(of: nn.Module, them: list[Optimizer], count: int) -> None:
    for step in range(count):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(3, 4, generator=generator, dtype=torch.float32).to(next(of.parameters()).dtype)
        of(x).square().mean().backward()
        for optimizer in them:
            for group in optimizer.param_groups:  # as the loop does: the schedule sets it anew each step
                if isinstance(group["lr"], Tensor):
                    group["lr"].mul_(0.9)
                else:
                    group["lr"] *= 0.9
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "kind",
    ["muon and adamw", "adamw in two groups", "adamw with a tensor as its rate", "without a state"],
)
def test_an_optimizer_goes_on_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    original = model(0, dtype)
    theirs = optimizers(original, kind)
    steps(original, theirs, 3)
    kept = [carried(part.state()) for part in (Weights(original), OptimizerState(theirs, original))]
    steps(original, theirs, 4)

    resumed = model(1, dtype)
    ours = optimizers(resumed, kind)
    Weights(resumed).restore(kept[0])
    OptimizerState(ours, resumed).restore(kept[1])
    steps(resumed, ours, 4)
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), resumed.parameters(), strict=True))
    for one, other in zip(theirs, ours, strict=True):
        assert one.state_dict()["param_groups"] == other.state_dict()["param_groups"]


class Wide(SGD):
    """Keeps a float32 average and a few plain values of each parameter, whatever the parameter's dtype."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("average", torch.zeros(p.shape, dtype=torch.float32))
                self.state[p]["average"] += p.detach().float() / 3
                self.state[p]["drawn"] = [1, 2.5, None, "seed"]


def test_float32_state_of_bfloat16_weights_is_not_rounded() -> None:
    original = model(0, torch.bfloat16)
    (one,) = them = [Wide(original.parameters(), lr=0.1)]
    one.step()
    resumed = model(1, torch.bfloat16)
    (other,) = ours = [Wide(resumed.parameters(), lr=0.1)]
    OptimizerState(ours, resumed).restore(carried(OptimizerState(them, original).state()))
    for p, q in zip(original.parameters(), resumed.parameters(), strict=True):
        assert other.state[q]["average"].dtype == torch.float32
        assert torch.equal(one.state[p]["average"], other.state[q]["average"])
        assert other.state[q]["drawn"] == [1, 2.5, None, "seed"]


def test_what_no_checkpoint_can_hold_is_refused_by_name() -> None:
    of = model(0)
    optimizer = SGD(of.parameters(), lr=0.1)
    optimizer.state[next(of.parameters())]["generator"] = torch.Generator()
    with pytest.raises(StateError, match=r"0/0\.weight/generator is a Generator"):
        OptimizerState([optimizer], of).state()


class Layered(nn.Module):
    """Two tied layers, a persistent buffer, and buffers that only pass: those of the saliency curriculum."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.first.weight
        nn.init.constant_(self.first.weight, fill)
        self.register_buffer("count", torch.tensor(int(fill)))
        share = Share(fill / 10)
        self.saliency = ColumnSaliency(self.first.weight, share, 0.9)
        self.other = ColumnSaliency(self.first.weight, share, 0.9)


def test_module_round_trip_with_tied_weights_and_buffers() -> None:
    one, other = Layered(1), Layered(2)
    one.saliency.norms[1] = 7.0
    weights, buffers = carried(Weights(one).state()), carried(Buffers(one).state())
    assert set(weights.tensors) == {"first.weight", "count"}
    assert set(buffers.tensors) == {
        *("saliency.norms", "saliency.ranks", "saliency.share.value", "other.norms", "other.ranks"),
    }
    Weights(other).restore(weights)
    Buffers(other).restore(buffers)
    assert (other.tied.weight[0, 0].item(), int(other.count), other.saliency.norms[1]) == (1.0, 1, 7.0)
    assert float(other.other.share.value) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("0.bias"), "model: 0.bias is in the run alone"),
        (lambda tensors: tensors.update(new=torch.zeros(1)), "model: new is in the checkpoint alone"),
        (
            lambda tensors: tensors.update({"2.bias": torch.zeros(5)}),
            r"2.bias is \(5,\) of torch.float32, not",
        ),
        (lambda tensors: tensors.update({"2.bias": torch.zeros(4).half()}), "2.bias is .* of torch.float16"),
    ],
    ids=["missing", "unknown", "shape", "dtype"],
)
def test_a_state_of_another_model_is_refused_and_changes_nothing(change, message) -> None:
    state = carried(Weights(model(0)).state())
    change(state.tensors)
    into = model(1)
    before = carried(Weights(into).state())
    with pytest.raises(StateError, match=message):
        Weights(into).restore(state)
    assert all(torch.equal(before.tensors[name], now) for name, now in Weights(into).state().tensors.items())


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (lambda m: [SGD(m.parameters(), lr=0.1)], "it has 2 groups, not 1"),
        (lambda m: [AdamW([m[2].weight]), AdamW([m[0].weight])], "no parameter for 0/0.weight"),
    ],
    ids=["groups", "parameters"],
)
def test_a_state_of_other_optimizers_is_refused(ours, message) -> None:
    original, resumed = model(0), model(1)
    theirs = [AdamW([original[0].weight]), AdamW([original[2].weight])]
    steps(original, theirs, 1)
    with pytest.raises(StateError, match=message):
        OptimizerState(ours(resumed), resumed).restore(carried(OptimizerState(theirs, original).state()))


def test_random_states_go_on_where_they_were() -> None:
    part = Random(torch.device("cpu"))
    random.gauss(0, 1)  # leaves one number in reserve, as numpy's legacy generator does
    np.random.normal()

    def draw() -> list[float]:
        return [
            random.gauss(0, 1),
            random.random(),
            np.random.normal(),
            np.random.rand(),
            float(torch.rand(1)),
        ]

    kept = carried(part.state())
    expected = [draw() for _ in range(3)]
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    part.restore(kept)
    assert [draw() for _ in range(3)] == expected
