"""Results that the optimizer learns from; whatever is reported, it can go on."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from torch.utils import cpp_extension

from sweeps.search.determinism import silence
from sweeps.search.optimizer import Optimizer, surrogate
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Objective, Program, Range, Search, Space, Value
from sweeps.trials.objectives import within_constraints
from sweeps.trials.record import Attempt, Status, Trial

LOSS = (Objective(metric="loss"),)
Report = tuple[Status, dict[str, float | None]]


def space(
    objectives: tuple[Objective, ...] = LOSS, constraints: tuple[str, ...] = (), sobol: int = 3
) -> Space:
    return Space(
        name="case",
        objectives=objectives,
        outcome_constraints=constraints,
        parameters=tuple(Range(name=name, min=0.0, max=1.0, kind="float") for name in "xy"),
        program=Program(kind="function", function="m:f"),
        search=Search(sobol=sobol, seed=2),
    )


def search(searched: Space, report: Callable[[int, Mapping[str, float]], Report], trials: int) -> list[Trial]:
    optimizer = Optimizer(searched)
    records: list[Trial] = []
    for index in range(trials):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        numbers = {name: float(value) for name, value in candidate.parameters.items()}
        status, metrics = report(index, numbers)
        records.append(
            Trial(
                trial=index,
                status=status,
                parameters=candidate.parameters,
                generator=candidate.generator,
                metrics=metrics,
            )
        )
    return records


def generators(records: list[Trial]) -> str:
    return "".join(record.generator[0] for record in records)


def valley(p: Mapping[str, float]) -> float:
    return (p["x"] - 0.3) ** 2 + (p["y"] - 0.7) ** 2


@functools.cache
def plain() -> list[Trial]:
    """A search that reports the loss alone: three trials from Sobol, two from the surrogate."""
    return search(space(), lambda i, p: ("completed", {"loss": valley(p)}), 5)


@pytest.mark.parametrize(
    "metrics",
    [
        lambda i, p: {"loss": 1.0},
        lambda i, p: {"loss": valley(p), "loss_sem": 0.0},
        lambda i, p: {"loss": valley(p), "loss_sem": 0.1},
        lambda i, p: {"loss": valley(p), "loss_sem": 0.1 if i % 2 else None},
        lambda i, p: {"loss": valley(p), "loss_sem": -1.0},
        lambda i, p: {"loss": 1e30 if i == 1 else valley(p)},
        lambda i, p: {"loss": 1e300 * p["x"]},
        lambda i, p: {"loss": 1e-300 * p["x"]},
    ],
    ids=["constant", "sem-0", "sem", "sem-some", "sem-negative", "outlier", "huge", "tiny"],
)
def test_the_surrogate_goes_on_with_results_of_any_kind(
    metrics: Callable[[int, Mapping[str, float]], dict[str, float | None]],
):
    searched = replace(space(), search=Search(sobol=3, seed=2, noise="reported"))
    records = search(searched, lambda i, p: ("completed", metrics(i, p)), 4)
    assert generators(records) == "sssb"


def test_standard_errors_reach_the_surrogate():
    def proposal(noise: Literal["inferred", "reported"] | float, sem: float) -> Mapping[str, Value]:
        searched = replace(space(), search=Search(sobol=6, seed=2, noise=noise))
        records = search(searched, lambda i, p: ("completed", {"loss": valley(p), "loss_sem": sem}), 7)
        return records[-1].parameters

    inferred = proposal("inferred", 0.3)
    assert proposal("inferred", 0.1) == inferred
    reported = proposal("reported", 0.3)
    assert reported != inferred
    assert proposal(0.3, 0.1) == reported


def test_metrics_that_are_not_asked_for_change_nothing():
    metrics = lambda i, p: {"loss": valley(p), "seconds": float(i), "tokens": 1e12, "note": None}  # noqa: E731
    more = search(space(), lambda i, p: ("completed", metrics(i, p)), 5)
    assert generators(more) == "sssbb"
    assert [r.parameters for r in plain()] == [r.parameters for r in more]


@pytest.mark.slow
def test_goal_maximize_climbs():
    objective = (Objective(metric="loss", goal="maximize"),)
    records = search(space(objective), lambda i, p: ("completed", {"loss": -valley(p)}), 9)
    assert max(record.metrics["loss"] or -9.0 for record in records) > -0.01


def test_early_stopped_trial_counts_only_with_result():
    with_result = search(space(), lambda i, p: ("early_stopped", {"loss": valley(p)}), 5)
    without = search(space(), lambda i, p: ("early_stopped", {}), 5)
    assert generators(with_result) == "sssbb"
    assert generators(without) == "sssss"


def test_abandoned_trial_counts_not_at_all():
    report = lambda i, p: ("abandoned" if i == 1 else "completed", {"loss": valley(p)})  # noqa: E731
    assert generators(search(space(), report, 6)) == "ssssbb"


def test_a_trial_without_the_objective_is_no_result():
    records = search(space(), lambda i, p: ("completed", {"loss": None if i % 2 else valley(p)}), 5)
    assert generators(records) == "sssbb"
    records = search(space(), lambda i, p: ("completed", {"other": 1.0}), 5)
    assert generators(records) == "sssss"


def test_nothing_that_is_not_finite_reaches_ax():
    records = plain()[:4]
    broken = replace(records[0], metrics={"loss": math.nan})
    infinite = replace(records[1], metrics={"loss": math.inf})
    optimizer = Optimizer(space())
    optimizer.observe([broken, infinite, *records[2:]])
    assert not Outcomes(space()).means(broken)
    assert not Outcomes(space()).means(infinite)
    assert optimizer.generate()[0].generator == "botorch"


@pytest.mark.slow
def test_an_outcome_constraint_is_obeyed_at_the_best_point():
    """The loss falls to the right, memory rises with it: the best allowed x is 0.5."""
    records = search(
        space(constraints=("memory_gib <= 20",)),
        lambda i, p: ("completed", {"loss": -p["x"], "memory_gib": 40 * p["x"]}),
        8,
    )
    allowed = [record for record in records if (record.metrics["memory_gib"] or 0.0) <= 20]
    assert min(record.metrics["loss"] or 0.0 for record in allowed) < -0.4
    proposed = [float(record.parameters["x"]) for record in records if record.generator == "botorch"]
    assert sum(x <= 0.55 for x in proposed) >= len(proposed) // 2


@pytest.mark.parametrize(
    "metrics",
    [
        lambda i, p: {"loss": p["x"], "memory": 5.0},
        lambda i, p: {"loss": p["x"], **({"memory": p["y"]} if i % 2 else {})},
    ],
    ids=["never-met", "sometimes-missing"],
)
def test_unmet_constraints_do_not_stop_search(
    metrics: Callable[[int, Mapping[str, float]], dict[str, float | None]],
):
    records = search(space(constraints=("memory <= 0.5",)), lambda i, p: ("completed", metrics(i, p)), 5)
    assert "b" in generators(records)


TWO = (Objective(metric="loss"), Objective(metric="speed", goal="maximize"))


def two(i: int, p: Mapping[str, float]) -> Report:
    """The front is y = 0: loss against speed, both set by x."""
    return ("completed", {"loss": (1 - p["x"]) ** 2 + p["y"], "speed": 1 - p["x"] ** 2 - p["y"]})


def test_no_kernel_is_compiled_for_several_objectives(monkeypatch: pytest.MonkeyPatch):
    """A worker that is killed meanwhile would leave a lock for which all later ones wait."""
    compiled = list[str]()
    monkeypatch.setattr(cpp_extension, "load", lambda name, **options: compiled.append(name))
    assert generators(search(space(TWO, sobol=2), two, 3)) == "ssb"
    assert (compiled, surrogate.logei._C) == ([], None)


@pytest.mark.parametrize("constraints", [(), ("loss <= 0.9", "speed >= 0.1")], ids=["inferred", "thresholds"])
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_objectives_spread_over_the_front(constraints: tuple[str, ...]):
    records = search(space(TWO, constraints, sobol=4), two, 10)
    asked = [record for record in records if record.generator == "botorch"]
    near = [record for record in asked if float(record.parameters["y"]) < 0.1]
    assert len(asked) == 6
    assert len(near) >= len(asked) // 2
    xs = [float(record.parameters["x"]) for record in near]
    assert max(xs) - min(xs) > 0.4


def test_a_constraint_over_several_metrics_is_taken():
    report = lambda i, p: ("completed", {"loss": p["x"], "a": p["x"], "b": p["y"]})  # noqa: E731
    assert generators(search(space(constraints=("a + 2*b >= 0.5", "b <= 0.9")), report, 5)) == "sssbb"


def within_for_ax(searched: Space, records: list[Trial]) -> list[bool]:
    """Return whether each result is within the outcome constraints, both as the search transforms them."""
    optimizer = Optimizer(searched)
    optimizer.observe(records)
    with silence("ax"):
        adapter = optimizer._fitted()
        config, data = adapter._optimization_config.clone(), adapter.get_training_data()
        for transform in adapter.transforms.values():
            config = transform.transform_optimization_config(config, adapter, None)
            data = transform.transform_experiment_data(data)
    means = data.observation_data["mean"]
    within = np.ones(len(records), dtype=bool)
    for each in config.outcome_constraints:
        excess = sum(weight * means[name].to_numpy() for name, weight in each.metric_weights) - each.bound
        within &= excess >= 0.0 if each.op.name == "GEQ" else excess <= 0.0
    return within.tolist()


BETWEEN = ("mem <= 40", "mem >= 10")


def memory(i: int, p: Mapping[str, float]) -> Report:
    return ("completed", {"loss": 2 - p["x"] + 0.1 * p["y"], "mem": 100 * p["x"] + 5 * p["y"]})


def times(p: Mapping[str, float], train: float) -> Report:
    return ("completed", {"loss": 2 - p["x"], "train": train, "test": 30 * p["y"] + 1})


@pytest.mark.parametrize(
    ("constraints", "report"),
    [
        (("mem <= 40",), memory),
        (BETWEEN, memory),
        (("train + test <= 20",), lambda i, p: times(p, 8 * p["x"] + 1)),
        (("train - test <= 0",), lambda i, p: times(p, 99.0 if i == 3 else p["x"])),
        (("train <= 0.7", "train + test <= 20"), lambda i, p: times(p, p["x"])),
    ],
    ids=["one", "both-sides", "sum", "difference-outlier", "alone-and-in-sum"],
)
def test_results_within_the_constraints_are_so_for_the_search(
    constraints: tuple[str, ...], report: Callable[[int, Mapping[str, float]], Report]
):
    searched, random = space(constraints=constraints), np.random.default_rng(1)
    records = []
    for index in range(10):
        point = {name: float(random.random()) for name in "xy"}
        status, metrics = report(index, point)
        records.append(
            Trial(trial=index, status=status, parameters=point, generator="sobol", metrics=metrics)
        )
    own = [within_constraints(searched)(record.metrics) for record in records]
    assert {True, False} == set(own)
    assert within_for_ax(searched, records) == own


def test_a_metric_is_kept_between_two_bounds():
    """The loss falls to the right, memory rises with it, from 10 to 40 it is allowed."""
    asked = [r for r in search(space(constraints=BETWEEN), memory, 8) if r.generator == "botorch"]
    assert len(asked) >= 4
    assert sum(within_constraints(space(constraints=BETWEEN))(r.metrics) for r in asked[1:]) >= len(asked) - 2


@pytest.mark.slow
def test_lost_and_preempted_trials_are_not_failed_for_ax():
    """A trial that only lost its workers counts like an abandoned one; the region of a diverged one is avoided."""
    records = plain()[:4]
    history = (
        Attempt(attempt=1, worker="spot", start=0.0, end=1.0, reason="released"),
        Attempt(attempt=2, worker="dead", start=1.0, end=2.0, reason="expired"),
    )
    ended = replace(records[3], metrics={}, history=history)
    records_by_end = {
        "lost": replace(ended, status="failed", failure="lost"),
        "abandoned": replace(ended, status="abandoned"),
        "diverged": replace(ended, status="failed", failure="diverged"),
        "crashed": replace(ended, status="failed", failure="crashed"),
        "preempted": replace(ended, status="pending"),
    }
    proposed, ax_status = {}, {}
    for end, record in records_by_end.items():
        optimizer = Optimizer(space())
        optimizer.observe([*records[:3], record])
        if end != "preempted":
            proposed[end] = optimizer.generate()[0].parameters
        ax_status[end] = optimizer.experiment.trials[3].status.name
    assert ax_status == {
        "lost": "ABANDONED",
        "abandoned": "ABANDONED",
        "diverged": "FAILED",
        "crashed": "FAILED",
        "preempted": "RUNNING",
    }
    assert proposed["lost"] == proposed["abandoned"] != proposed["diverged"] == proposed["crashed"]


def test_a_trial_that_was_lost_and_then_diverged_is_learnt():
    records = plain()[:4]
    lost = replace(records[3], metrics={}, status="failed", failure="lost")
    diverged = replace(lost, failure="diverged")
    lived, new = Optimizer(space()), Optimizer(space())
    lived.observe([*records[:3], lost])
    lived.observe([*records[:3], diverged])
    new.observe([*records[:3], diverged])
    assert lived.generate() == new.generate()
