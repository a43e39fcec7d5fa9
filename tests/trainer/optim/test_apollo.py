"""Apollo against Algorithm 1 of its paper, implemented again in numpy and float64.

No package is the reference: apollo-torch may not be used commercially, and pytorch_optimizer 4.1 scales the
projected gradient and projects it back, where the paper scales the gradient itself.
"""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from trainer.optim import apollo
from trainer.optim.apollo import Apollo

STEPS, LR, BETAS, EPS, DECAY = 7, 0.02, (0.9, 0.95), 1e-8, 0.1


def build(parameters: list[nn.Parameter], **changes: object) -> Apollo:
    options = {
        "lr": LR,
        "betas": BETAS,
        "eps": EPS,
        "weight_decay": DECAY,
        "rank": 2,
        "tensorwise": False,
        "scale": None,
        "update_interval": 3,
        "seed": 0,
    }
    return Apollo(parameters, **options | changes)


def gradients(shape: tuple[int, int], steps: int = STEPS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) * 10.0**-step for step in range(steps)]


def reference(
    weight: np.ndarray, given: list[np.ndarray], projections: list[np.ndarray], *, mini: bool, alpha: float
) -> np.ndarray:
    """The paper's loop for W [m, n] with m <= n; `projections` is one [r, m] per step."""
    moment, square, before = 0.0, 0.0, None
    for t, (gradient, projection) in enumerate(zip(given, projections, strict=True), start=1):
        low = projection @ gradient
        moment = BETAS[0] * moment + (1 - BETAS[0]) * low
        square = BETAS[1] * square + (1 - BETAS[1]) * low**2
        adam = moment / (1 - BETAS[0] ** t) / (np.sqrt(square / (1 - BETAS[1] ** t)) + EPS)
        if mini:
            scaled = gradient * (np.linalg.norm(adam) / np.linalg.norm(low))
        else:
            scaled = gradient * (np.linalg.norm(adam, axis=0) / np.linalg.norm(low, axis=0))
        norm = np.linalg.norm(scaled)
        if before is not None and norm > 1.01 * before:
            scaled, norm = scaled * (1.01 * before / norm), 1.01 * before
        before = norm
        weight = weight - LR * DECAY * weight - LR * alpha * scaled
    return weight


@pytest.mark.parametrize("mini", [False, True], ids=["apollo", "mini"])
@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.7])
def test_it_steps_as_the_paper_says(
    mini: bool, shape: tuple[int, int], scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, rank, drawn = min(shape), 1 if mini else 2, list[np.ndarray]()
    generator = np.random.default_rng(0)

    def normal(rank: int, small: int, name: str, device: torch.device) -> torch.Tensor:
        drawn.append(generator.normal(size=(rank, small)).astype(np.float32))
        return torch.from_numpy(drawn[-1])

    monkeypatch.setattr(apollo, "random_projection", normal)
    weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    start, given = weight.detach().clone().double().numpy(), gradients(shape)
    optimizer = build([weight], rank=rank, tensorwise=mini, scale=scale)
    for gradient in given:
        weight.grad = gradient.clone()
        optimizer.step()

    assert [matrix.shape for matrix in drawn] == [(rank, small)] * 3  # anew at steps 1, 4 and 7
    turned = (lambda a: a) if shape[0] < shape[1] else np.transpose
    expected = reference(
        turned(start),
        [turned(gradient.double().numpy()) for gradient in given],
        [drawn[step // 3].astype(np.float64) for step in range(STEPS)],
        mini=mini,
        alpha=scale or (small / rank) ** 0.5,
    )
    np.testing.assert_allclose(turned(weight.detach().numpy()), expected, rtol=2e-5, atol=2e-6)


def test_apollo_mini_moves_along_the_gradient() -> None:
    weight = nn.Parameter(torch.zeros(5, 8))
    optimizer = build([weight], rank=1, tensorwise=True, weight_decay=0.0)
    weight.grad = gradients((5, 8))[0]
    optimizer.step()
    cosine = torch.cosine_similarity(weight.detach().flatten(), -weight.grad.flatten(), dim=0)
    assert cosine.item() == pytest.approx(1, abs=1e-6)


def test_its_step_grows_by_one_hundredth_at_most() -> None:
    weight = nn.Parameter(torch.zeros(4, 6))
    optimizer, sizes = build([weight], weight_decay=0.0, update_interval=100), list[float]()
    gradient = gradients((4, 6))[0]
    for sign in [1, -1, 1, -1, *[1] * 12]:  # opposite gradients leave little momentum; then it would jump
        before = weight.detach().clone()
        weight.grad = sign * gradient
        optimizer.step()
        sizes.append((weight.detach() - before).norm().item())
    growth = [after / before for before, after in itertools.pairwise(sizes)]
    assert min(growth) < 0.5
    assert max(growth) == pytest.approx(1.01, rel=1e-4)


def test_zero_gradients_do_not_block_later_steps() -> None:
    weight = nn.Parameter(torch.ones(4, 6))
    optimizer = build([weight], weight_decay=0.0)
    weight.grad = torch.zeros(4, 6)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(4, 6))
    weight.grad = gradients((4, 6))[0]
    optimizer.step()
    assert (weight.detach() - 1).square().mean().sqrt() > 0.1 * LR


def test_rank_is_capped_at_the_smaller_side() -> None:
    weight = nn.Parameter(torch.zeros(4, 6))
    optimizer = build([weight], rank=100)
    weight.grad = gradients((4, 6))[0]
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].shape == (4, 6)


def test_projections_are_normal_and_determined_by_name() -> None:
    cpu = torch.device("cpu")
    matrix = apollo.random_projection(50, 400, "7/0/0", cpu)
    assert matrix.mean().item() == pytest.approx(0, abs=0.01)
    assert matrix.var().item() == pytest.approx(1 / 50, rel=0.05)
    assert torch.equal(matrix, apollo.random_projection(50, 400, "7/0/0", cpu))
    assert not torch.equal(matrix, apollo.random_projection(50, 400, "7/0/1", cpu))


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"update_interval": 2}, {"rank": 3}, {"scale": 2.0}], ids=str
)
def test_every_option_counts(change: dict[str, float]) -> None:
    ended = []
    for options in ({}, change):
        weight = nn.Parameter(torch.ones(5, 8))
        optimizer = build([weight], **options)
        for gradient in gradients((5, 8)):
            weight.grad = gradient.clone()
            optimizer.step()
        ended.append(weight.detach())
    assert not torch.equal(*ended)


def test_state_is_float32_and_smaller_than_adamws() -> None:
    weight = nn.Parameter(torch.ones(8, 20, dtype=torch.bfloat16))
    optimizer = build([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "exp_avg": (2, 20),
        "exp_avg_sq": (2, 20),
        "scaled_norm": (),
    }
    assert {value.dtype for value in state.values()} == {torch.float32}


def test_state_dict_round_trip_keeps_float32_state() -> None:
    weight = nn.Parameter(torch.ones(5, 8, dtype=torch.bfloat16))
    optimizer = build([weight])
    for gradient in gradients((5, 8), 4):
        weight.grad = gradient.bfloat16()
        optimizer.step()
    other = nn.Parameter(weight.detach().clone())
    resumed = build([other], seed=99)  # the kept seed counts, not this one
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for gradient in gradients((5, 8), 4):
        weight.grad, other.grad = gradient.bfloat16(), gradient.bfloat16()
        optimizer.step()
        resumed.step()
    assert torch.equal(weight, other)
