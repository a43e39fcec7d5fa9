"""The surrogate's analyses of a known function."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sweeps.export.insight import LEAST, insight
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Search, Space
from sweeps.trials.record import Trial

pytestmark = pytest.mark.timeout(600)  # a fit takes seconds, or minutes on a busy machine

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    program=Program(kind="function", function="m:f"),
    search=Search(sobol=3, seed=7),
    parameters=(
        Range(name="lr", min=1e-3, max=1e-1, kind="float", log=True),
        Range(name="steps", min=1, max=4, kind="int", log=False),
        Choice(name="schedule", values=("linear", "cosine", "wsd")),
        Fixed(name="seed", value=0),
    ),
)


def loss(lr: float, schedule: str) -> float:
    """Best at lr = 1e-2; wsd costs a little; steps do nothing."""
    return math.log10(lr / 1e-2) ** 2 + 0.2 * (schedule == "wsd")


@pytest.fixture(scope="module")
def records() -> list[Trial]:
    random = np.random.default_rng(0)
    trials = []
    for index in range(16):
        parameters: dict[str, Any] = {
            "lr": float(10 ** random.uniform(-3, -1)),
            "steps": int(random.integers(1, 5)),
            "schedule": ("linear", "cosine", "wsd")[index % 3],
            "seed": 0,
        }
        value = loss(parameters["lr"], parameters["schedule"])
        trials.append(
            Trial(
                trial=index,
                status="completed",
                parameters=parameters,
                generator="sobol",
                metrics={"loss": value, "loss_sem": 0.01},
            )
        )
    trials.append(Trial(trial=16, status="failed", parameters=trials[0].parameters, generator="sobol"))
    return trials


@pytest.fixture(scope="module")
def document(records: list[Trial]) -> dict[str, Any]:
    return insight(SPACE, records)


def test_it_is_a_document_that_json_holds(document: dict[str, Any]) -> None:
    assert list(document) == ["trials", "note", "metrics"]
    assert (document["trials"], document["note"], list(document["metrics"])) == (16, "", ["loss"])
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_what_mattered_is_what_the_function_depends_on(document: dict[str, Any]) -> None:
    shares = document["metrics"]["loss"]["sensitivity"]
    assert set(shares) == {"lr", "steps", "schedule"}
    assert shares["lr"]["total"] > 0.6
    assert shares["steps"]["total"] < shares["schedule"]["total"] < shares["lr"]["total"]


def test_shares_are_those_of_the_function() -> None:
    """Variances over the space: of the squared logarithm 1/5 - 1/9, of the schedule's step 0.04 · 2/9."""
    random = np.random.default_rng(1)
    trials = []
    for index in range(60):
        lr, steps = float(10 ** random.uniform(-3, -1)), int(random.integers(1, 5))
        schedule = ("linear", "cosine", "wsd")[index % 3]
        metrics = {"loss": loss(lr, schedule), "seconds": 3.0 * steps}
        parameters: dict[str, Any] = {"lr": lr, "steps": steps, "schedule": schedule, "seed": 0}
        trials.append(
            Trial(trial=index, status="completed", parameters=parameters, generator="sobol", metrics=metrics)
        )
    both = replace(SPACE, objectives=(*SPACE.objectives, Objective(metric="seconds")))
    found = insight(both, trials)["metrics"]
    for order in ("first", "total"):
        shares = {name: share[order] for name, share in found["loss"]["sensitivity"].items()}
        assert shares == pytest.approx({"lr": 0.909, "steps": 0.0, "schedule": 0.091}, abs=0.03)
        shares = {name: share[order] for name, share in found["seconds"]["sensitivity"].items()}
        assert shares == pytest.approx({"lr": 0.0, "steps": 1.0, "schedule": 0.0}, abs=0.03)


def test_shares_of_logarithmic_integers_are_over_their_logarithm() -> None:
    """By hand: rounded, exp(U(ln 0.5, ln 40.5)) has a logarithm of variance 1.458; evenly from 1 to 40, 0.744."""
    steps = np.arange(1, 41)
    chance = np.diff(np.log(np.arange(1, 42) - 0.5)) / np.log(40.5 / 0.5)
    of_steps = chance @ np.log(steps) ** 2 - (chance @ np.log(steps)) ** 2
    of_rate = 4 / 12  # of the decimal logarithm, two decades wide
    parameters = (
        SPACE.parameters[0],
        Range(name="steps", min=1, max=40, kind="int", log=True),
    )
    random = np.random.default_rng(2)
    trials = []
    for index in range(60):
        lr, count = float(10 ** random.uniform(-3, -1)), int(random.choice(steps, p=chance))
        metrics = {"loss": math.log(count) + 2 * math.log10(lr)}
        own = {"lr": lr, "steps": count}
        trials.append(
            Trial(trial=index, status="completed", parameters=own, generator="sobol", metrics=metrics)
        )
    shares = insight(replace(SPACE, parameters=parameters), trials)["metrics"]["loss"]["sensitivity"]
    whole = of_steps + 4 * of_rate
    for order in ("first", "total"):
        found = {name: share[order] for name, share in shares.items()}
        expected = {"lr": 4 * of_rate / whole, "steps": of_steps / whole}
        assert found == pytest.approx(expected, abs=0.03)


def test_marginal_effects_follow_the_function_in_user_units(document: dict[str, Any]) -> None:
    curves = document["metrics"]["loss"]["marginal"]
    values = [row["value"] for row in curves["lr"]]
    assert (values[0], values[-1]) == pytest.approx((1e-3, 1e-1))
    lowest = min(curves["lr"], key=lambda row: row["mean"])
    assert 4e-3 < lowest["value"] < 2.5e-2
    assert [row["value"] for row in curves["steps"]] == [1, 2, 3, 4]
    by_schedule = {row["value"]: row["mean"] for row in curves["schedule"]}
    assert by_schedule["wsd"] > by_schedule["linear"]
    assert all(row["sd"] >= 0 for rows in curves.values() for row in rows)


def test_joint_effect_is_of_the_two_that_explain_most(document: dict[str, Any]) -> None:
    metric = document["metrics"]["loss"]
    joint = metric["joint"]
    assert (joint["x"], joint["y"]) == ("lr", "schedule")
    means = {(cell["x"], cell["y"]): cell["mean"] for cell in joint["cells"]}
    rates = [row["value"] for row in metric["marginal"]["lr"]]
    assert {*means} == {(rate, name) for rate in rates for name in ("linear", "cosine", "wsd")}
    lowest = min(means, key=means.__getitem__)
    assert 4e-3 < lowest[0] < 2.5e-2
    assert lowest[1] != "wsd"
    assert all(means[rate, "wsd"] > means[rate, "linear"] for rate in rates)


def test_one_parameter_has_no_joint_effect(records: list[Trial]) -> None:
    single = replace(SPACE, parameters=SPACE.parameters[:1])
    alone = [replace(each, parameters={"lr": each.parameters["lr"]}) for each in records]
    found = insight(single, alone)["metrics"]["loss"]
    assert "joint" not in found
    assert found["sensitivity"]["lr"]["total"] == pytest.approx(1.0, abs=0.01)


def test_every_result_was_predicted_without_itself(document: dict[str, Any], records: list[Trial]) -> None:
    rows = document["metrics"]["loss"]["cross_validation"]
    assert [row["trial"] for row in rows] == sorted(row["trial"] for row in rows)
    assert {row["trial"]: row["observed"] for row in rows} == pytest.approx(
        {record.trial: record.metrics["loss"] for record in records if record.metrics}
    )
    observed, predicted = (np.array([row[name] for row in rows]) for name in ("observed", "predicted"))
    assert np.corrcoef(observed, predicted)[0, 1] > 0.5
    assert not np.allclose(observed, predicted, atol=1e-3)  # it was not shown them


def test_intervals_of_left_out_results_hold_them() -> None:
    """Noise of 0.1 about a smooth function: of 60 intervals of 95 %, 57 hold their result, 51 at the least."""
    random = np.random.default_rng(3)
    trials = []
    for index in range(60):
        lr, steps = float(10 ** random.uniform(-3, -1)), int(random.integers(1, 5))
        schedule = ("linear", "cosine", "wsd")[index % 3]
        trials.append(
            Trial(
                trial=index,
                status="completed",
                parameters={"lr": lr, "steps": steps, "schedule": schedule, "seed": 0},
                generator="sobol",
                metrics={"loss": loss(lr, schedule) + 0.1 * random.standard_normal()},
            )
        )
    rows = insight(SPACE, trials)["metrics"]["loss"]["cross_validation"]
    held = sum(abs(row["observed"] - row["predicted"]) <= 1.96 * row["predicted_sd"] for row in rows)
    assert held >= 51
    assert np.median([row["predicted_sd"] for row in rows]) == pytest.approx(0.1, rel=0.25)


def test_intervals_of_a_metric_with_an_outcome_constraint_have_its_own_unit() -> None:
    """The search bends results around the bound: those of 0 to 20 under a bound of 60 to a few units."""
    bounded = replace(SPACE, outcome_constraints=("memory <= 60",), parameters=SPACE.parameters[:1])
    random = np.random.default_rng(3)
    trials = []
    for index in range(24):
        lr = float(10 ** random.uniform(-3, -1))
        memory = 10 * (math.log10(lr) + 3) + 5 * random.standard_normal()
        metrics = {"loss": loss(lr, "linear"), "memory": memory}
        trials.append(
            Trial(trial=index, status="completed", parameters={"lr": lr}, generator="sobol", metrics=metrics)
        )
    rows = insight(bounded, trials)["metrics"]["memory"]["cross_validation"]
    spreads = np.array([row["predicted_sd"] for row in rows])
    misses = np.array([row["observed"] - row["predicted"] for row in rows])
    assert spreads.mean() > 0.7 * np.sqrt(np.mean(misses**2))
    assert (np.abs(misses) <= 1.96 * spreads).sum() >= 21


@pytest.mark.parametrize("count", [0, 1, LEAST - 1])
def test_too_few_results_are_reported(count: int, records: list[Trial]) -> None:
    found = insight(SPACE, [records[0]] * count)
    assert found["metrics"] == {}
    assert " results " in found["note"]


def test_many_results_are_a_sample_of_the_whole_search(
    records: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best trial is not asked for: it may be none of the sample."""
    monkeypatch.setattr("sweeps.export.insight.MOST", 100)
    monkeypatch.setattr("sweeps.export.insight.SAMPLE", 40)
    done = [record for record in records if record.status == "completed"]
    many = [
        replace(records[-1] if at % 5 == 4 else done[at % 16], trial=at) for at in range(150)
    ]  # every fifth failed
    found = insight(SPACE, many)
    assert "was fitted to 40 of 120 results" in found["note"]
    assert found["trials"] == 40
    assert "optimum" not in found
    held_out = [row["trial"] for row in found["metrics"]["loss"]["cross_validation"]]
    assert len(held_out) == 40
    assert (min(held_out) < 10, max(held_out) > 140) == (True, True)


def test_a_space_without_a_choice_is_reported(records: list[Trial]) -> None:
    fixed = Space(
        name="case",
        objectives=SPACE.objectives,
        program=SPACE.program,
        parameters=(Fixed(name="seed", value=0),),
    )
    assert "no parameter" in insight(fixed, records)["note"]
