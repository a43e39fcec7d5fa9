"""Changes of a sweep's limits, over every kind of store: one order for all, honoured from the next claim on."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.errors import DamagedObject, InputError, SweepClosed
from sweeps.experiment import Experiment
from sweeps.space.definition import Budget, Space
from sweeps.storage.base import Store
from sweeps.storage.local import LocalStore
from sweeps.trials import amendments, control
from sweeps.trials.amendments import Amendment, amended


def made(store: Store, space: Space, run_cap: int = 2) -> Experiment:
    return Experiment.create(store, replace(space, run_cap=run_cap))


def test_worker_honours_larger_run_cap_at_next_claim(store, space) -> None:
    worker, person = made(store, space), Experiment.open(store)
    assert [worker.ask("w").trial, worker.ask("w").trial] == [0, 1]
    assert worker.ask("w") is None
    amendment = person.extend({"run_cap": 3}, by="ada@desk")
    assert (amendment.number, amendment.by, dict(amendment.changes)) == (1, "ada@desk", {"run_cap": 3})
    assert abs(amendment.at - store.now()) < 60
    assert worker.ask("w").trial == 2
    assert worker.ask("w") is None
    assert (worker.space.run_cap, worker.written.run_cap) == (3, 2)
    assert Experiment.open(store).space.run_cap == 3


def test_lower_limits_close_and_none_reopens(store, space, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, person = made(store, space, 9), Experiment.open(store)
    person.extend({"until": store.now() - 5}, by="ada")
    with pytest.raises(SweepClosed, match="after 20"):
        worker.ask("w")
    person.extend({"until": None}, by="ada")
    assert worker.ask("w").trial == 0
    person.extend({"wall_hours": 0.5}, by="ada")
    now = store.now
    with monkeypatch.context() as later:
        later.setattr(store, "now", lambda: now() + 3600)
        with pytest.raises(SweepClosed, match="wall_hours are spent"):
            worker.ask("w")
    person.extend({"wall_hours": None, "run_cap": 1}, by="ada")
    assert worker.ask("w") is None


def test_amendments_leave_sweep_json_unchanged(store, space) -> None:
    sweep = made(store, space)
    before = store.read("sweep.json")
    sweep.extend({"run_cap": 50, "until": 4e9}, by="ada")
    assert store.read("sweep.json") == before
    assert "until" not in before[0].decode()  # which such a version would not know
    assert Experiment.create(store, replace(space, run_cap=2), skip_if_exists=True).space.run_cap == 50


def test_concurrent_amendments_are_numbered(store, space) -> None:
    made(store, space)
    barrier = threading.Barrier(4)

    def extend(cap: int) -> None:
        mine = Experiment.open(store)
        barrier.wait()
        mine.extend({"run_cap": cap}, by=f"person {cap}")

    people = [threading.Thread(target=extend, args=(10 + nth,)) for nth in range(4)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    opened = Experiment.open(store)
    assert [amendment.number for amendment in opened.amendments.made] == [1, 2, 3, 4]
    assert {amendment.changes["run_cap"] for amendment in opened.amendments.made} == {10, 11, 12, 13}
    assert opened.space.run_cap == opened.amendments.made[-1].changes["run_cap"]


def test_larger_limits_of_a_space_extend_the_sweep(store, space) -> None:
    written = replace(space, run_cap=2, budget=Budget(wall_hours=1.0))
    sweep = Experiment.create(store, written)
    assert sweep.raise_limits(written, by="ada") is None
    first = sweep.raise_limits(replace(written, run_cap=5, budget=Budget(wall_hours=8.0)), by="ada")
    assert first is not None
    assert dict(first.changes) == {"run_cap": 5, "wall_hours": 8.0}
    assert sweep.raise_limits(written, by="ada") is None  # the settings it was made with change nothing
    assert (sweep.space.run_cap, sweep.space.budget.wall_hours) == (5, 8.0)
    assert sweep.raise_limits(replace(written, run_cap=None), by="ada") is not None
    assert sweep.space.run_cap is None


@pytest.mark.parametrize(
    ("smaller", "option"),
    [
        ({"run_cap": 1}, "--run-cap 1"),
        ({"run_cap": 3}, "--run-cap 3"),
        ({"budget": Budget(usd=2.5)}, "--budget usd=2.5"),
    ],
)
def test_smaller_limits_name_sweep_extend(store, space, smaller, option) -> None:
    sweep = made(store, space)
    sweep.extend({"run_cap": 5}, by="ada")
    with pytest.raises(InputError, match=f"sweep extend {option} --storage"):
        sweep.raise_limits(replace(sweep.written, **smaller), by="ada")
    assert len(Experiment.open(store).amendments.made) == 1


def test_damaged_record_stops_workers_not_listings(store, space) -> None:
    worker, person = made(store, space), Experiment.open(store)
    person.extend({"run_cap": 5}, by="ada")
    store.create(amendments.key(2), b'{"schema": 1, "chan')
    with pytest.raises(DamagedObject, match=r"amendments/0002\.json: damaged record"):
        worker.ask("w")
    opened = Experiment.open(store)
    assert (opened.space.run_cap, len(opened.amendments.damaged)) == (5, 1)
    with pytest.raises(DamagedObject):
        opened.extend({"run_cap": 9}, by="ada")


def test_worker_of_deleted_sweep_creates_no_trial(tmp_path, space) -> None:
    store = LocalStore(tmp_path / "sweep")
    worker = made(store, space)
    (tmp_path / "sweep").rename(tmp_path / "other")
    with pytest.raises(SweepClosed, match="renamed or deleted"):
        worker.ask("w")
    assert not (tmp_path / "sweep" / "trials").exists()
    assert control.read(store) == "running"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"schema": 1, "changes": [1]}', b'{"schema": 2, "changes": {}}',
        b'{"schema": 1, "changes": {"run_cap": 0}}', b'{"schema": 1, "changes": {"run_cap": 1.5}}',
        b'{"schema": 1, "changes": {"run_cap": true}}', b'{"schema": 1, "changes": {"usd": NaN}}',
        b'{"schema": 1, "changes": {"usd": "9"}}', b'{"schema": 1, "changes": {"lease": 9}}',
        b'{"schema": 1, "changes": {"name": ""}}', b'{"schema": 1, "changes": {"archived": 1}}',
    ],
)  # fmt: skip
def test_what_no_version_wrote_is_refused(data) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        amendments.decoded(1, data)


@pytest.mark.parametrize(
    "changes", [{}, {"lease": 1}, {"run_cap": 2.5}, {"usd": -1.0}, {"usd": math.inf}, {"run_cap": True}]
)
def test_no_sweep_is_changed_so(store, space, changes) -> None:
    sweep = made(store, space)
    with pytest.raises(InputError):
        sweep.extend(changes, by="ada")
    assert store.list(amendments.PREFIX) == []


limits = st.dictionaries(
    st.sampled_from(amendments.LIMITS), st.none() | st.integers(min_value=1, max_value=10**6), max_size=3
)


@given(st.lists(limits, max_size=5))
def test_the_last_value_of_each_limit_holds_and_all_else_stays(steps) -> None:
    space = Space(name="s", objectives=(), parameters=(), program=None, run_cap=7, budget=Budget(usd=3.0))
    found = amended(space, [Amendment(number=nth, changes=step) for nth, step in enumerate(steps, 1)])
    last = {name: value for step in steps for name, value in step.items()}
    for name in amendments.LIMITS:
        before, after = amendments.limits(space)[name], amendments.limits(found)[name]
        assert after == last.get(name, before)
    assert found.run_cap == last.get("run_cap", 7)
    assert found.budget.usd == last.get("usd", 3.0)
    assert replace(found, run_cap=7, budget=space.budget, search=space.search) == space


@given(limits)
def test_what_is_written_is_read_back(changes) -> None:
    data = amendments.encoded(changes, "ada@desk", 12.5)
    found = amendments.decoded(3, data)
    assert (dict(found.changes), found.by, found.at, found.number) == (changes, "ada@desk", 12.5, 3)
    assert json.loads(data)["schema"] == amendments.SCHEMA
