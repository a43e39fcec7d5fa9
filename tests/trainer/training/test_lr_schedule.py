"""The learning rate and lambda over a stage."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import LambdaWarmupConfig, ScheduleConfig
from trainer.quant.warmup import lambda_at

WARMUP = LambdaWarmupConfig(
    enabled=True, start=0.0, warmup_steps=4, schedule="linear", weights=True, activations=True
)


def test_warmup_stable_decay_at_chosen_steps() -> None:
    config = ScheduleConfig(warmup_steps=4, decay_fraction=0.5, final_lr_ratio=0.2)
    factors = [config.lr_factor(step, 20) for step in range(20)]
    assert factors[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert factors[9] == 1.0
    assert factors[10] == pytest.approx(0.92)
    assert factors[-1] == pytest.approx(0.2)


@given(
    warmup=st.integers(0, 50),
    decay=st.floats(0, 1),
    ratio=st.floats(0, 1),
    steps=st.integers(1, 60),
)
def test_the_factor_is_between_zero_and_one_and_rises_then_falls(
    warmup: int, decay: float, ratio: float, steps: int
) -> None:
    config = ScheduleConfig(warmup_steps=min(warmup, steps), decay_fraction=decay, final_lr_ratio=ratio)
    factors = [config.lr_factor(step, steps) for step in range(steps)]
    assert all(0 <= factor <= 1 for factor in factors)
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_lambda_rises_to_one_and_stays() -> None:
    assert [lambda_at(WARMUP, step) for step in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_lambda_rises_from_its_start(schedule: Literal["linear", "cosine"]) -> None:
    config = dataclasses.replace(WARMUP, schedule=schedule, start=0.5)
    ramp = [lambda_at(config, step) for step in range(6)]
    plain = [lambda_at(dataclasses.replace(config, start=0.0), step) for step in range(6)]
    assert ramp == pytest.approx([0.5 + each / 2 for each in plain])
    assert (ramp[0], ramp[4:]) == (0.5, [1.0, 1.0])


def test_a_start_at_one_is_no_warmup() -> None:
    config = dataclasses.replace(WARMUP, start=1.0)
    assert {lambda_at(config, step) for step in range(6)} == {1.0}


def test_cosine_lambda_has_the_same_ends_and_a_slower_start() -> None:
    config = dataclasses.replace(WARMUP, schedule="cosine")
    assert lambda_at(config, 0) == 0.0
    assert lambda_at(config, 1) < 0.25
    assert lambda_at(config, 2) == pytest.approx(0.5)
    assert lambda_at(config, 4) == 1.0


@pytest.mark.parametrize(("enabled", "steps"), [(False, 10), (True, 0)])
def test_without_a_warmup_lambda_is_one_from_the_start(enabled: bool, steps: int) -> None:
    assert lambda_at(dataclasses.replace(WARMUP, enabled=enabled, warmup_steps=steps), 0) == 1.0
