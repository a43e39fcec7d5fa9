"""Health checks: silent on noise of a stated size, and heard when a fault is put in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.telemetry.health import (
    BLOCK_SECONDS,
    BLOCK_STEPS,
    GROWTH_BLOCKS,
    PLATEAU_STEPS,
    Health,
    HealthWarning,
    memory_growth,
    plateau,
    throughput_shift,
)

NEVER_OFF = 0.045  # of rates: (1 - a) / (1 + a) > 0.9
NEVER_CREEPS = 0.025  # of memory: 2a / (1 - a) < 3 · 0.02

seeds = st.integers(0, 2**32 - 1)


def noise(size: float) -> st.SearchStrategy[float]:
    """Any factor within so much of 1, chosen by an adversary."""
    return st.floats(1 - size, 1 + size)


class TestPlateau:
    @settings(derandomize=True)
    @given(seeds, st.floats(0.01, 0.3), st.floats(1.0, 8.0))
    def test_loss_falling_beyond_noise_is_no_plateau(self, seed: int, deviation: float, start: float) -> None:
        """Over 500 steps it falls by ten standard errors of their mean, as little as 0.0045 for noise of 0.01."""
        chance = random.Random(seed)
        slope = 10 * deviation * (2 / 500) ** 0.5 / 500
        losses = [start - slope * step + chance.gauss(0, deviation) for step in range(PLATEAU_STEPS)]
        assert plateau(losses) is None

    @given(st.floats(-5, 8), st.floats(1e-6, 1e-2))
    def test_a_line_that_falls_is_none_however_slowly(self, start: float, slope: float) -> None:
        assert plateau([start - slope * step for step in range(PLATEAU_STEPS)]) is None

    @given(st.floats(-5, 8), st.floats(0, 1e-2))
    def test_a_line_that_does_not_fall_is_one(self, start: float, slope: float) -> None:
        assert plateau([start + slope * step for step in range(PLATEAU_STEPS)]) is not None

    @settings(derandomize=True)
    @given(seeds, st.floats(0.01, 0.3), st.floats(1.0, 8.0))
    def test_plateau_under_noise_is_found_in_3000_steps(
        self, seed: int, deviation: float, level: float
    ) -> None:
        chance = random.Random(seed)
        losses = (level + chance.gauss(0, deviation) for _ in range(3000))
        assert [w.check for w in warnings_of(fed(losses))][:1] == ["plateau"]


class TestThroughput:
    @given(st.floats(1, 1e6), st.lists(noise(NEVER_OFF), max_size=60))
    def test_rates_within_4_5_percent_raise_no_warning(self, level: float, factors: Sequence[float]) -> None:
        rates = [level * factor for factor in factors]
        assert all(throughput_shift(rates[:n]) is None for n in range(len(rates) + 1))

    @given(
        st.lists(noise(NEVER_OFF), min_size=5, max_size=60),
        st.sampled_from([0.3, 0.8, 1.25, 3.0]),
        st.lists(noise(NEVER_OFF), min_size=3, max_size=3),
    )
    def test_change_by_a_fifth_is_found_in_three_blocks(
        self, before: Sequence[float], change: float, after: Sequence[float]
    ) -> None:
        rates = [100 * f for f in before] + [100 * change * f for f in after]
        assert throughput_shift(rates[:-1]) is None
        found = throughput_shift(rates)
        assert found is not None
        assert found[0] / found[1] == pytest.approx(change, rel=0.12)

    @given(st.lists(st.floats(0.01, 100), max_size=7))
    def test_nothing_is_said_before_there_is_a_median(self, rates: Sequence[float]) -> None:
        assert throughput_shift(rates) is None

    @pytest.mark.parametrize("odd", [[0.5, 0.5, 1.0], [0.5, 1.5, 0.5], [1.0, 0.1, 0.1]])
    def test_one_or_two_slow_blocks_are_noise(self, odd: list[float]) -> None:
        assert throughput_shift([1.0] * 20 + odd) is None

    @settings(derandomize=True, max_examples=20, deadline=None)
    @given(seeds)
    def test_steps_that_vary_by_a_third_are_noise(self, seed: int) -> None:
        """A shared CPU: each of 6,000 steps of about 1.5 s takes up to 33 % more or less."""
        chance = random.Random(seed)
        seconds = (1.5 * chance.uniform(0.67, 1.33) for _ in range(6000))
        assert warnings_of(timed(seconds)) == []


class TestMemory:
    @given(st.floats(1, 1e12), st.lists(noise(NEVER_CREEPS), max_size=120))
    def test_memory_within_2_5_percent_raises_no_warning(
        self, level: float, factors: Sequence[float]
    ) -> None:
        assert memory_growth([level * factor for factor in factors]) is None

    @given(
        st.integers(0, 120),
        st.lists(noise(0.001), min_size=GROWTH_BLOCKS, max_size=120),
        st.floats(1.05, 4),
    )
    def test_a_jump_is_no_creep(self, at: int, factors: Sequence[float], jump: float) -> None:
        assert memory_growth([f * (jump if i >= at else 1) for i, f in enumerate(factors)]) is None

    @given(st.floats(1e6, 1e11), st.floats(0.1, 3.0), st.lists(noise(0.001), min_size=40, max_size=120))
    def test_steady_growth_by_a_tenth_and_more_is_one(
        self, start: float, growth: float, factors: Sequence[float]
    ) -> None:
        memory = [start * (1 + growth * i / len(factors)) * f for i, f in enumerate(factors)]
        found = memory_growth(memory)
        assert found is not None
        assert found[1] > found[0] * 1.06


Feed = Iterator[list[HealthWarning]]


def fed(losses: Iterator[float], lambdas: Callable[[int], float] = lambda step: 1.0) -> Feed:
    """Losses as steps too quick to make blocks."""
    health = Health("stage2")
    for number, loss in enumerate(losses, start=1):
        yield health.step(
            number,
            loss=loss,
            settings={"lambda": lambdas(number)},
            tokens=1,
            seconds=0.0,
            memory_bytes=lambda: 0,
        )


def timed(seconds: Iterator[float], memory: Callable[[int], float] = lambda step: 2**30) -> Feed:
    """Steps of 1,000 tokens whose loss falls."""
    health = Health("stage2")
    for number, each in enumerate(seconds, start=1):
        yield health.step(
            number,
            loss=-float(number),
            settings={},
            tokens=1000,
            seconds=each,
            memory_bytes=lambda n=number: memory(n),
        )


def warnings_of(feed: Feed) -> list[HealthWarning]:
    return [warning for warnings in feed for warning in warnings]


def test_plateau_warns_once_until_the_loss_falls() -> None:
    def losses() -> Iterator[float]:
        for level in (4.0, 2.0):
            yield from (level + 0.001 * (1500 - step) for step in range(1500))
            yield from [level] * 2500

    warnings = warnings_of(fed(losses()))
    assert [(w.check, w.stage) for w in warnings] == [("plateau", "stage2")] * 2
    assert 1500 < warnings[0].step <= 2600
    assert 5500 < warnings[1].step <= 6600
    assert warnings[0].message.startswith(f"stage2 step {warnings[0].step}: the loss ")


def test_loss_rising_with_lambda_is_no_plateau() -> None:
    rising = (0.001 * step for step in range(2500))
    warnings = warnings_of(fed(rising, lambdas=lambda step: min(1.0, step / 1000)))
    assert [w.step for w in warnings] == [2000]


def test_a_slow_down_is_told_once_while_it_lasts() -> None:
    seconds = [2.0] * 400 + [3.0] * 200 + [2.0] * 400 + [3.0] * 200
    warnings = warnings_of(timed(iter(seconds)))
    assert [w.check for w in warnings] == ["throughput", "throughput"]
    assert 400 < warnings[0].step <= 400 + 4 * BLOCK_STEPS
    for number in (" 333 tokens per second", "-33%", "(500)"):
        assert number in warnings[0].message


def test_the_first_block_counts_for_nothing() -> None:
    """It compiles; and its memory is that of a process that still warms up."""
    seconds = [600.0] + [2.0] * 400
    assert warnings_of(timed(iter(seconds))) == []


def test_a_leak_is_told_with_its_numbers() -> None:
    warnings = warnings_of(timed(iter([2.0] * 2000), memory=lambda step: 2**30 + step * 2**18))
    assert [w.check for w in warnings] == ["memory"]
    assert "from 1.01 GiB to 1.16 GiB over 40 " in warnings[0].message


def test_quick_steps_make_longer_blocks() -> None:
    """A block has 30 s, so that 3,000 steps of 20 ms are two of them and say nothing."""
    asked: list[int] = []
    warnings_of(timed(iter([0.02] * 3100), memory=lambda step: asked.append(step) or 1.0))
    assert len(asked) == 1
    assert asked[0] == pytest.approx(2 * BLOCK_SECONDS / 0.02, abs=2)
