"""Candidates of a sweep whose trials share their first stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import Optimizer, asker, require_searchable
from sweeps.search.optimizer.stage_choice import FRESH_SEPARATION
from sweeps.search.shared_stages import FEWEST, SEPARATION
from sweeps.space.definition import (
    Choice,
    Fidelity,
    Objective,
    Parameter,
    Program,
    Range,
    Search,
    Space,
    Stage,
    Value,
)
from sweeps.space.domain import Domain
from sweeps.space.scale import to_unit
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

FIRST = ("first.a", "first.gate", "first.k")
FLOATS = (
    Range(name="first.a", min=1e-4, max=1e-2, kind="float", log=True),
    Range(name="second.b", min=0.0, max=1.0, kind="float"),
    Range(name="second.c", min=0.0, max=1.0, kind="float"),
)
MIXED = (
    FLOATS[0],
    Choice(name="first.gate", values=("on", "off"), when=(("on", ("first.k",)),)),
    Range(name="first.k", min=0.0, max=1.0, kind="float"),
    FLOATS[1],
    Choice(name="second.kind", values=("x", "y", "z")),
)


def space(
    first: str = "900", second: str = "100", parameters: tuple[Parameter, ...] = FLOATS, **rest: Any
) -> Space:
    rest.setdefault("search", Search(sobol=6, seed=3))
    rest.setdefault("objectives", (Objective(metric="loss"),))
    return Space(
        name="case",
        parameters=parameters,
        program=Program(kind="function", function="m:f"),
        stages=(
            Stage(name="one", parameters=("first.*",), cost=first),
            Stage(name="two", parameters=("second.*",), cost=second),
        ),
        **rest,
    )


def loss(parameters: Mapping[str, Value]) -> float:
    first = abs(math.log10(float(parameters["first.a"])) + 2.7)
    return first + (float(parameters["second.b"]) - 0.3) ** 2 + 0.1 * (parameters.get("second.kind") == "y")


def prefix(parameters: Mapping[str, Value]) -> tuple[Value | None, ...]:
    return tuple(parameters.get(name) for name in FIRST)


def search(
    searched: Space,
    trials: int,
    metrics: Callable[[Mapping[str, Value]], dict[str, float]] = lambda p: {"loss": loss(p)},
    *,
    snapshot: bool = True,
) -> list[Trial]:
    optimizer = Optimizer(searched)
    records: list[Trial] = []
    for index in range(trials):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        records.append(
            Trial(
                trial=index,
                status="completed",
                parameters=candidate.parameters,
                generator=candidate.generator,
                metrics=metrics(candidate.parameters),
                stages=(StageRun(name="one", key=f"{index:064x}", cost=1.0, snapshot=snapshot),),
            )
        )
    return records


def on_published(records: list[Trial]) -> list[bool]:
    """Return of each trial whether one before it has its first stage."""
    return [
        any(prefix(record.parameters) == prefix(other.parameters) for other in records[:at])
        for at, record in enumerate(records)
    ]


@pytest.fixture(scope="module")
def dear() -> list[Trial]:
    """Return trials whose first stage is nearly all of the cost."""
    return search(space(), 10)


def test_first_design_has_four_first_stages(dear: list[Trial]):
    assert [record.generator for record in dear[:7]] == ["sobol"] * 6 + ["botorch"]
    assert dear[0].parameters["second.b"] == 0.5
    assert on_published(dear)[:6] == [False] * 4 + [True] * 2
    best = min(dear[:4], key=lambda record: loss(record.parameters))
    assert prefix(dear[4].parameters) == prefix(best.parameters)


def test_first_design_compares_first_stages(dear: list[Trial]):
    def later(record: Trial) -> tuple[Value, ...]:
        return record.parameters["second.b"], record.parameters["second.c"]

    assert {later(record) for record in dear[:4]} == {later(dear[0])}
    assert len({later(record) for record in dear[3:]}) == len(dear[3:])
    optimizer = Optimizer(space())
    optimizer.observe([replace(dear[0], status="failed", metrics={}, failure="diverged"), *dear[1:2]])
    optimizer.observe([replace(dear[0], status="failed", metrics={}, failure="diverged")])
    (candidate,) = optimizer.generate()
    assert candidate.parameters["second.b"] != dear[0].parameters["second.b"]


def test_the_first_design_tries_every_option_of_the_first_stage():
    kinds = ("v", "w", "x", "y", "z")
    parameters = (*FLOATS, Choice(name="first.kind", values=kinds))
    records = search(space(parameters=parameters, search=Search(sobol=6, seed=3)), 5)
    assert {record.parameters["first.kind"] for record in records} == set(kinds)


def test_a_long_ordered_list_in_the_first_stage_is_no_first_stage_for_each_value():
    values = Choice(name="first.a", values=tuple(range(1, 9)), ordered=True)
    records = search(space("600", "400", parameters=(values, *FLOATS[1:]), search=Search(seed=3)), 8)
    assert {record.generator for record in records} == {"sobol"}
    assert len({prefix(record.parameters) for record in records}) == FEWEST
    later = [(record.parameters["second.b"], record.parameters["second.c"]) for record in records]
    assert len(set(later[:FEWEST])) == 1
    assert len(set(later)) == 1 + len(later) - FEWEST


@pytest.mark.parametrize("seed", range(6))
def test_the_first_design_tries_every_option_of_later_stages(seed: int):
    kinds = ("x", "y", "z")
    parameters = (*FLOATS, Choice(name="second.kind", values=kinds))
    records = search(space(parameters=parameters, search=Search(sobol=6, seed=seed)), 6)
    assert {record.parameters["second.kind"] for record in records} == set(kinds)


def later_stages_alone(parameters: Mapping[str, Value]) -> dict[str, float]:
    return {"loss": (float(parameters["second.b"]) - 0.3) ** 2}


@pytest.mark.slow
def test_fresh_first_stage_is_due_after_equal_compute():
    records = search(space(first="500", second="500"), 15, later_stages_alone)
    cached = "".join("c" if on else "f" for on in on_published(records))
    assert "c" in cached[6:]
    assert "ccc" not in cached[6:], cached
    first = [to_unit(FLOATS[0], float(record.parameters["first.a"])) for record in records]
    due = [at for at in range(8, len(records)) if cached[at - 2 : at + 1] == "ccf"]
    assert due
    for at in due:
        assert min(abs(first[at] - other) for other in first[:at]) >= FRESH_SEPARATION


def test_below_the_target_of_fidelity_the_search_is_the_same():
    """The ninth trial is a fresh first stage that is due, and the tenth ignores costs."""
    half = space(first="500", second="500")
    records = search(half, 10, later_stages_alone)
    assert on_published(records)[6:9] == [True, True, False]
    width = Choice(name="first.width", values=(1, 2), ordered=True)
    fidelity = (Fidelity(parameter=width.name, cost=(0.1, 1.0)),)
    optimizer = asker(replace(half, parameters=(*FLOATS, width), fidelity=fidelity, run_cap=30))
    cheap = [
        replace(each, generator="fidelity", parameters={**each.parameters, width.name: 1}) for each in records
    ]
    for known in (8, 9):
        optimizer.observe(cheap[:known])
        (candidate,) = optimizer.generate()
        assert (candidate.generator, candidate.parameters) == ("fidelity", cheap[known].parameters), known


@pytest.mark.parametrize(
    ("searched", "trials"),
    [
        pytest.param(space(search=Search(seed=3)), 8, id="a first stage is shared"),
        pytest.param(space("500", "500", search=Search(seed=3)), 8, id="it is half of the cost"),
        pytest.param(space("40", "960", search=Search(seed=3)), 6, id="it costs next to nothing"),
        pytest.param(space(search=Search(seed=3, reuse="none")), 6, id="reuse is off"),
        pytest.param(space(search=Search(seed=3, sobol=5)), 5, id="the space says how many"),
    ],
)
def test_sharing_decides_length_of_first_design(searched: Space, trials: int):
    assert require_searchable(searched) == trials


def test_expensive_first_stage_is_reused_by_different_trials(dear: list[Trial]):
    assert sum(on_published(dear)[6:]) >= 2
    encoding = Encoding(Domain(space()))
    points = [encoding.encode(record.parameters) for record in dear]
    for one, other in itertools.combinations(filter(None, points), 2):
        assert encoding.distance(one, other) >= SEPARATION


def test_a_better_first_stage_is_asked_for_where_it_costs_little():
    cheap = search(space(first="100", second="900"), 8)
    assert on_published(cheap)[6:].count(False) >= 1


def test_unstored_checkpoints_are_not_shared():
    assert not any(on_published(search(space(), 5, snapshot=False)))


def test_rebuilt_from_the_records_it_asks_the_same(dear: list[Trial]):
    known = 8
    optimizer = Optimizer(space())
    running = replace(dear[known], status="running", metrics={}, stages=())
    optimizer.observe([*dear[:known], running])
    published = replace(running, stages=dear[known].stages)
    optimizer.observe([*dear[:known], published])
    rebuilt = Optimizer(space())
    rebuilt.observe([*dear[:known], published])
    assert optimizer.generate() == rebuilt.generate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "equal",
    [
        pytest.param(space(search=Search(sobol=6, seed=3, reuse="none")), id="reuse is off"),
        pytest.param(space(first="0"), id="the first stage costs nothing"),
        pytest.param(
            replace(space(), stages=(Stage(name="one", parameters=("none",)), *space().stages)),
            id="no parameter is the first stage's",
        ),
    ],
)
def test_unshared_stages_do_not_change_candidates(dear: list[Trial], equal: Space):
    plain = Optimizer(replace(equal, stages=()))
    same = Optimizer(equal)
    for records in (dear[:2], dear[:8]):
        plain.observe(records)
        same.observe(records)
        assert plain.generate() == same.generate()


def test_random_search_shares_nothing():
    searched = space(search=Search(method="random", sobol=2, seed=3))
    assert not any(on_published(search(searched, 8)))


def test_several_objectives_share_stages_too():
    def metrics(parameters: Mapping[str, Value]) -> dict[str, float]:
        return {"loss": loss(parameters), "score": 3.0 * float(parameters["second.b"])}

    objectives = (Objective(metric="loss"), Objective(metric="score", goal="maximize"))
    records = search(space(objectives=objectives), 7, metrics)
    assert [record.generator for record in records] == ["sobol"] * 6 + ["botorch"]
    assert on_published(records)[6]


def test_conditional_and_unordered_parameters_are_shared():
    designed = space(parameters=MIXED, search=Search(sobol=9, seed=3))
    records = search(designed, 8)
    assert len({prefix(record.parameters) for record in records}) == 4
    optimizer = Optimizer(space(parameters=MIXED))
    optimizer.observe(records)
    (candidate,) = optimizer.generate()
    assert candidate.generator == "botorch"
    assert prefix(candidate.parameters) in {prefix(record.parameters) for record in records}
    assert ("first.k" in candidate.parameters) == (candidate.parameters["first.gate"] == "on")
