"""Costs of stages, as the space states them or as trials reported their seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.search.encoding import Encoding
from sweeps.search.stage_costs import SMALLEST, StageCosts
from sweeps.space.definition import Choice, Objective, Program, Range, Space, Stage, Value
from sweeps.space.domain import Domain
from sweeps.space.stages import Stages
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun


def costs(first: str = "", second: str = "", *, shortest: int = 10, longest: int = 1000) -> StageCosts:
    space = Space(
        name="case",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Range(name="first.steps", min=shortest, max=longest, kind="int", log=True),
            Choice(name="first.kind", values=("a", "b")),
            Range(name="second.lr", min=0.0, max=1.0, kind="float"),
        ),
        program=Program(kind="function", function="m:f"),
        stages=(
            Stage(name="one", parameters=("first.*",), cost=first),
            Stage(name="two", parameters=("second.*",), cost=second),
        ),
    )
    return StageCosts(Stages(space), Encoding(Domain(space)))


def parameters(steps: int = 100, kind: str = "a", lr: float = 0.5) -> dict[str, Value]:
    return {"first.steps": steps, "first.kind": kind, "second.lr": lr}


def trial(values: Mapping[str, Value], *seconds: float | None, reused: bool = False) -> Trial:
    runs = [
        StageRun(name=name, key="", cost=0.0, seconds=s, reused_from=9 if reused else None)
        for name, s in zip(("one", "two"), seconds, strict=False)
    ]
    return Trial(trial=0, status="completed", parameters=values, generator="sobol", stages=tuple(runs))


def test_stated_costs_ignore_reports():
    stated = costs("2*first.steps", "50").known([trial(parameters(), 1.0, 1.0)])
    assert stated(parameters(steps=100)) == (200.0, 50.0)
    assert stated(parameters(steps=10)) == (20.0, 50.0)
    assert costs("2*first.steps", "200").first_share([]) == pytest.approx(0.5)


def test_a_stage_that_costs_nothing_has_a_logarithm():
    for stated in (costs("0", "100"), costs("100", "0"), costs("0", "0"), costs("-3*first.steps", "100")):
        found = stated.known([])(parameters())
        assert all(cost > 0 for cost in found)
    assert costs("0", "100").first_share([]) == pytest.approx(SMALLEST, rel=0.01)


def test_without_any_report_stages_cost_the_same():
    assert costs().first_share([]) == 0.5
    assert costs("100", "").first_share([]) == 0.5


def test_a_stage_without_a_report_costs_the_mean_of_the_others():
    assert costs().known([trial(parameters(), 30.0)])(parameters()) == pytest.approx((30.0, 30.0))


@pytest.mark.parametrize(("shortest", "longest"), [(10, 1000), (1, 64)])
@given(rate=st.floats(0.5, 2.0), data=st.data())
def test_seconds_follow_the_length_that_they_depend_on(
    shortest: int, longest: int, rate: float, data: st.DataObject
):
    steps = st.integers(shortest, longest)
    lengths = [shortest, *data.draw(st.lists(steps, min_size=8, max_size=12, unique=True)), longest]
    records = [trial(parameters(steps), rate * steps, 20.0) for steps in lengths]
    found = costs(shortest=shortest, longest=longest).known(records)
    twice, most = 2 * shortest, longest * 4 // 5
    short, long = found(parameters(twice)), found(parameters(most))
    assert short[1] == pytest.approx(20.0)
    assert long[1] == pytest.approx(20.0)
    assert (most / twice) ** 0.75 < long[0] / short[0] <= most / twice * 1.01


def test_an_option_that_takes_longer_is_predicted_to():
    records = [trial(parameters(kind=kind), 100.0 if kind == "a" else 400.0, 20.0) for kind in "abababab"]
    found = costs().known(records)
    assert found(parameters(kind="b"))[0] > 3 * found(parameters(kind="a"))[0]


def test_parameters_of_a_later_stage_say_nothing_of_an_earlier_one():
    records = [trial(parameters(lr=at / 4), 10.0 * (1 + at), 20.0) for at in range(5)]
    found = costs().known(records)
    assert found(parameters(lr=0.0))[0] == found(parameters(lr=1.0))[0]


def test_a_reused_stage_is_not_counted_again():
    records = [trial(parameters(), 10.0, 20.0), trial(parameters(), 1000.0, 20.0, reused=True)]
    assert costs().known(records)(parameters()) == pytest.approx((10.0, 20.0))


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=5), st.floats(0, 1), st.integers(10, 1000))
def test_predictions_stay_near_what_was_reported(seconds: list[float], lr: float, steps: int):
    records = [trial(parameters(lr=at / 5), 1.0, s) for at, s in enumerate(seconds)]
    found = costs().known(records)(parameters(steps, "b", lr))
    assert all(math.isfinite(cost) and cost > 0 for cost in found)
    assert found[1] <= max(seconds) * math.e * 1.01
