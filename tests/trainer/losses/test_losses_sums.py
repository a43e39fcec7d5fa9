"""How distances and parts are summed: layer weights, the combined loss, the schedule of its weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounter

from trainer.config import DistillScheduleConfig
from trainer.losses.hidden_distances import WITHOUT_HEAD, HeadKl
from trainer.losses.hidden_state_loss import (
    combined_loss,
    distill_weight_at,
    hidden_loss,
    layer_weights,
)
from trainer.quant.warmup import SharedScalar

HEAD = nn.Linear(8, 11, bias=False).requires_grad_(False)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("uniform", [1 / 3] * 3),
        ("progressive", [1 / 6, 2 / 6, 3 / 6]),
        ("exponential", [2 / 14, 4 / 14, 8 / 14]),
        ((0.0, 1.0, 4.0), [0.0, 0.2, 0.8]),
    ],
    ids=str,
)
def test_layer_weights(kind: str | tuple[float, ...], expected: list[float]) -> None:
    assert layer_weights(kind, 3) == pytest.approx(expected)


def test_exponential_weights_of_many_layers_stay_finite() -> None:
    assert sum(layer_weights("exponential", 2000)) == pytest.approx(1)


def test_a_list_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 weights for 3 layers"):
        layer_weights([1, 2], 3)


@pytest.mark.parametrize("distance", WITHOUT_HEAD)
def test_the_hidden_loss_is_the_weighted_sum_over_layers(distance: str) -> None:
    far = WITHOUT_HEAD[distance]
    ours = [torch.randn(2, 3, 8, requires_grad=True) for _ in range(2)]
    theirs = [torch.randn(2, 3, 8) for _ in range(2)]
    loss = hidden_loss(ours, theirs, distances=[far, far], weights=[0.25, 0.75])
    each = [far(s, t) for s, t in zip(ours, theirs, strict=True)]
    torch.testing.assert_close(loss.total, 0.25 * each[0] + 0.75 * each[1])
    torch.testing.assert_close(loss.by_layer, torch.stack(each).detach())
    assert not loss.by_layer.requires_grad


@pytest.mark.parametrize(
    ("lm_loss_weight", "distill_weight", "expected"),
    [(0.0, 1.0, 1.0), (1.0, 1.0, 5.0), (0.25, 1.0, 2.0), (0.25, 0.5, 0.375 + 1.25), (0.0, 0.0, 0.0)],
)
def test_the_combined_loss(lm_loss_weight: float, distill_weight: float, expected: float) -> None:
    loss = combined_loss(
        distill=torch.tensor(1.0),
        predictions=torch.tensor(10.0),
        lm_loss_weight=lm_loss_weight,
        distill_weight=torch.tensor(distill_weight),
    )
    assert loss.item() == pytest.approx(expected)


def test_distillation_weight_is_a_tensor_changed_in_place() -> None:
    weight = SharedScalar(1.0)
    part = {"distill": torch.tensor(2.0), "predictions": torch.tensor(0.0)}
    captured = weight.value
    weight.set(0.25)
    assert combined_loss(**part, lm_loss_weight=0.0, distill_weight=captured).item() == 0.5


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does it itself
def test_a_new_weight_does_not_compile_the_loss_again() -> None:
    """Nor does anything else of the loss break the graph."""
    states = [torch.randn(2, 3, 8) for _ in range(4)]

    def loss(distill_weight: torch.Tensor) -> torch.Tensor:
        far = [WITHOUT_HEAD["mse_normalized"], HeadKl(HEAD, None)]
        distill = hidden_loss(states[:2], states[2:], distances=far, weights=[0.25, 0.75]).total
        zero = torch.tensor(0.0)
        return combined_loss(
            distill=distill, predictions=zero, lm_loss_weight=0.5, distill_weight=distill_weight
        )

    counter = CompileCounter()
    compiled = torch.compile(loss, backend=counter, fullgraph=True)
    weight = SharedScalar(1.0)
    for value in (1.0, 0.5, 0.25):
        weight.set(value)
        torch.testing.assert_close(compiled(weight.value), loss(weight.value))
    assert counter.frame_count == 1


def schedule(kind: str, initial: float, final: float) -> DistillScheduleConfig:
    return DistillScheduleConfig(type=kind, initial=initial, final=final)


def test_cosine_schedule_matches_the_notebook() -> None:
    """0.5 → 0.29 at step 900 of 2000; a line would be at 0.275."""
    assert distill_weight_at(schedule("cosine", 0.5, 0.0), 900, 2000) == pytest.approx(0.29, abs=0.002)


def test_linear_schedule_is_straight() -> None:
    values = [distill_weight_at(schedule("linear", 1.0, 0.2), step, 5) for step in range(5)]
    assert values == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_constant_stays_at_the_initial_weight() -> None:
    assert {distill_weight_at(schedule("constant", 0.7, 0.0), step, 5) for step in range(5)} == {0.7}


@given(
    kind=st.sampled_from(["linear", "cosine"]),
    initial=st.floats(0, 10),
    final=st.floats(0, 10),
    steps=st.integers(2, 50),
)
def test_schedules_are_monotonic_between_their_ends(
    kind: str, initial: float, final: float, steps: int
) -> None:
    values = [distill_weight_at(schedule(kind, initial, final), step, steps) for step in range(steps)]
    assert values[0] == initial
    assert values[-1] == pytest.approx(final, abs=1e-9)
    assert values == pytest.approx(sorted(values, reverse=initial > final), abs=1e-9)


def test_a_stage_of_one_step_takes_the_initial_weight() -> None:
    assert distill_weight_at(schedule("linear", 0.5, 0.0), 0, 1) == 0.5
