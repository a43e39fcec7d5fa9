"""Scales of ranges: positions and values, normal distributions cut off at the bounds, and steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import truncnorm

from sweeps.space.definition import Condition, Range
from sweeps.space.scale import example, from_unit, is_level, level, levels, share_within, to_unit

UNIFORM = [
    Range(name="x", min=0.0, max=1.0, kind="float"),
    Range(name="lr", min=1e-6, max=1e-2, kind="float", log=True),
    Range(name="w", min=-1e308, max=1e308, kind="float"),
]


def normal(low: float, high: float, mean: float, sd: float) -> Range:
    return Range(name="n", min=low, max=high, kind="float", normal=(mean, sd))


NORMAL = [
    normal(-1.0, 2.0, 0.3, 0.7),
    normal(5.0, 9.0, 0.0, 2.0),  # the upper tail
    normal(-9.0, -5.0, 0.0, 2.0),
    normal(-100.0, 100.0, 0.0, 1.0),  # bounds that no number comes near
    Range(name="l", min=1e-4, max=1.0, kind="float", log=True, normal=(-4.6, 1.0)),
]


@given(st.floats(0, 1), st.sampled_from(UNIFORM))
def test_positions_on_uniform_scales_go_there_and_back(unit: float, parameter: Range):
    value = from_unit(parameter, unit)
    assert math.isfinite(value)
    assert to_unit(parameter, value) == pytest.approx(unit, abs=1e-12)


@given(st.floats(0, 1), st.sampled_from(NORMAL))
def test_positions_on_normal_scales_go_there_and_back(unit: float, parameter: Range):
    value = from_unit(parameter, unit)
    slack = 1e-9 * (1 + abs(value))
    assert parameter.min - slack <= value <= parameter.max + slack
    assert to_unit(parameter, value) == pytest.approx(unit, abs=1e-9)


@pytest.mark.parametrize("parameter", NORMAL, ids=str)
@pytest.mark.parametrize("unit", [0.001, 0.3, 0.5, 0.999])
def test_normal_scale_is_the_truncated_quantile(parameter: Range, unit: float):
    assert parameter.normal is not None
    mean, sd = parameter.normal
    low, high = ((math.log(b) if parameter.log else b) - mean for b in (parameter.min, parameter.max))
    expected = float(truncnorm(low / sd, high / sd, loc=mean, scale=sd).ppf(unit))
    assert from_unit(parameter, unit) == pytest.approx(
        math.exp(expected) if parameter.log else expected, rel=1e-6
    )


def test_share_between_bounds_is_that_of_the_distribution():
    assert share_within(normal(-1.0, 1.0, 0.0, 1.0)) == pytest.approx(0.6826895)
    assert share_within(normal(3.0, 4.0, 0.0, 1.0)) == pytest.approx(0.00131823, rel=1e-5)


def test_steps_are_the_numbers_that_a_person_would_write():
    tenths = Range(name="t", min=0.1, max=0.9, kind="float", step=0.1)
    count = levels(tenths)
    assert count == 9
    assert [level(tenths, at) for at in range(count)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    fifties = Range(name="f", min=50, max=200, kind="int", step=50)
    assert [level(fifties, at) for at in range(levels(fifties) or 0)] == [50, 100, 150, 200]
    assert levels(UNIFORM[0]) is None


def test_only_steps_are_levels():
    tenths = Range(name="t", min=0.1, max=0.9, kind="float", step=0.1)
    assert is_level(tenths, 0.1 + 0.2)
    assert not is_level(tenths, 0.35)
    assert not is_level(tenths, math.nan)
    assert is_level(UNIFORM[0], 0.35)


@pytest.mark.parametrize(
    ("relation", "number", "expected"), [(">", 0, 9), ("<", 3, 0), (">=", 9, 9), ("==", 4, 4), ("<=", 0, 0)]
)
def test_the_example_of_a_condition_satisfies_it(relation: str, number: int, expected: int):
    parent = Range(name="n", min=0, max=9, kind="int")
    condition = Condition(parent="n", value=number, relation=relation)
    value = example(condition, parent)
    assert value == expected
    assert condition.holds({"n": value})
