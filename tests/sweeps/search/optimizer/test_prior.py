"""The prior over the best configuration in the acquisition function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from sweeps.search.determinism import silence
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import Optimizer, ax_experiment
from sweeps.search.optimizer.prior import LogPrior
from sweeps.search.optimizer.rows import ModelRows
from sweeps.search.optimizer.surrogate import fitted
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Choice, Objective, Program, Range, Search, Space, Stage, Value
from sweeps.space.domain import Domain
from sweeps.space.priors import with_priors
from sweeps.space.space_json import from_json, to_json
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

MIXED = (
    Range(name="lr", min=1e-4, max=1e-2, kind="float", log=True),
    Range(name="layers", min=2, max=6, kind="int"),
    Choice(name="batch", values=(8, 16, 64), ordered=True),
    Choice(name="kind", values=("x", "y", "z"), when=(("x", ("share",)),)),
    Range(name="share", min=0.0, max=1.0, kind="float"),
    Range(name="depth", min=0.0, max=1.0, kind="float", when=(("> 0.5", ("inner",)),)),
    Range(name="inner", min=0.0, max=1.0, kind="float"),
)
CENTRE: dict[str, Value] = {"lr": 1e-3, "layers": 4, "batch": 16, "kind": "x", "share": 0.5, "inner": 0.5}


def space(*parameters: Range | Choice, **rest: Any) -> Space:
    rest.setdefault("search", Search(sobol=4, seed=3))
    return Space(
        name="case",
        objectives=(Objective(metric="loss"),),
        parameters=parameters,
        program=Program(kind="function", function="m:f"),
        **rest,
    )


def records(searched: Space, count: int = 4) -> list[Trial]:
    optimizer, found = Optimizer(searched), []
    for index in range(count):
        optimizer.observe(found)
        (candidate,) = optimizer.generate()
        found.append(
            Trial(
                trial=index,
                status="completed",
                generator=candidate.generator,
                parameters=candidate.parameters,
                metrics={"loss": float(index)},
            )
        )
    return found


def fitted_adapter(searched: Space) -> Any:
    found, outcomes = records(replace(searched, search=Search(method="random"))), Outcomes(searched)
    optimizer = Optimizer(searched)
    optimizer.observe(found)
    results = ax_experiment.results(outcomes, found, optimizer.experiment.trials)
    with silence("ax"):
        return fitted(optimizer.experiment, results, ax_experiment.goal(outcomes))


def normal(deviations: float) -> float:
    return math.exp(-(deviations**2) / 2)


def test_density_follows_each_parameters_own_scale() -> None:
    searched = with_priors(space(*MIXED), CENTRE, width=0.25)
    encoding, adapter = Encoding(Domain(searched)), fitted_adapter(searched)
    with silence("ax"):
        log_prior = LogPrior(adapter, encoding, searched)

    def of(**values: Value) -> float:
        parameters = Domain(searched).complete({**CENTRE, "depth": 0.9, **values})
        point = encoding.on_all_axes(encoding.encode(parameters) or {}, seed=1)
        with silence("ax"):
            return float(log_prior(ModelRows(adapter).rows([point]))[0])

    top = of()
    truncated = 0.9 / (0.25 * math.sqrt(2 * math.pi) * math.erf(2 / math.sqrt(2)))  # two deviations each way
    # A factor of ten is half of the range on the logarithmic scale: two standard deviations.
    assert of(lr=1e-2) - top == pytest.approx(
        math.log((0.1 + truncated * normal(2)) / (0.1 + truncated)), abs=1e-6
    )
    bells = [normal(2), normal(1), 1.0, normal(1), normal(2)]
    shares = [0.1 / 5 + 0.9 * bell / sum(bells) for bell in bells]
    assert of(layers=5) - top == pytest.approx(math.log(shares[3] / shares[2]), abs=1e-6)
    # The options of an ordered choice are equally far apart, whatever their numbers.
    assert of(batch=8) == pytest.approx(of(batch=64), abs=1e-6)
    assert of(batch=8) < top
    # An unordered one has half on the default; its child does not count where it does not exist.
    share_density = math.log(0.1 + truncated)
    assert of(kind="y") - top == pytest.approx(
        math.log((0.5 / 3) / (0.5 + 0.5 / 3)) - share_density, abs=1e-6
    )
    assert of(kind="y") == pytest.approx(of(kind="z"), abs=1e-6)
    assert top - of(depth=0.4) == pytest.approx(share_density, abs=1e-6)


def test_discrete_axes_are_interpolated_with_gradients() -> None:
    searched = with_priors(space(*MIXED[:3]), CENTRE)
    encoding, adapter = Encoding(Domain(searched)), fitted_adapter(searched)
    with silence("ax"):
        log_prior = LogPrior(adapter, encoding, searched)
        points = [encoding.at_shares(dict.fromkeys(("p0", "p1", "p2"), share)) for share in (0.2, 0.5, 0.8)]
        x = ModelRows(adapter).rows(points) * 0.97 + 0.01
    x = x.requires_grad_(True)
    assert torch.autograd.gradcheck(log_prior, (x,))


@pytest.mark.parametrize("reuse", ["auto", pytest.param("none", marks=pytest.mark.slow)])
def test_candidates_are_drawn_to_the_prior_and_it_fades(reuse: Any) -> None:
    parameters = [Range(name=f"p.{at}", min=0.0, max=1.0, kind="float") for at in "abcd"]
    plain = space(*parameters, search=Search(sobol=4, seed=3, reuse=reuse))
    found = [replace(each, metrics={"loss": float(each.trial % 2)}) for each in records(plain, 6)]
    around: Mapping[str, Value] = {p.name: 0.9 for p in parameters}
    prior = with_priors(plain, around, width=0.1)

    def distance(searched: Space, **options: float) -> float:
        optimizer = Optimizer(searched, **options)
        optimizer.observe(found)
        (candidate,) = optimizer.generate()
        assert candidate.generator == "botorch"
        return max(abs(float(v) - 0.9) for v in candidate.parameters.values() if isinstance(v, float))

    without = distance(plain)
    assert distance(prior, prior_strength=100.0) < 0.1 < 0.3 < without
    assert distance(prior, prior_strength=1e-9) == pytest.approx(without, abs=0.02)


@pytest.mark.slow
@pytest.mark.slow
def test_shared_stages_are_ranked_with_the_prior() -> None:
    """On a stored first stage the later parameters follow the prior, as a fresh candidate would."""
    parameters = [
        Range(name=name, min=0.0, max=1.0, kind="float") for name in ("first.a", "second.b", "second.c")
    ]
    stages = (
        Stage(name="one", parameters=("first.*",), cost="900"),
        Stage(name="two", parameters=("second.*",), cost="100"),
    )
    plain = space(*parameters, stages=stages, search=Search(sobol=6, seed=3))

    def later(searched: Space) -> list[float]:
        optimizer = Optimizer(searched, prior_strength=200.0)
        found: list[Trial] = []
        for index in range(9):
            optimizer.observe(found)
            (candidate,) = optimizer.generate()
            ran = StageRun(name="one", key=f"{index:064x}", cost=900.0, snapshot=True)
            found.append(
                Trial(
                    trial=index,
                    status="completed",
                    generator=candidate.generator,
                    parameters=candidate.parameters,
                    metrics={"loss": float(index % 3)},
                    stages=(ran, StageRun(name="two", key=f"{index + 100:064x}", cost=100.0)),
                )
            )
        return [float(str(t.parameters["second.b"])) for t in found if t.generator == "botorch"]

    drawn = later(with_priors(plain, {"second.b": 0.2}, width=0.05))
    assert all(abs(value - 0.2) < 0.1 for value in drawn)
    assert not all(abs(value - 0.2) < 0.1 for value in later(plain))


def test_priors_are_stored_only_where_there_are_any() -> None:
    searched = with_priors(space(*MIXED), CENTRE)
    assert from_json(to_json(searched)) == searched
    assert not any("prior" in parameter for parameter in to_json(space(*MIXED))["parameters"])


@pytest.mark.parametrize(("name", "width"), [("lr", 1e-310), ("layers", 1e-200)])
def test_a_prior_of_almost_no_width_is_no_number_out_of_range(name: str, width: float) -> None:
    searched = with_priors(space(*MIXED), {name: CENTRE[name]}, width=width)
    encoding, adapter = Encoding(Domain(searched)), fitted_adapter(searched)
    with silence("ax"):
        log_prior = LogPrior(adapter, encoding, searched)
        away = {axis.name: 0.9 for axis in encoding.axes}
        rows = ModelRows(adapter).rows([encoding.at_shares(away), encoding.at_shares({**away, "p0": 0.5})])
        found = log_prior(rows)
    assert torch.isfinite(found).all()
    assert float(found[0]) == pytest.approx(math.log(0.1), abs=1e-6)
