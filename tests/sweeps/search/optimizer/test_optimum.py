"""What the surrogate says of the optimum of a known, noisy function."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sweeps.errors import SurrogateFailed
from sweeps.export import optimum
from sweeps.search.optimizer import Optimizer, Optimum
from sweeps.space.definition import Choice, Fixed, Goal, Objective, Program, Range, Search, Space
from sweeps.trials.record import Trial

pytestmark = pytest.mark.timeout(600)  # a fit takes seconds, or minutes on a busy machine

NOISE = 0.05


def space(goal: Goal = "minimize", noise: float = NOISE) -> Space:
    return Space(
        name="case",
        objectives=(Objective(metric="loss", goal=goal),),
        program=Program(kind="function", function="m:f"),
        search=Search(sobol=8, seed=7, noise=noise),
        parameters=(
            Range(name="lr", min=1e-3, max=1e-1, kind="float", log=True),
            Range(name="width", min=1, max=5, kind="int"),
            Choice(name="schedule", values=("linear", "cosine", "wsd")),
            Range(name="nothing", min=0, max=1, kind="float"),
            Fixed(name="seed", value=0),
        ),
    )


def records(sign: float = 1.0) -> list[Trial]:
    """Best at lr = 1e-2 and width 5; wsd costs much; `nothing` does nothing."""
    random = np.random.default_rng(3)
    found = []
    for index in range(40):
        parameters: dict[str, Any] = {
            "lr": float(10 ** random.uniform(-3, -1)),
            "width": int(random.integers(1, 6)),
            "schedule": ("linear", "cosine", "wsd")[index % 3],
            "nothing": float(random.uniform()),
            "seed": 0,
        }
        loss = math.log10(parameters["lr"] / 1e-2) ** 2 + 0.1 * (5 - parameters["width"])
        loss += 0.5 * (parameters["schedule"] == "wsd") + NOISE * float(random.standard_normal())
        found.append(
            Trial(
                trial=index,
                status="completed",
                parameters=parameters,
                generator="sobol",
                metrics={"loss": sign * loss},
            )
        )
    return found


def found(goal: Goal = "minimize") -> Optimum:
    optimizer = Optimizer(space(goal))
    optimizer.observe(records(1.0 if goal == "minimize" else -1.0))
    return optimizer.view().optimum(optimizer.points(), more=6, seed=1)


@pytest.fixture(scope="module")
def answer() -> Optimum:
    return found()


def test_intervals_hold_the_optimum_and_tell_what_matters(answer: Optimum) -> None:
    by_name = {each.name: each for each in answer.parameters}
    assert list(by_name) == ["lr", "width", "schedule", "nothing"]
    lr, nothing, width = by_name["lr"], by_name["nothing"], by_name["width"]
    (lr_low, lr_high), (low, high) = lr.interval, nothing.interval  # type: ignore[misc]
    assert 1e-3 < lr_low < 1e-2 < lr_high < 0.06  # type: ignore[operator]
    assert high - low > 0.6  # type: ignore[operator]
    assert (width.interval[1], type(width.interval[0])) == (5, int)  # type: ignore[index]
    shares = dict(by_name["schedule"].shares)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["wsd"] < 0.1


def test_curves_follow_the_function_with_the_others_as_chosen(answer: Optimum) -> None:
    by_name = {each.name: each for each in answer.parameters}
    lowest = min(by_name["lr"].curve, key=lambda point: point.mean)
    assert 5e-3 < lowest.value < 2e-2  # type: ignore[operator]
    assert [point.value for point in by_name["width"].curve] == [1, 2, 3, 4, 5]
    schedule = {point.value: point.mean for point in by_name["schedule"].curve}
    assert schedule["wsd"] - schedule["cosine"] == pytest.approx(0.5, abs=0.25)


def test_what_is_stated_is_in_the_unit_of_the_metric(answer: Optimum) -> None:
    assert answer.noise == pytest.approx(NOISE, rel=1e-3)
    assert answer.mean == answer.means[answer.trial] == min(answer.means.values())
    chosen = records()[answer.trial].parameters
    true = math.log10(float(chosen["lr"]) / 1e-2) ** 2 + 0.1 * (5 - int(chosen["width"]))  # type: ignore[arg-type]
    assert answer.mean == pytest.approx(true, abs=3 * answer.sd + NOISE)
    assert 0 < answer.chance < 1
    assert 0 < answer.shortfall < 0.5
    assert list(answer.gains) == sorted(answer.gains)
    assert answer.gains[-1] < answer.shortfall  # no search finds more than there is


def test_maximised_metrics_mirror_minimised_ones(answer: Optimum) -> None:
    mirrored = found("maximize")
    assert mirrored.trial == answer.trial
    assert mirrored.mean == pytest.approx(-answer.mean, abs=1e-3)
    assert mirrored.chance == pytest.approx(answer.chance, abs=0.1)
    assert mirrored.gains[-1] == pytest.approx(answer.gains[-1], abs=0.03)


def test_the_same_records_give_the_same_document() -> None:
    first, second = (optimum.optimum(space(), records(), curves=True) for _ in range(2))
    assert first == second is not None
    assert first["parameters"]["schedule"]["low"] is None
    assert len(first["sentences"]) in (3, 4)


def test_a_null_among_the_options_is_a_value_like_others() -> None:
    """None is no lack of an interval, or of a chosen value."""
    options = Choice(name="clip", values=(None, 1, 2), ordered=True)
    case = replace(space(), parameters=(Range(name="x", min=0, max=1, kind="float"), options))
    trials = [
        Trial(
            trial=index,
            status="completed",
            parameters={"x": index / 30, "clip": options.values[index % 3]},
            generator="sobol",
            metrics={"loss": index / 30 + index % 3},
        )
        for index in range(30)
    ]
    document = optimum.optimum(case, trials, curves=True)
    assert document is not None
    clip = document["parameters"]["clip"]
    assert [clip[key] for key in ("chosen", "low", "high")] == ["null"] * 3
    assert [point["value"] for point in clip["curve"]] == ["null", 1, 2]
    assert clip["shares"][0] == {"value": "null", "share": 1.0}


def test_tight_constraints_take_no_answer_away() -> None:
    x, y = (Range(name=name, min=0, max=1, kind="float") for name in "xy")
    case = replace(
        space(), parameters=(x, y), parameter_constraints=("x + y <= 1.01", "x + y >= 0.99", "x <= 0.97")
    )
    trials = [
        Trial(
            trial=index,
            status="completed",
            parameters={"x": (index + 0.5) / 32, "y": 1 - (index + 0.5) / 32},
            generator="sobol",
            metrics={"loss": ((index + 0.5) / 32 - 0.52) ** 2},
        )
        for index in range(30)
    ]
    document = optimum.optimum(case, trials, curves=True)
    assert document is not None
    assert all(len(each["curve"]) == 1 for each in document["parameters"].values())


def test_results_too_large_to_square_have_no_answer() -> None:
    trials = [replace(r, metrics={"loss": 1e300 * r.metrics["loss"]}) for r in records()]  # type: ignore[operator]
    with pytest.raises(SurrogateFailed, match="the surrogate failed"):
        optimum.optimum(space(), trials)
