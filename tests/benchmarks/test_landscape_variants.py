"""Variants of our search on landscapes: each runs, and changes what it says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.landscapes import fit
from benchmarks.landscapes import replay as replaying
from benchmarks.landscapes.replay import Simulation
from benchmarks.landscapes.searchers import Ours, Task, find
from benchmarks.landscapes.variants import (
    CHANGES,
    ChangedOptimizer,
    DimensionScaledMatern,
    LogExcess,
    Variant,
)
from sweeps.search.determinism import silence
from sweeps.search.optimizer import generation
from sweeps.search.optimizer.stage_choice import StageChoice
from sweeps.space.definition import Search, Value
from tests.benchmarks.test_landscape_replay import LANDSCAPE, RUN, SPACE, Scripted

TASK = Task(space=replace(SPACE, baseline=None, search=Search(sobol=4)), seed=0)


def loss(parameters: dict[str, Value]) -> float:
    rate, steps = np.log10(float(parameters["first.lr"])) + 1.8, float(parameters["second.steps"]) - 26.0
    return float(np.exp(rate**2) + (steps / 20) ** 2) + float(parameters["second.kind"])


@cache
def asked(name: str) -> list[dict[str, Value]]:
    """Return the parameters of five trials, of which the last is the surrogate's."""
    searcher, found = find(name)(TASK), []
    for trial in range(5):
        found.append(dict(searcher.ask(trial)))
        searcher.tell(trial, loss(found[-1]))
    return found


@pytest.mark.parametrize(
    "name", ["log", "power", "warp", "ei", "qei", "quadratic", "bowl", "matern", "exploit2", "log+ei"]
)
def test_surrogate_variants_change_the_candidate(name: str) -> None:
    changed, ours = asked(f"variant-{name}"), asked("variant-none")
    assert changed[:4] == ours[:4]  # the first design
    assert changed != ours


def test_matern_kernel_is_gpytorch_s() -> None:
    from gpytorch.kernels import MaternKernel  # after Ax, which silences its warnings

    points = torch.rand(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    ours, theirs = (
        DimensionScaledMatern(ard_num_dims=3).double(),
        MaternKernel(nu=2.5, ard_num_dims=3).double(),
    )
    theirs.lengthscale = ours.lengthscale.detach()
    torch.testing.assert_close(ours(points).to_dense(), theirs(points).to_dense())


def test_no_change_is_ours() -> None:
    assert asked("variant-none") == asked("ours")


def test_first_design_has_the_length_of_the_variant() -> None:
    for name, trials in (("first4", 4), ("first6", 6), ("first12", 12)):
        searcher = find(f"variant-{name}")(TASK)
        assert isinstance(searcher, Ours)
        assert searcher._optimizer.first_trials == trials


@pytest.mark.parametrize(("name", "plain"), [("none", [0, 0]), ("costs2", [0, 1]), ("costs-always", [0, 0])])
def test_costs_are_ignored_as_often_as_the_variant_says(
    name: str, plain: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def noted(*arguments: Any, plain: bool, **options: Any) -> StageChoice:
        found.append(int(plain))
        return StageChoice(*arguments, plain=plain, **options)

    monkeypatch.setattr(generation, "StageChoice", noted)
    searcher = find(f"variant-{name}")(TASK)
    for trial in range(6):
        searcher.tell(trial, loss(dict(searcher.ask(trial))))
    assert found == plain


def test_known_noise_is_the_landscape_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "load", lambda _: LANDSCAPE)
    searcher = find("variant-noise")(TASK)
    assert isinstance(searcher, Variant)
    assert isinstance(searcher._optimizer, ChangedOptimizer)
    assert searcher._optimizer._search.noise == pytest.approx(0.1)


def test_lowest_loss_is_chosen_in_place_of_the_lowest_mean() -> None:
    searcher = find("variant-lowest")(TASK)
    for trial in range(5):
        searcher.tell(trial, loss(dict(searcher.ask(trial))))
    assert searcher.choose() == min(searcher.losses, key=searcher.losses.__getitem__)


def test_later_variants_of_a_name_add_to_the_earlier_ones() -> None:
    both = CHANGES["log"] | CHANGES["first4"] | CHANGES["ei"]
    assert both.transform is LogExcess
    assert [find(f"variant-{name}")(TASK).shares for name in ("log", "plain+log")] == [True, False]
    assert both.search == {"sobol": 4}
    assert both.acquisition is CHANGES["ei"].acquisition
    with pytest.raises(ValueError, match="'fast'"):
        find("variant-log+fast")


def test_log_excess_is_undone() -> None:
    searcher = find("variant-none")(TASK)
    assert isinstance(searcher, Ours)
    for trial, told in enumerate((1.0, 2.0, 11.0)):
        searcher.ask(trial)
        searcher.tell(trial, told)
    optimizer = searcher._optimizer
    optimizer.observe(searcher._records)
    from ax.adapter.data_utils import extract_experiment_data
    from ax.core.data_utils import DataLoaderConfig
    from ax.core.observation import ObservationData

    from sweeps.search.optimizer.ax_experiment import results

    with silence("ax"):
        experiment = optimizer.experiment
        data = results(optimizer._outcomes, searcher._records, optimizer._ax_trials)
        table = extract_experiment_data(experiment, DataLoaderConfig(), data=data)
    transform = LogExcess(experiment_data=table)
    changed = transform.transform_experiment_data(table).observation_data["mean", "m0"]
    assert list(changed) == pytest.approx([np.log(1.0), np.log(2.0), np.log(11.0)])  # the floor is 0
    before = ObservationData(["m0"], np.array([4.0]), np.array([[0.04]]))
    (there,) = transform._transform_observation_data([before])
    assert there.means[0] == pytest.approx(np.log(4.0))
    assert there.covariance[0, 0] == pytest.approx(0.04 / 16)
    (back,) = transform._untransform_observation_data([there])
    assert (back.means[0], back.covariance[0, 0]) == pytest.approx((4.0, 0.04))


class Patient(Scripted):
    """Notes how many results it had when it was asked."""

    patience = 0.15

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.known: list[int] = []

    def ask(self, trial: int) -> dict[str, Value]:
        self.known.append(len(self.losses))
        return dict(super().ask(trial))


@pytest.mark.parametrize(("patience", "known"), [(0.0, 1), (0.15, 2), (0.05, 1)])
def test_patient_worker_waits_for_a_near_result(patience: float, known: int) -> None:
    searcher = Patient(Task(space=SPACE, seed=0, workers=2))
    searcher.shares, searcher.patience = False, patience
    searcher.script = [{"first.lr": 0.01, "second.steps": s, "second.kind": 1} for s in (30, 40)]
    simulation = Simulation(LANDSCAPE, searcher, replace(RUN, workers=2))
    simulation.run()
    assert searcher.known[:3] == [0, 0, known]  # trials take 90 and 100


def test_fit_measures_predictions_of_held_out_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(40):
        row = {
            "first.lr": float(10 ** rng.uniform(-3, -1)),
            "second.steps": int(rng.integers(10, 41)),
            "second.kind": int(rng.choice([1, 2, 4])),
            "second.batch": 4,
        }
        rows.append({"kind": "random", **row, "final_loss": loss(row)})
    monkeypatch.setattr(fit, "read", lambda _: rows)
    monkeypatch.setattr(replaying, "load", lambda _: replace(LANDSCAPE, space=TASK.space))
    density, rank = fit.measure("made", "ours", 20, 0)
    assert rank > 0.8
    monkeypatch.setattr(fit, "read", lambda _: [{**row, "final_loss": rng.normal()} for row in rows])
    assert fit.measure("made", "ours", 20, 0)[1] < 0.5
    assert np.isfinite(density)
