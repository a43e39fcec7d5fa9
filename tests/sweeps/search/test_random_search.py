"""Random search: points of a scrambled Sobol sequence, each once, by the records alone, without Ax."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.errors import NothingToAsk
from sweeps.experiment import Experiment
from sweeps.search.random_search import RandomSearch
from sweeps.space.definition import Choice, Fixed, Range, Search, Space
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

RANDOM = Search(method="random", seed=7)
BASELINE = {"lr": 1e-3, "warm": False, "act": "relu", "mode": "fast"}


def drawn(space: Space, count: int, search: RandomSearch | None = None) -> list[Trial]:
    """Return the first records of a sweep; with `search`, by one object that lives through it."""
    records: list[Trial] = []
    for index in range(count):
        baseline = space.baseline if index == 0 else None
        parameters = baseline or (search or RandomSearch(space)).candidate(records)
        records.append(
            Trial(trial=index, status="pending", parameters=parameters, generator="sobol", created=0)
        )
    return records


@pytest.fixture
def mixed(space: Space) -> Space:
    parameters = (
        Range(name="lr", min=1e-4, max=1e-1, kind="float", log=True),
        Choice(name="warm", values=(True, False), when=((True, ("steps",)),)),
        Range(name="steps", min=2, max=17, kind="int"),
        Choice(name="act", values=("relu", "gelu", "silu", "swiglu")),
        Fixed(name="mode", value="fast"),
    )
    return replace(space, parameters=parameters, search=RANDOM, baseline=BASELINE, run_cap=None)


def test_same_records_give_the_same_candidate(mixed):
    records = drawn(mixed, 20)
    assert drawn(mixed, 20, RandomSearch(mixed)) == records
    assert drawn(replace(mixed, search=replace(RANDOM, seed=8)), 20) != records


def test_candidates_belong_to_the_space(mixed):
    domain = Domain(mixed)
    for record in drawn(mixed, 64):
        assert domain.misfit(record.parameters) is None
        assert ("steps" in record.parameters) == record.parameters["warm"]


def test_each_axis_is_divided_evenly(mixed):
    """Of 16 points of a scrambled Sobol sequence one lies in each sixteenth of each axis."""
    records = drawn(mixed, 17)[1:]  # the sequence is balanced from its start, after the baseline
    places = [math.floor(16 * math.log10(record.parameters["lr"] / 1e-4) / 3) for record in records]
    assert sorted(places) == list(range(16))
    kinds = [record.parameters["act"] for record in records]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(("relu", "gelu", "silu", "swiglu"), 4)


def test_logarithmic_integers_are_drawn_by_their_logarithm(space):
    """Half a unit more at both ends gives the first and the last the same share as others of their size."""
    steps = Range(name="n", min=1, max=64, kind="int", log=True)
    other = Range(name="x", min=0.0, max=1.0, kind="float")  # so that no configuration is used up
    records = drawn(replace(space, parameters=(steps, other), search=RANDOM, run_cap=None), 257)[1:]
    below = sum(record.parameters["n"] <= 8 for record in records) / len(records)
    assert below == pytest.approx(math.log(8.5 / 0.5) / math.log(64.5 / 0.5), abs=0.01)


def test_first_is_the_middle_without_a_baseline(space):
    (first,) = drawn(replace(space, search=RANDOM), 1)
    assert first.parameters == Domain(space).middle()


def test_finite_space_is_used_up(space):
    parameters = (Choice(name="a", values=(1, 2, 3)), Choice(name="b", values=("x", "y")))
    finite = replace(space, parameters=parameters, search=RANDOM)
    records = drawn(finite, 6)
    assert len({tuple(record.parameters.values()) for record in records}) == 6
    with pytest.raises(NothingToAsk, match="every configuration of the search space"):
        RandomSearch(finite).candidate(records)


def test_changed_records_are_noted_anew(mixed):
    search = RandomSearch(mixed)
    records = drawn(mixed, 5, search)
    following = search.candidate(records)
    others = [*records[:4], replace(records[4], parameters=following)]
    assert search.candidate(others) != following
    assert search.candidate(records) == following


def test_constraints_are_kept(space):
    ranges = tuple(Range(name=name, min=0.0, max=1.0, kind="float") for name in ("x", "y"))
    constrained = replace(space, parameters=ranges, parameter_constraints=("x + y <= 0.5",))
    experiment = Experiment.create(MemoryStore(), constrained)
    for worker in ("a", "b", "c", "d"):
        trial = experiment.ask(worker)
        assert trial is not None
        assert trial.parameters["x"] + trial.parameters["y"] <= 0.5
