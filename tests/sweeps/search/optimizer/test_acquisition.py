"""The acquisition function of whole options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sweeps.search.determinism import one_thread, seeded, silence
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import Optimizer, ax_experiment
from sweeps.search.optimizer.acquisition import OpenAcquisition
from sweeps.search.optimizer.rows import ModelRows, option_columns
from sweeps.search.optimizer.surrogate import fitted
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Choice, Objective, Program, Range, Space
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

BEST_A = {"x": 0.3, "y": 0.6, "z": 0.9}
"""Value of `a` with the lowest loss, for each option."""


def space(*metrics: str) -> Space:
    return Space(
        name="case",
        objectives=tuple(Objective(metric=metric) for metric in metrics),
        parameters=(
            Range(name="a", min=0.0, max=1.0, kind="float"),
            Choice(name="kind", values=tuple(BEST_A)),
            Range(name="b", min=0.0, max=1.0, kind="float"),
            Choice(name="other", values=(1, 5, 7, 9)),
        ),
        program=Program(kind="function", function="m:f"),
    )


def adapter_at(searched: Space, seed: int, count: int) -> Any:
    """Return a fit to records that are, but for six, near the best of one option."""
    rng, domain = np.random.default_rng(seed), Domain(searched)
    optimizer, records = Optimizer(searched), []
    for index in range(count):
        kind = tuple(BEST_A)[index % 3 if index < 6 else 0]
        a = rng.uniform() if index < 6 else BEST_A[kind] + 0.05 * rng.standard_normal()
        parameters = {
            "a": float(np.clip(a, 0, 1)),
            "kind": kind,
            "b": rng.uniform(),
            "other": 1 + index % 2 * 4,
        }
        loss = (parameters["a"] - BEST_A[kind]) ** 2 + 0.1 * parameters["b"] + 0.02 * rng.standard_normal()
        metrics = {objective.metric: loss for objective in searched.objectives}
        records.append(
            Trial(
                trial=index,
                status="completed",
                generator="sobol",
                parameters=domain.complete(parameters),
                metrics=metrics,
            )
        )
    optimizer.observe(records)
    outcomes = Outcomes(searched)
    results = ax_experiment.results(outcomes, records, optimizer.experiment.trials)
    return fitted(
        optimizer.experiment, results, ax_experiment.goal(outcomes), acquisition_class=OpenAcquisition
    )


@pytest.mark.usefixtures("all_starts")
@pytest.mark.parametrize(
    ("seed", "count"),
    [(4, 40), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 40), (4, 24)))],
)
def test_candidate_is_the_maximum_over_whole_options(seed: int, count: int) -> None:
    """In these cases the maximum over mixtures is rounded to a point that has 0.1 to 0.7 less."""
    searched = space("loss")
    encoding = Encoding(Domain(searched))
    with one_thread(), silence("ax"), seeded(seed):
        adapter = adapter_at(searched, seed, count)
        (arm,) = adapter.gen(n=1).arms
        acquisition, rows = adapter.generator._acquisition, ModelRows(adapter)
        shares = torch.quasirandom.SobolEngine(4, scramble=True, seed=seed).draw(2048, dtype=torch.double)
        names = [axis.name for axis in encoding.axes]
        points = [encoding.at_shares(dict(zip(names, row, strict=True))) for row in shares.tolist()]
        asked = float(acquisition.values(rows.rows([arm.parameters]))[0])
        best = float(acquisition.values(rows.rows(points)).max())
    assert asked >= best - 0.05


def test_a_mixture_has_the_value_of_its_largest_options() -> None:
    with one_thread(), silence("ax"), seeded(0):
        adapter = adapter_at(space("loss"), 0, 8)
        adapter.gen(n=1)
    acquisition, groups = adapter.generator._acquisition, option_columns(adapter.parameters)
    assert [len(columns) for columns in groups] == [3, 4]
    mixed = torch.rand(5, 1, len(adapter.parameters), dtype=torch.double, requires_grad=True)
    whole = mixed.detach().clone()
    for columns in groups:
        whole[..., columns] = torch.nn.functional.one_hot(
            whole[..., columns].argmax(-1), len(columns)
        ).double()
    inner = acquisition.acqf.acquisition
    torch.testing.assert_close(acquisition.acqf(mixed), inner(whole))
    (slope,) = torch.autograd.grad(acquisition.acqf(mixed).sum(), mixed)
    along = [column for columns in groups for column in columns]
    numbers = [column for column in range(slope.shape[-1]) if column not in along]
    assert not slope[..., along].any()
    assert slope[..., numbers].all()


@pytest.mark.usefixtures("all_starts")
def test_starts_within_constraints_take_a_short_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """BoTorch's own has 42,768 steps for each value of `n`; the short one leads to the maximum as well."""
    from botorch.optim import initializers  # after ours, which silences what it warns of

    walks, walk = list[int](), initializers.get_polytope_samples

    def draw(n: int, *, n_burnin: int, n_thinning: int, **given: Any) -> torch.Tensor:
        walks.append(n_burnin + n * n_thinning)
        return walk(n=n, n_burnin=n_burnin, n_thinning=n_thinning, **given)

    monkeypatch.setattr(initializers, "get_polytope_samples", draw)
    constrained = replace(
        space("loss"),
        parameters=(
            *(Range(name=name, min=0.0, max=1.0, kind="float") for name in "ab"),
            Range(name="n", min=1, max=3, kind="int"),
        ),
        parameter_constraints=("a + b <= 0.6",),
    )
    with one_thread(), silence("ax"), seeded(0):
        adapter = fitted_to_bowl(constrained)
        (arm,) = adapter.gen(n=1).arms
        acquisition, rows = adapter.generator._acquisition, ModelRows(adapter)
        places = torch.linspace(0, 0.6, 31).tolist()
        points = [
            {"p0": a, "p1": b, "p2": n} for a in places for b in places if a + b <= 0.6 for n in (1, 2, 3)
        ]
        asked = float(acquisition.values(rows.rows([arm.parameters]))[0])
        best = float(acquisition.values(rows.rows(points)).max())
    assert len(walks) == 3
    assert max(walks) < 6000
    assert asked >= best - 0.05


def test_trials_exactly_on_a_constraint_count() -> None:
    """Ax itself leaves them out, as if they were beyond it."""
    constrained = replace(
        space("loss"),
        parameters=tuple(Range(name=name, min=0.0, max=1.0, kind="float") for name in "ab"),
        parameter_constraints=("a + b <= 1",),
    )
    points = [(0.5, 0.5), (0.1, 0.2), (0.3, 0.3), (0.2, 0.6)]
    records = [
        Trial(
            trial=index,
            status="completed",
            generator="enqueued",
            parameters={"a": a, "b": b},
            metrics={"loss": a * b - a},
        )
        for index, (a, b) in enumerate(points)
    ]
    optimizer, outcomes = Optimizer(constrained), Outcomes(constrained)
    optimizer.observe(records)
    results = ax_experiment.results(outcomes, records, optimizer.experiment.trials)
    goal = ax_experiment.goal(outcomes)
    waiting = [({"p0": 0.25, "p1": 0.75}, {}, ["m0"]), ({"p0": 0.9, "p1": 0.9}, {}, ["m0"])]
    pending = ax_experiment.pending(optimizer.experiment, outcomes, waiting)
    with one_thread(), silence("ax"), seeded(0):
        adapter = fitted(optimizer.experiment, results, goal, acquisition_class=OpenAcquisition)
        adapter.gen(n=1, pending_observations=pending)
    acquisition = adapter.generator._acquisition
    assert sorted(acquisition.X_observed.tolist()) == sorted(map(list, points))
    assert acquisition.X_pending.tolist() == [[0.25, 0.75]]


def fitted_to_bowl(searched: Space) -> Any:
    """Return a fit to nine records whose loss is lowest at a = b = 0.4, beyond the constraint, and n = 2."""
    records = []
    for index in range(9):
        found = {"a": 0.3 * (index % 3), "b": 0.3 * (index // 3) * (index % 3 < 2), "n": 1 + index % 3}
        loss = (found["a"] - 0.4) ** 2 + (found["b"] - 0.4) ** 2 + 0.1 * (found["n"] != 2)
        records.append(
            Trial(
                trial=index, status="completed", generator="sobol", parameters=found, metrics={"loss": loss}
            )
        )
    optimizer, outcomes = Optimizer(searched), Outcomes(searched)
    optimizer.observe(records)
    results = ax_experiment.results(outcomes, records, optimizer.experiment.trials)
    return fitted(
        optimizer.experiment, results, ax_experiment.goal(outcomes), acquisition_class=OpenAcquisition
    )


def many_choices(ranges: int, *metrics: str) -> Space:
    return Space(
        name="case",
        objectives=tuple(Objective(metric=metric) for metric in metrics),
        parameters=(
            *(Range(name=f"r{i}", min=0.0, max=1.0, kind="float") for i in range(ranges)),
            *(Choice(name=f"k{i}", values=tuple("uvwx")) for i in range(5)),
            Choice(name="two", values=("y", "z")),
            Choice(name="steps", values=(1, 2, 4), ordered=True),
        ),
        program=Program(kind="function", function="m:f"),
    )


def fitted_to_random_trials(searched: Space, seed: int) -> Any:
    rng, domain = np.random.default_rng(seed), Domain(searched)
    encoding = Encoding(domain)
    names = [axis.name for axis in encoding.axes]
    weights = rng.uniform(0, 0.5, (len(searched.objectives), 5, 4))
    records = []
    for index in range(25):
        shares = dict(zip(names, rng.uniform(size=len(names)), strict=True))
        parameters = domain.complete(encoding.values(encoding.at_shares(shares)))
        options = ["uvwx".index(str(parameters[f"k{i}"])) for i in range(5)]
        bowls = sum((float(parameters[p.name]) - 0.3) ** 2 for p in searched.parameters if p.name[0] == "r")
        metrics = {
            objective.metric: float(each[range(5), options].sum()) + bowls + 0.02 * rng.standard_normal()
            for objective, each in zip(searched.objectives, weights, strict=True)
        }
        records.append(
            Trial(
                trial=index,
                status="completed",
                generator="sobol",
                parameters=parameters,
                metrics=metrics,
            )
        )
    optimizer, outcomes = Optimizer(searched), Outcomes(searched)
    optimizer.observe(records)
    results = ax_experiment.results(outcomes, records, optimizer.experiment.trials)
    return fitted(
        optimizer.experiment, results, ax_experiment.goal(outcomes), acquisition_class=OpenAcquisition
    )


@pytest.mark.usefixtures("all_starts")
@pytest.mark.parametrize(
    ("ranges", "metrics"),
    [
        (0, ["loss"]),
        *(pytest.param(3, metrics, marks=pytest.mark.slow) for metrics in (["loss"], ["loss", "cost"])),
    ],
    ids=str,
)
def test_no_change_of_one_option_is_better(ranges: int, metrics: list[str]) -> None:
    """Neither than the maximiser nor than the one at a fixed option, though few of thousands were tried."""
    with one_thread(), silence("ax"), seeded(0):
        adapter = fitted_to_random_trials(many_choices(ranges, *metrics), 1)
        adapter.gen(n=1)
        acquisition, groups = adapter.generator._acquisition, option_columns(adapter.parameters)
        # Two options, and ordered ones, are one column.
        assert [len(columns) for columns in groups] == [4] * 5
        held = {column: float(column == groups[0][1]) for column in groups[0]}
        at_held = acquisition.optimize_at(held)
    assert {column: float(at_held[0, column]) for column in held} == held
    for found, free in ((acquisition.found, groups), (at_held, groups[1:])):
        others = [found]
        for columns in free:
            for at in columns:
                others.append(found.clone())
                others[-1][:, columns], others[-1][:, at] = 0.0, 1.0
        with silence("ax"):  # some need jitter, depending on the version of torch
            best, *values = (float(acquisition.values(each)[0]) for each in others)
        assert values
        assert max(values) <= best + 1e-5
