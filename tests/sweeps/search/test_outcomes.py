"""The metrics that count, their names and their standard errors."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from sweeps.search.outcomes import Outcomes, out_of_proportion
from sweeps.space.definition import Objective, Program, Range, Search, Space
from sweeps.trials.record import Status, Trial, has_failed


def outcomes(*constraints: str, noise: Literal["inferred", "reported"] | float = "inferred") -> Outcomes:
    return Outcomes(
        Space(
            name="case",
            objectives=(Objective(metric="eval.loss"), Objective(metric="speed", goal="maximize")),
            outcome_constraints=constraints,
            parameters=(Range(name="x", min=0, max=1, kind="float"),),
            program=Program(kind="function", function="m:f"),
            search=Search(noise=noise),
        )
    )


def trial(index: int, status: Status = "completed", **metrics: float | None) -> Trial:
    renamed = {name.replace("__", "."): value for name, value in metrics.items()}
    return Trial(trial=index, status=status, parameters={"x": 0.5}, generator="sobol", metrics=renamed)


def test_objectives_and_constraints_use_search_names():
    found = outcomes("peak - 2*speed <= 40", "speed >= 1")
    assert dict(found.names) == {"eval.loss": "m0", "speed": "m1", "peak": "m2"}
    assert found.objective == "-m0, m1"
    assert found.constraints == ("1.0*m2 + -2.0*m1 <= 40.0", "-1.0*m1 <= -1.0")


def test_only_finite_results_of_ended_trials_count():
    found = outcomes()
    assert found.means(trial(0, eval__loss=1.0, speed=None, other=3.0)) == {"m0": 1.0}
    assert found.missing(trial(0, eval__loss=1.0)) == ["m1"]
    assert found.means(trial(0, "early_stopped", eval__loss=1.0)) == {"m0": 1.0}
    for status in ("pending", "running", "failed", "abandoned"):
        assert found.means(trial(0, status, eval__loss=1.0)) == {}
    assert found.means(trial(0, eval__loss=math.inf, speed=math.nan)) == {}


def test_reported_errors_count_only_if_complete():
    records = [
        trial(0, eval__loss=1.0, eval__loss_sem=0.1, speed=5.0, speed_sem=0.5),
        trial(1, eval__loss=2.0, eval__loss_sem=0.2, speed=6.0),
    ]
    rows = [
        (record.trial, name, mean, sem)
        for record, name, mean, sem in outcomes(noise="reported").table(records)
    ]
    assert rows[0] == (0, "m0", 1.0, 0.1)
    assert rows[2] == (1, "m0", 2.0, 0.2)
    assert [row[:3] for row in rows[1::2]] == [(0, "m1", 5.0), (1, "m1", 6.0)]
    assert all(math.isnan(row[3]) for row in rows[1::2])


def test_the_noise_is_inferred_unless_the_space_says_what_it_is():
    records = [trial(i, eval__loss=1.0, eval__loss_sem=0.1, speed=5.0, peak=3.0) for i in range(2)]
    inferred = outcomes("peak <= 4").table(records)
    assert len(inferred) == 6
    assert all(math.isnan(error) for _, _, _, error in inferred)
    given = {(name, error) for _, name, _, error in outcomes("peak <= 4", noise=0.02).table(records)}
    assert {(name, error) for name, error in given if name != "m2"} == {("m0", 0.02), ("m1", 0.02)}
    assert all(math.isnan(error) for name, error in given if name == "m2")  # a constraint is no objective


def test_objectives_are_bounded_by_worst_non_outlier():
    losses = [1.0, 2.0, 3.0, 4.0, 5.0, 1e6]
    records = [trial(i, eval__loss=loss, speed=-loss) for i, loss in enumerate(losses)]
    assert outcomes().thresholds(records) == ["m0 <= 5.4", "m1 >= -5.4"]
    assert outcomes("eval.loss <= 2").thresholds(records) == ["m1 >= -5.4"]
    assert outcomes().thresholds([trial(0, "running"), trial(1, eval__loss=1.0)]) == []


def test_the_far_end_of_the_present_front_is_no_outlier():
    records = [trial(i, eval__loss=float(loss), speed=0.0) for i, loss in enumerate([1, 2, 3, 4, 5])]
    records.append(trial(5, eval__loss=101.0, speed=9.0))
    assert outcomes().thresholds(records)[0] == "m0 <= 111.0"


def test_a_diverged_trial_of_the_front_bounds_nothing():
    """It is on the front where it is best in another objective, such as a small model's cost."""
    records = [trial(i, eval__loss=float(loss), speed=0.0) for i, loss in enumerate([1, 2, 3, 4, 5])]
    records += [trial(i, eval__loss=1e30, speed=float(i)) for i in (5, 6)]
    assert outcomes().thresholds(records)[0] == "m0 <= 5.4"


@pytest.mark.parametrize(
    ("costs", "far"),
    [
        ([4.0, 4.1, 1e3], [False, False, True]),
        ([4.0, 4.1, 399.0], [False] * 3),
        ([1e300, 4.0, 4.1, sys.float_info.max], [True, False, False, True]),
        ([-4.0, -1e30, 4.0], [False] * 3),
        ([0.0, 0.0, 0.0, 1.0], [False] * 4),
        ([4.0, 1e30], [False, True]),
        ([1e30], [False]),
        ([], []),
    ],
    ids=["thousand", "near", "huge", "best", "zeros", "two", "one", "none"],
)
def test_a_result_is_out_of_proportion_beside_the_better_half(costs: list[float], far: list[bool]):
    assert out_of_proportion(np.array(costs), objectives=1).tolist() == far


def test_one_objective_needs_no_bounds():
    one = Outcomes(
        Space(
            name="case",
            objectives=(Objective(metric="loss"),),
            parameters=(Range(name="x", min=0, max=1, kind="float"),),
            program=Program(kind="function", function="m:f"),
        )
    )
    assert one.thresholds([trial(0, loss=1.0)]) == []


def test_survival_is_reported_only_where_a_trial_failed():
    done, failed = trial(0, eval__loss=1.0), trial(1, "failed")
    waiting, abandoned = trial(2, "running"), trial(3, "abandoned")
    assert outcomes().survival([done, waiting, abandoned]) == []
    assert outcomes().survival([done, failed, waiting, abandoned]) == [(done, 1.0), (failed, 0.0)]


@pytest.mark.parametrize(
    ("failure", "survival"),
    [
        ("diverged", 0.0),
        ("out_of_memory", 0.0),
        ("bad_config", 0.0),
        ("crashed", 0.0),
        (None, 0.0),
        ("lost", None),
    ],
)
def test_lost_trial_is_no_failure_of_its_region(failure, survival):
    done, failed = trial(0, eval__loss=1.0), replace(trial(1, "failed"), failure=failure)
    expected = [(done, 1.0), (failed, survival)] if survival is not None else []
    assert outcomes().survival([done, failed]) == expected
    assert has_failed(failed) == (survival is not None)
