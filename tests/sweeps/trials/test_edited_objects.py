"""Edits of `sweep.json` and of records by users or programs: one line, never a traceback."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.errors import DamagedObject
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.search.encoding import Encoding
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial, encode, key
from sweeps.upkeep import diagnostics
from sweeps.upkeep.inventory import survey


def with_first_parameter(**changes: object):
    def edit(space: dict[str, list[dict[str, object]]]) -> None:
        space["parameters"][0] |= changes

    return edit


def with_setting(section: str, **changes: object):
    def edit(space: dict[str, dict[str, object]]) -> None:
        space[section] |= changes

    return edit


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        pytest.param(with_first_parameter(max=float("inf")), "max is inf, not a finite number", id="infinite bound"),
        pytest.param(with_first_parameter(max=10**400), "max is 10+, not a finite number", id="huge bound"),
        pytest.param(with_first_parameter(max="ten"), "max is 'ten', not a finite number", id="text for a bound"),
        pytest.param(with_first_parameter(min=2.0), "nothing between", id="reversed"),
        pytest.param(with_first_parameter(log=True), "logarithmic", id="log of zero"),
        pytest.param(with_setting("lease", expire_s=float("inf")), "lease.expire_s", id="endless lease"),
        pytest.param(with_setting("lease", max_attempts="many"), "lease.max_attempts", id="attempts"),
        pytest.param(with_setting("budget", usd=float("nan")), "budget.usd", id="budget"),
        pytest.param(with_setting("search", method="magic"), "search.method", id="method"),
        pytest.param(lambda space: space.update(outcome_constraints=["x"]), "constraint 'x'", id="constraint"),
        pytest.param(lambda space: space.update(baseline={"x": {"a": 1}}), "baseline.x is", id="baseline"),
    ],
)  # fmt: skip
def test_unsearchable_space_is_refused(space, edit, problem):
    store = MemoryStore()
    Experiment.create(store, space)
    data, version = store.read(SWEEP_KEY)
    document = json.loads(data)
    edit(document["space"])
    store.replace(SWEEP_KEY, json.dumps(document).replace("Infinity", "1e999").encode(), version)
    with pytest.raises(DamagedObject, match=problem) as caught:
        Experiment.open(store)
    assert "\n" not in str(caught.value)
    assert "sweep init" in str(caught.value)


MISFITS = [
    pytest.param({"x": 0.5, "n": 3, "mode": "fast", "z": 1.0}, "z is none of its parameters", id="unknown"),
    pytest.param({"x": 55.5, "n": 3, "mode": "fast"}, r"x is 55\.5", id="out of bounds"),
    pytest.param({"x": 1.7e308, "n": 3, "mode": "fast"}, r"x is 1\.7e\+308", id="far out of bounds"),
    pytest.param({"x": 0.5, "n": 10**300, "mode": "fast"}, r"n is 10+\.\.\.", id="huge integer"),
    pytest.param({"x": 0.5, "n": 2.5, "mode": "fast"}, r"n is 2\.5", id="fraction"),
    pytest.param({"x": "text", "n": 3, "mode": "fast"}, "x is 'text'", id="text"),
    pytest.param({"x": 0.5, "n": 3, "mode": "slow"}, "mode is 'slow', not 'fast'", id="fixed"),
    pytest.param({"n": 3, "mode": "fast"}, "x is missing", id="missing"),
    pytest.param({}, "x is missing", id="empty"),
]


@pytest.mark.parametrize(("parameters", "problem"), MISFITS)
@pytest.mark.parametrize(("status", "level"), [("completed", "note"), ("pending", "problem")])
def test_doctor_names_record_outside_space(experiment, parameters, problem, status, level):
    metrics = {"loss": 1.0} if status == "completed" else {}
    record = Trial(trial=0, status=status, parameters=parameters, generator="sobol", metrics=metrics)
    experiment.store.create(key(0), encode(record, "token"))
    (finding,) = diagnostics.examine(experiment, survey(experiment.store))
    assert (finding.kind, finding.level) == ("outside", level)
    assert finding.what.startswith("trial 0 ")
    assert re.search(problem, finding.what)
    asked = experiment.ask("w1")
    assert asked is not None
    if status == "completed":
        assert set(asked.parameters) == {"x", "n", "mode"}


def test_the_surrogate_does_not_learn_from_what_lies_outside(space):
    encoding = Encoding(Domain(replace(space, run_cap=None)))
    assert encoding.encode({"x": 0.5, "n": 3, "mode": "fast"}) is not None
    assert encoding.encode({"x": 1.0 + 1e-12, "n": 3, "mode": "fast"}) is not None
    assert encoding.encode({"x": 55.5, "n": 3, "mode": "fast"}) is None
    assert encoding.encode({"x": 0.5, "n": 101, "mode": "fast"}) is None
