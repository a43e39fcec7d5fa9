"""The optimizer's candidates: values of the space, never twice, constraints kept, and when it gives up."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sweeps.errors import NothingToAsk, SpaceError
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import Candidate, Optimizer, ax_experiment, require_searchable
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import (
    Choice,
    Fixed,
    Objective,
    Parameter,
    Program,
    Range,
    Search,
    Space,
    Value,
)
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

Objectives = tuple[Objective, ...]


def space(*parameters: Parameter, sobol: int = 3, **rest: Any) -> Space:
    rest.setdefault("objectives", (Objective(metric="loss"),))
    rest.setdefault("search", Search(sobol=sobol, seed=7))
    return Space(name="case", parameters=parameters, program=Program(kind="function", function="m:f"), **rest)


def real(name: str, low: float = 0.0, high: float = 1.0, *, log: bool = False) -> Range:
    return Range(name=name, min=low, max=high, kind="float", log=log)


def integer(name: str, low: int, high: int, *, log: bool = False) -> Range:
    return Range(name=name, min=low, max=high, kind="int", log=log)


TWO_STAGE = space(
    real("stage1_9.optimizer.lr", 1e-3, 8e-3, log=True),
    integer("stage1_9.max_steps", 50, 1000, log=True),
    Choice(
        name="stage1_9.saliency.enabled",
        values=(True, False),
        when=((True, ("stage1_9.saliency.initial_k", "stage1_9.saliency.note")),),
    ),
    Choice(name="stage1_9.saliency.initial_k", values=(0.05, 0.1, 0.15, 0.2), ordered=True),
    Fixed(name="stage1_9.saliency.note", value="on"),
    Choice(name="schedule", values=("linear", "cosine", "wsd")),
    integer("beta", 1, 4),
    Fixed(name="stage2.max_steps", value=200),
)


def search(
    searched: Space, function: Callable[[Mapping[str, Value]], float | None], trials: int
) -> list[Trial]:
    """Run a sweep one by one; a trial whose function gives None has failed."""
    optimizer = Optimizer(searched)
    records: list[Trial] = []
    for index in range(trials):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        records.append(ended(index, candidate, function(candidate.parameters)))
    return records


def ended(index: int, candidate: Candidate, loss: float | None) -> Trial:
    return Trial(
        trial=index,
        status="failed" if loss is None else "completed",
        parameters=candidate.parameters,
        generator=candidate.generator,
        metrics={} if loss is None else {"loss": loss},
    )


def distinct(records: list[Trial]) -> int:
    return len({tuple(record.parameters.items()) for record in records})


@pytest.fixture(scope="module")
def two_stage() -> list[Trial]:
    return search(TWO_STAGE, lambda p: float(p["beta"]), 7)


def test_candidates_have_active_parameters_in_order(two_stage: list[Trial]):
    kinds = {p.name: p for p in TWO_STAGE.parameters}
    for record in two_stage:
        parameters = record.parameters
        assert tuple(parameters) == TWO_STAGE.active(parameters)
        assert type(parameters["stage1_9.optimizer.lr"]) is float
        assert type(parameters["stage1_9.max_steps"]) is int
        assert type(parameters["stage1_9.saliency.enabled"]) is bool
        assert type(parameters["beta"]) is int
        assert parameters["stage2.max_steps"] == 200
        for name, value in parameters.items():
            known = kinds[name]
            if isinstance(known, Range):
                assert known.min <= float(value) <= known.max
            elif isinstance(known, Choice):
                assert value in known.values
    assert {record.generator for record in two_stage} == {"sobol", "botorch"}


@pytest.mark.slow
def test_both_branches_of_a_condition_are_searched(two_stage: list[Trial]):
    names = [set(record.parameters) for record in two_stage]
    with_k = ["stage1_9.saliency.initial_k" in found for found in names]
    assert any(with_k)
    assert not all(with_k)
    assert all(("stage1_9.saliency.note" in found) is k for found, k in zip(names, with_k, strict=True))


ODD = {
    "ranges": [
        real("small", 1e-6, 1e-5, log=True),
        real("smaller", 1e-12, 1e-11, log=True),
        real("around 0", -1e-9, 1e-9),
        real("huge", -1e300, 1e300),
    ],
    "integers": [
        integer("log", 1, 10**9, log=True),
        integer("huge", 0, 2**53),
        integer("around 0", -5, 5),
        integer("few", 1, 40, log=True),
    ],
    "choices": [
        Choice(name="mixed", values=(1, 0.5, 2)),
        Choice(name="tiny", values=(1e-9, 2e-9, 4e-9), ordered=True),
        Choice(name="words", values=("true", "1", "null", "a b", "ß")),
    ],
}


@pytest.mark.parametrize("kind", ODD)
def test_ranges_that_ax_refuses_are_searched(kind: str):
    records = search(space(*ODD[kind], real("x")), lambda p: float(p["x"]), 5)
    assert [record.generator for record in records] == ["sobol"] * 3 + ["botorch"] * 2
    for parameter, record in itertools.product(ODD[kind], records):
        value = record.parameters[parameter.name]
        if isinstance(parameter, Choice):
            assert any(value is member for member in parameter.values)
        else:
            assert isinstance(value, int if parameter.kind == "int" else float)
            assert parameter.min <= value <= parameter.max
    for parameter in ODD[kind]:
        assert len({record.parameters[parameter.name] for record in records}) > 1, parameter.name
    assert distinct(records) == 5


@pytest.mark.parametrize("name", ["beta", "gamma", "S", "lambda", "E1", "x", "a.b/c", "model.0.lr", "Symbol"])
def test_any_hydra_key_is_a_name(name: str):
    (candidate,) = Optimizer(space(real(name), real("other"))).generate()
    assert list(candidate.parameters) == [name, "other"]


def test_a_logarithmic_range_is_sampled_evenly_in_its_logarithm():
    found = Optimizer(space(real("lr", 1e-6, 1e-2, log=True), sobol=64)).generate(64)
    below = sum(float(c.parameters["lr"]) < 1e-4 for c in found)
    assert 28 <= below <= 36


def test_the_ends_of_an_integer_range_get_their_share():
    found = Optimizer(space(integer("n", 0, 999), real("x"), sobol=512)).generate(512)
    values = [int(c.parameters["n"]) for c in found]
    assert min(values) <= 4
    assert max(values) >= 995
    assert abs(sum(values) / len(values) - 499.5) < 10


def test_a_normal_range_is_sampled_by_its_distribution():
    rate = Range(name="lr", min=1e-5, max=1.0, kind="float", log=True, normal=(math.log(1e-3), 0.5))
    drawn = [math.log(float(r.parameters["lr"])) for r in search(space(rate, sobol=65), lambda _: None, 64)]
    assert statistics.mean(drawn) == pytest.approx(math.log(1e-3), abs=0.1)
    assert statistics.stdev(drawn) == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_steps_and_conditions_on_numbers_are_searched():
    stepped = space(
        Range(name="steps", min=0, max=3, kind="int", when=(("> 0", ("lr", "wd")),)),
        Range(name="lr", min=0.1, max=0.9, kind="float", step=0.2),
        Range(name="wd", min=-2.0, max=2.0, kind="float", normal=(0.0, 1.0)),
        sobol=4,
    )
    records = search(stepped, lambda p: float(p.get("lr", 1.0)) - float(p["steps"]), 9)
    assert {r.generator for r in records} == {"sobol", "botorch"}
    for record in records:
        assert set(record.parameters) == ({"steps", "lr", "wd"} if record.parameters["steps"] else {"steps"})
        assert record.parameters.get("lr", 0.1) in (0.1, 0.3, 0.5, 0.7, 0.9)
    assert min(float(r.metrics["loss"] or 0) for r in records) <= -2.7  # the optimum is -2.9


def test_the_surrogate_finds_the_minimum_of_a_valley():
    records = search(
        space(real("lr", 1e-5, 1e-1, log=True), real("x")),
        lambda p: math.log10(float(p["lr"]) / 1e-3) ** 2 + (float(p["x"]) - 0.3) ** 2,
        11,
    )
    best = min(record.metrics["loss"] for record in records if record.metrics["loss"] is not None)
    assert best < 0.01


def test_no_trial_is_left_to_chance_once_the_optimum_in_a_corner_was_tried():
    """There the maximiser finds the same corner again and again."""
    records = search(
        space(real("x"), integer("n", 1, 8)), lambda p: float(p["x"]) - math.log(float(p["n"])), 9
    )
    assert {"x": 0.0, "n": 8} in [record.parameters for record in records[:6]]
    assert {record.generator for record in records[3:]} == {"botorch"}


@pytest.mark.slow
@pytest.mark.usefixtures("all_starts")
def test_narrow_space_with_its_corner_tried_gives_no_warning(caplog):
    """None of the points all over the space is within its constraint."""
    searched = space(
        integer("n", 0, 100_000), integer("w", 0, 100_000), parameter_constraints=("n + w <= 50",)
    )
    records = search(searched, lambda p: float(p["n"]) + float(p["w"]), 9)
    assert {"n": 0, "w": 0} in [record.parameters for record in records]
    assert distinct(records) == 9
    assert caplog.messages == []


def test_random_search_never_fits_a_surrogate():
    searched = space(real("x"), search=Search(method="random", sobol=2))
    assert {record.generator for record in search(searched, lambda p: float(p["x"]), 6)} == {"sobol"}


def test_sobol_phase_ignores_failed_and_baseline():
    searched = space(real("x"), real("y"), sobol=3)
    optimizer = Optimizer(searched)
    records = [
        Trial(
            trial=0,
            status="completed",
            parameters={"x": 0.5, "y": 0.5},
            generator="baseline",
            metrics={"loss": 1.0},
        )
    ]
    generators = []
    for index, loss in enumerate([1.0, None, 2.0, 3.0, 4.0], start=1):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        generators.append(candidate.generator)
        records.append(ended(index, candidate, loss))
    assert generators == ["sobol", "sobol", "sobol", "sobol", "botorch"]


@pytest.mark.parametrize("seed", range(10))
def test_the_first_design_tries_every_option(seed: int):
    """Two seeds in fifteen left one of three options out, and the surrogate did not try it in 30 trials."""
    kinds, modes = ("x", "y", "z"), ("fast", "slow")
    choices = Choice(name="kind", values=kinds), Choice(name="mode", values=modes)
    optimizer = Optimizer(space(real("lr", 1e-4, 1e-2, log=True), *choices, search=Search(seed=seed)))
    tried = [candidate.parameters for candidate in optimizer.generate(6)]
    for name, options in (("kind", kinds), ("mode", modes)):
        assert {parameters[name] for parameters in tried} == set(options)


def test_an_option_whose_trial_was_lost_comes_again_in_the_first_design():
    searched = space(real("lr"), Choice(name="kind", values=("x", "y", "z")), sobol=8)
    (first, *others) = Optimizer(searched).generate(3)
    assert {first.parameters["kind"], *(each.parameters["kind"] for each in others)} == {"x", "y", "z"}
    lost = others[-1]
    records = [ended(0, first, 1.0), ended(1, others[0], 1.0)]
    records.append(replace(ended(2, lost, None), status="abandoned"))
    optimizer = Optimizer(searched)
    optimizer.observe(records)
    (again,) = optimizer.generate()
    assert again.parameters["kind"] == lost.parameters["kind"]
    assert again.parameters != lost.parameters


def test_parallel_asks_without_results_stay_with_sobol():
    found = Optimizer(space(real("x"), sobol=3)).generate(9)
    assert {candidate.generator for candidate in found} == {"sobol"}
    assert len({candidate.parameters["x"] for candidate in found}) == 9


def test_one_result_is_enough_after_one_sobol_trial():
    records = search(space(real("x"), real("y"), sobol=1), lambda p: float(p["x"]), 3)
    assert [record.generator for record in records] == ["sobol", "botorch", "botorch"]


def test_finite_space_is_used_up():
    searched = space(Choice(name="a", values=(True, False)), integer("n", 1, 3), Fixed(name="q", value="z"))
    records = search(searched, lambda p: float(p["n"]), 6)
    assert distinct(records) == 6
    optimizer = Optimizer(searched)
    optimizer.observe(records)
    with pytest.raises(NothingToAsk, match=r"\(6\)"):
        optimizer.generate()


def test_finite_conditional_space_counts_configurations():
    searched = space(
        Choice(name="a", values=("u", "v"), when=(("u", ("n",)),)), integer("n", 1, 3), sobol=100
    )
    records = search(searched, lambda p: 1.0, 4)
    assert distinct(records) == 4
    with pytest.raises(NothingToAsk, match=r"\(4\)"):
        search(searched, lambda p: 1.0, 5)


def test_a_failed_or_abandoned_candidate_is_not_proposed_again():
    searched = space(Choice(name="a", values=(1, 2)), Choice(name="b", values=("u", "v")), sobol=2)
    records = search(searched, lambda p: None if p["a"] == 1 else float(p["a"]), 4)
    assert distinct(records) == 4
    assert sum(record.status == "failed" for record in records) == 2


def test_a_space_of_fixed_values_has_one_candidate():
    searched = space(Fixed(name="q", value=3))
    (candidate,) = Optimizer(searched).generate()
    assert dict(candidate.parameters) == {"q": 3}
    with pytest.raises(NothingToAsk):
        Optimizer(searched).generate(2)


@pytest.mark.slow
@pytest.mark.usefixtures("all_starts")
@pytest.mark.timeout(600)
def test_the_search_leaves_a_region_where_trials_fail():
    """Lower is better to the right, but beyond 0.5 every trial diverges."""
    records = search(
        space(real("x"), real("y"), sobol=3),
        lambda p: None if float(p["x"]) > 0.5 else -float(p["x"]) - float(p["y"]),
        13,
    )
    asked = [record for record in records if record.generator == "botorch"]
    assert len(asked) >= 6
    assert sum(float(record.parameters["x"]) > 0.75 for record in asked) <= len(asked) // 4
    assert min(r.metrics["loss"] or 0.0 for r in asked if r.status == "completed") < -1.1


@pytest.mark.parametrize(
    ("constraints", "holds"),
    [
        (("x + y <= 0.6",), lambda p: p["x"] + p["y"] <= 0.6),
        (("x - y >= 0.2",), lambda p: p["x"] - p["y"] >= 0.2),
        (("n + w <= 50",), lambda p: p["n"] + p["w"] <= 50),
        (("0.01*w + y <= 0.2",), lambda p: 0.01 * p["w"] + p["y"] <= 0.2),
        (("x + y <= 0.0001",), lambda p: p["x"] + p["y"] <= 0.0001),
    ],
    ids=lambda case: " and ".join(case) if isinstance(case, tuple) else "",
)
def test_parameter_constraints_are_kept_exactly(constraints: tuple[str, ...], holds: Callable[[Any], bool]):
    searched = space(
        real("x"), real("y"), integer("n", 1, 40), integer("w", 1, 500), parameter_constraints=constraints
    )
    found = Optimizer(searched).generate(5)
    assert all(holds(candidate.parameters) for candidate in found)
    assert len({tuple(candidate.parameters.items()) for candidate in found}) == 5


def test_a_running_trial_on_a_constraint_is_a_pending_point():
    """Ax's constraints are a little tighter than the user's, whose own trial may lie exactly on one."""
    searched = space(real("x"), real("y"), parameter_constraints=("x + y <= 1",))
    optimizer, encoding = Optimizer(searched), Encoding(Domain(searched))
    point = encoding.encode({"x": 0.5, "y": 0.5})
    assert point is not None
    outside = dict.fromkeys(point, 2.0)
    waiting = [(point, {}, ["m0"]), (outside, {}, ["m0"])]
    found = ax_experiment.pending(optimizer.experiment, Outcomes(searched), waiting)
    assert [each.parameters for each in found["m0"]] == [point]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_surrogate_keeps_binding_constraints():
    searched = space(real("x"), real("y"), parameter_constraints=("x + y <= 0.6",))
    asked = search(searched, lambda p: -float(p["x"]) - float(p["y"]), 5)[3:]
    assert [record.generator for record in asked] == ["botorch", "botorch"]
    sums = [float(record.parameters["x"]) + float(record.parameters["y"]) for record in asked]
    assert 0.599 < max(sums) <= 0.6


@pytest.mark.slow
def test_points_in_narrow_region_are_spread():
    """Nearly all points break the constraint, so Ax walks; with its own settings neighbours hardly differ."""
    searched = space(
        real("x"),
        real("y"),
        integer("n", 1, 400),
        integer("w", 1, 500),
        parameter_constraints=("x + y <= 0.6", "n + w <= 50"),
    )
    xs = [float(candidate.parameters["x"]) for candidate in Optimizer(searched).generate(12)]
    assert max(xs) - min(xs) > 0.25
    assert all(abs(a - b) > 1e-3 for a, b in itertools.pairwise(xs))


def test_check_passes_a_space_that_can_be_searched():
    require_searchable(TWO_STAGE)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (
            space(real("x"), real("y"), parameter_constraints=("x + y <= -1",)),
            "no new candidate|constraint",
        ),
        (
            space(
                Choice(name="a", values=(1, 2)),
                integer("n", 1, 2),
                parameter_constraints=("n + 0*a >= 7",),
            ),
            "configuration",
        ),
    ],
    ids=["infeasible", "finite-infeasible"],
)
def test_check_refuses_what_cannot_be_searched_in_one_line(refused: Space, message: str):
    with pytest.raises(SpaceError, match=message) as caught:
        require_searchable(refused)
    assert "\n" not in str(caught.value)


def test_users_see_no_chatter_and_no_change_of_threads(caplog: pytest.LogCaptureFixture, capfd: Any):
    import torch

    threads = torch.get_num_threads()
    search(space(real("x"), real("y"), sobol=2), lambda p: float(p["x"]), 4)
    assert torch.get_num_threads() == threads
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
