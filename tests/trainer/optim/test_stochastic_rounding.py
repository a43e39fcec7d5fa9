"""Stochastic rounding: unbiased, the same after a resumption, and what it is for with every optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.tensor_memory import peak_bytes
from trainer.config import OptimizerConfig
from trainer.errors import ConfigError
from trainer.optim.build import build_optimizer
from trainer.optim.stochastic_rounding import (
    RoundedAdamW,
    StochasticRounding,
    pieces,
    stochastically_rounded,
)
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.memory import optimizer_memory

Build = Callable[..., nn.Module]
Configure = Callable[..., OptimizerConfig]
TYPES = ("muon", "muonclip", "adamw", "apollo", "apollo_mini")


def rounded(values: Tensor, seed: int = 0) -> Tensor:
    return stochastically_rounded(values, torch.Generator().manual_seed(seed))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 2**32))
def test_a_value_goes_to_one_of_its_two_neighbours(value: float, seed: int) -> None:
    exact = torch.tensor([value], dtype=torch.float32)
    down = (exact.view(torch.int32) & -(2**16)).view(torch.float32)
    up = (down.view(torch.int32) + 2**16).view(torch.float32)
    found = rounded(exact, seed).float()
    assert torch.equal(found, down) or (torch.equal(found, up) and not torch.equal(exact, down))


def test_what_bfloat16_can_hold_stays_as_it_is() -> None:
    special = [0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, torch.finfo(torch.bfloat16).max, 1e-40]
    values = torch.tensor(special).bfloat16()
    assert torch.equal(rounded(values.float()).view(torch.int16), values.view(torch.int16))


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, -1, 0x7F800001], ids=hex)
def test_every_nan_stays_one(bits: int) -> None:
    """CUDA's own has all bits set below the sign."""
    assert rounded(torch.full((64,), bits, dtype=torch.int32).view(torch.float32)).isnan().all()


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_the_mean_of_many_roundings_is_the_value(share: float) -> None:
    number, spacing = 200_000, 2**-7
    value = -(1 + share * spacing)
    found = rounded(torch.full((number,), value)).double()
    error = spacing * (share * (1 - share) / number) ** 0.5
    assert abs(found.mean().item() - value) < 5 * error


def model_in(dtype: torch.dtype, llama: Build) -> nn.Module:
    model = llama(hidden_size=64, initializer_range=0.02).to(dtype).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # no weight near zero, where bfloat16 is fine
                parameter.copy_(parameter.sign() * 1.5)
    return model


def train(model: nn.Module, config: OptimizerConfig, steps: int) -> None:
    """Steps with gradients of one direction, plus some noise."""
    optimizer, generator = build_optimizer(model, config), torch.Generator().manual_seed(0)
    directions = [torch.randn(p.shape, generator=generator) for p in model.parameters()]
    for _ in range(steps):
        for parameter, direction in zip(model.parameters(), directions, strict=True):
            noise = 0.1 * torch.randn(direction.shape, generator=generator)
            parameter.grad = (direction + noise).to(parameter.dtype)
        optimizer.step()
    optimizer.close()


def projection(moved: list[Tensor], like: list[Tensor]) -> float:
    """Return how far a movement goes along another, 1 if as far."""
    return float(
        sum((a * b).sum() for a, b in zip(moved, like, strict=True)) / sum((b * b).sum() for b in like)
    )


@pytest.mark.parametrize("kind", TYPES)
def test_tiny_updates_move_bfloat16_weights(kind: str, llama: Build, configure: Configure) -> None:
    """An update is 1e-4 of a weight of 1.5, a fortieth of the distance to the next bfloat16."""
    moved: dict[object, list[Tensor]] = {}
    for dtype, rounding in ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        model = model_in(dtype, llama)
        before = {name: p.detach().clone() for name, p in model.named_parameters() if p.ndim == 2}
        train(model, configure(kind, lr=5e-4, weight_decay=0.0, stochastic_rounding=rounding), 20)
        after = dict(model.named_parameters())
        moved[dtype, rounding] = [after[n].detach().float() - b.float() for n, b in before.items()]
    exact = moved[torch.float32, False]
    assert projection(moved[torch.bfloat16, True], exact) == pytest.approx(1, abs=0.08)
    assert abs(projection(moved[torch.bfloat16, False], exact)) < 0.02


@pytest.mark.parametrize("kind", TYPES)
def test_weight_decay_shrinks_bfloat16_weights(kind: str, llama: Build, configure: Configure) -> None:
    """By a thousandth a step, which rounding to the nearest loses in all but the largest of them."""
    means = {}
    for rounding in (True, False):
        changes = {"lr": 1e-9, "weight_decay": 1e6, "stochastic_rounding": rounding}
        model = model_in(torch.bfloat16, llama)
        optimizer = build_optimizer(model, configure(kind, **changes))
        for _ in range(50):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        optimizer.close()
        matrices = [p.detach().float().abs().mean() for p in model.parameters() if p.ndim == 2]
        means[rounding] = torch.stack(matrices) / 1.5
    torch.testing.assert_close(means[True], torch.full_like(means[True], 0.999**50), rtol=0, atol=2e-3)
    if kind != "adamw":
        assert (means[False] > 0.97).any()


def test_adamws_second_moment_falls_in_float32(llama: Build, configure: Configure) -> None:
    model = model_in(torch.bfloat16, llama)
    optimizer = build_optimizer(model, configure("adamw", beta2=0.999, stochastic_rounding=True))
    for size in (1.0, 0.0, 0.0, 0.0):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, size)
        optimizer.step()
    for state in optimizer.optimizers[0].state.values():
        moment = state["exp_avg_sq"]
        torch.testing.assert_close(moment, torch.full_like(moment, 0.001 * 0.999**3), rtol=1e-5, atol=0)


def test_bits_are_those_of_a_sum_cut_off_after_16_bits() -> None:
    """Integer by integer, so that another way to compute them is no other run."""
    values = torch.randn(1001, generator=torch.Generator().manual_seed(1))
    drawn = torch.empty(251, dtype=torch.int64)
    drawn.random_(-(2**63), None, generator=torch.Generator().manual_seed(0))
    noise = drawn.view(torch.int16)[:1001].to(torch.int64) % 2**16
    upper = (values.view(torch.int32).to(torch.int64) + noise) // 2**16
    assert torch.equal(rounded(values).view(torch.int16).to(torch.int64), upper)


@pytest.mark.parametrize("kind", TYPES)
def test_moments_are_float32_and_what_the_preflight_counts(
    kind: str, llama: Build, configure: Configure
) -> None:
    config = configure(kind, stochastic_rounding=True)
    model = model_in(torch.bfloat16, llama)
    train_and_keep = build_optimizer(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    train_and_keep.step()
    temporary = peak_bytes(train_and_keep.step)
    train_and_keep.close()
    states = [s for each in train_and_keep.optimizers for s in each.state.values()]
    tensors = [value for state in states for value in state.values() if value.ndim]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    projections = [getattr(each, "_projections", {}).values() for each in train_and_keep.optimizers]
    taken = sum(t.nbytes for t in tensors) + sum(p.nbytes for held in projections for _, p in held)
    sizes = {"hidden": 64, "intermediate": 48, "heads": 4, "key_heads": 2, "head_size": 16}
    student = Dimensions(layers=1, **sizes, vocabulary=50, tied=False, weight_bytes=2, vectors=128)
    memory = optimizer_memory(student, config)
    assert memory.state == pytest.approx(taken, rel=1e-3)
    assert temporary == pytest.approx(memory.temporary, rel=0.05)


@pytest.mark.parametrize("kind", ["muon", "adamw", "apollo"])
def test_the_random_numbers_follow_the_runs_seed(kind: str, llama: Build, configure: Configure) -> None:
    ended = []
    for seed in (1, 1, 2):
        model = model_in(torch.bfloat16, llama)
        torch.manual_seed(seed)
        train(model, configure(kind, lr=5e-4, apollo={"rank": 64}, stochastic_rounding=True), 3)
        ended.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, ended[0], ended[1]))
    assert not all(map(torch.equal, ended[0], ended[2]))


def test_shards_round_differently_and_replicas_alike() -> None:
    found = []
    for name in ("adamw", "adamw", "adamw of process 1"):
        rounding, target = StochasticRounding(name, 3), torch.zeros(2, 50, dtype=torch.bfloat16)
        rounding.begin([{}])
        rounding.copy_([target[0], target[1]], torch.full((100,), 1 + 2**-9))
        assert not torch.equal(target[0], target[1])
        found.append(target)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_other_dtypes_are_not_rounded(llama: Build, configure: Configure) -> None:
    """As in a model whose norms are float32."""
    mixed, plain = (llama() for _ in range(2))
    for model in (mixed, plain):
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(torch.bfloat16 if "mlp" in name else torch.float32)
    train(mixed, configure("adamw", stochastic_rounding=True), 3)
    train(plain, configure("adamw"), 3)
    for (name, mine), theirs in zip(mixed.named_parameters(), plain.parameters(), strict=True):
        assert mine.dtype == (torch.bfloat16 if "mlp" in name else torch.float32)
        if "mlp" not in name:
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=8),
    st.integers(1, 40),
)
def test_every_row_is_in_one_piece_of_a_bounded_size(shapes: list[tuple[int, int]], most: int) -> None:
    rows, sizes = [r for r, _ in shapes], [s for _, s in shapes]
    found = list(pieces(rows, sizes, most))
    taken = [(index, row) for piece in found for index, cut in piece for row in range(cut.start, cut.stop)]
    assert taken == [(index, row) for index, count in enumerate(rows) for row in range(count)]
    for piece in found:
        elements = sum(sizes[index] * (cut.stop - cut.start) for index, cut in piece)
        assert elements <= max(most, *(sizes[index] for index, _ in piece))
        assert elements <= most or len(piece) == 1


def test_small_pieces_take_the_same_step(
    llama: Build, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the random numbers, which is why the weights are float32 but for one."""
    ended = []
    for most in (2**24, 37):
        monkeypatch.setattr(pieces, "__defaults__", (most,))
        model = llama()
        model.lm_head.weight.data = model.lm_head.weight.data.bfloat16()
        train(model, configure("adamw", stochastic_rounding=True), 3)
        ended.append({name: p.detach() for name, p in model.named_parameters() if name != "lm_head.weight"})
    assert all(torch.equal(value, ended[1][name]) for name, value in ended[0].items())


def test_freezing_continues_the_rounding_sequence(llama: Build, configure: Configure) -> None:
    """A resumed run builds its optimizers without the frozen parameters, and has the same bits."""
    model = model_in(torch.bfloat16, llama)
    optimizer = build_optimizer(model, configure("muon", stochastic_rounding=True))
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    before = copy.deepcopy([dict(g, params=()) for o in optimizer.optimizers for g in o.param_groups])
    model.lm_head.weight.requires_grad_(False)
    torch.manual_seed(77)
    optimizer.leave_out_frozen()
    assert [dict(g, params=()) for o in optimizer.optimizers for g in o.param_groups] == before
    assert {group["rounding_step"] for group in before} == {3}


def test_weights_in_float32_are_refused(llama: Build, configure: Configure) -> None:
    with pytest.raises(
        ConfigError, match=r"^stage2\.optimizer\.stochastic_rounding: .* float32, .*write false"
    ):
        build_optimizer(llama(), configure("muon", stochastic_rounding=True), key="stage2.optimizer")


def test_loaded_step_count_stays_on_the_cpu() -> None:
    """It is read in each step, which would wait for the device."""
    loaded = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2, 2), "exp_avg_sq": torch.zeros(2, 2)}
    weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16, device="meta"))
    optimizer = RoundedAdamW([{"params": [weight]}], rounding=StochasticRounding("adamw", 0))
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: loaded}})
    places = {name: tensor.device.type for name, tensor in optimizer.state[weight].items()}
    assert places == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}
