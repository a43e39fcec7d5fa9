"""Listings of a folder that trust ended records: what they cost, and all that they must still see."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.experiment import Experiment
from sweeps.space.definition import Space
from sweeps.storage.local import LocalStore
from sweeps.trials import lifecycle, record
from sweeps.trials.lifecycle import Claim, Complete, Expire, Fail, Forget, Retry
from sweeps.trials.record import Trial
from sweeps.trials.repository import ENDED_S, Records
from sweeps.trials.stage_run import StageRun


def pending(index: int) -> Trial:
    return Trial(trial=index, status="pending", parameters={"x": index / 1000}, generator="sobol")


def ended(index: int, **fields: object) -> Trial:
    return replace(pending(index), status="completed", attempt=1, metrics={"loss": 1.0}, **fields)


class Listed:
    """A folder with four trials, of which two have ended, and a reader that has listed them in full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.theirs, self.mine = Records(LocalStore(folder)), Records(LocalStore(folder))
        for made in (ended(0), replace(ended(1), status="failed"), pending(2), pending(3)):
            self.theirs.create(made)
        self.mine.all()

    def statuses(self) -> list[tuple[int, str]]:
        found = self.mine.all(trust_ended_s=ENDED_S)
        assert self.mine.is_partial
        assert found == self.mine.lately()
        return [(each.trial, each.status) for each in found]


@pytest.fixture
def listed(tmp_path) -> Listed:
    return Listed(tmp_path / "sweep")


START = [(0, "completed"), (1, "failed"), (2, "pending"), (3, "pending")]


def test_nothing_has_changed(listed):
    assert listed.statuses() == START


def test_each_change_of_another_worker_is_seen(listed):
    listed.theirs.apply(2, Claim(worker="w"))
    assert listed.statuses() == [*START[:2], (2, "running"), (3, "pending")]
    listed.theirs.apply(2, Complete(worker="w", attempt=1, metrics={"loss": 0.5}))
    assert listed.statuses() == [*START[:2], (2, "completed"), (3, "pending")]
    assert listed.mine.lately()[2].metrics == {"loss": 0.5}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 40])
def test_all_new_trials_are_seen(listed, count):
    for index in range(4, 4 + count):
        listed.theirs.create(pending(index))
    assert listed.statuses() == START + [(index, "pending") for index in range(4, 4 + count)]
    listed.theirs.apply(3 + count, Claim(worker="w"))
    assert listed.statuses()[-1] == (3 + count, "running")


def test_own_and_others_new_trials_are_in_order(listed):
    listed.theirs.create(pending(4))
    listed.mine.create(pending(5))
    assert listed.mine.lately() == []
    assert [each.trial for each in listed.mine.all(trust_ended_s=ENDED_S)] == list(range(6))
    listed.mine.create(pending(6))
    listed.theirs.create(pending(7))
    assert listed.statuses() == START + [(index, "pending") for index in (4, 5, 6, 7)]


def test_retried_trial_is_seen_by_a_full_listing(listed):
    listed.theirs.apply(1, Retry(by="me"))
    assert listed.statuses()[1] == (1, "failed")
    assert listed.mine.all()[1].status == "pending"
    assert not listed.mine.is_partial
    listed.theirs.apply(1, Claim(worker="w"))
    assert listed.statuses()[1] == (1, "running")


def test_removed_snapshot_is_seen(tmp_path):
    stored = StageRun(name="first", key="a" * 64, cost=1.0, snapshot=True)
    theirs, mine = Records(LocalStore(tmp_path)), Records(LocalStore(tmp_path))
    theirs.create(ended(0, stages=(stored,)))
    theirs.create(ended(1))
    assert mine.all()[0].snapshots
    theirs.apply(0, Forget(key="a" * 64))
    assert not mine.all(trust_ended_s=ENDED_S)[0].snapshots


def test_lost_race_is_read_again(listed):
    listed.theirs.apply(2, Claim(worker="other"))
    with pytest.raises(Exception, match="trials/000002"):
        listed.mine.replace(lifecycle.apply(pending(2), Claim(worker="me"), 1.0))
    assert listed.statuses()[2] == (2, "running")


def test_trial_read_before_those_between_is_listed_in_order(listed):
    for index in (4, 5, 6):
        listed.theirs.create(pending(index))
    assert listed.mine.read(6).trial == 6
    assert listed.mine.lately() == []
    found = listed.mine.all(trust_ended_s=ENDED_S)
    assert [each.trial for each in found] == list(range(7))


@pytest.mark.parametrize("gone", [2, 3])
def test_record_set_aside_is_not_listed(listed, gone):
    (listed.folder / record.key(gone)).unlink()
    found = listed.mine.all(trust_ended_s=ENDED_S)
    assert [each.trial for each in found] == [index for index in range(4) if index != gone]


def test_deleted_sweep_has_no_trials(tmp_path):
    mine = Records(LocalStore(tmp_path / "sweep"))
    mine.create(ended(0))
    assert len(mine.all()) == 1
    shutil.rmtree(tmp_path / "sweep")
    assert mine.all(trust_ended_s=ENDED_S) == []


def test_worker_gets_a_retried_trial_before_it_leaves(space: Space, tmp_path):
    space = replace(space, run_cap=2, search=replace(space.search, method="random"))
    mine = Experiment.create(LocalStore(tmp_path / "sweep"), space)
    first, second = (mine.ask("w") for _ in range(2))
    mine.apply(first.trial, Fail(worker="w", attempt=1, error="broken", failure="bad_config"))
    mine.apply(second.trial, Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
    assert mine.ask("w") is None
    Experiment.open(mine.store).apply(first.trial, Retry(by="me"))
    assert mine.ask("w").trial == first.trial


def test_expired_trial_of_another_is_taken_over(listed):
    taken = listed.theirs.apply(2, Claim(worker="w"))
    assert listed.statuses()[2] == (2, "running")
    stale = replace(taken, heartbeat=taken.heartbeat - 100)
    listed.theirs.replace(stale)
    assert listed.mine.all(trust_ended_s=ENDED_S)[2].heartbeat == stale.heartbeat
    assert listed.mine.apply(2, Expire(after_s=30, max_attempts=3)).status == "pending"


def cost_of_a_trial(space: Space, folder: Path, monkeypatch, trials: int, pending_too: int) -> int:
    """Return how many files are examined, opened or listed for an ask and its report, after `trials` others."""
    space = replace(space, run_cap=10_000, search=replace(space.search, method="random"))
    experiment = Experiment.create(LocalStore(folder), space)
    (folder / "trials").mkdir()
    for index in range(trials):
        made = ended(index) if index >= pending_too else replace(pending(index), status="running", worker="o")
        parameters = {"x": index / trials, "n": 1 + index % 100, "mode": "fast"}
        data = record.encode(replace(made, parameters=parameters), f"w{index}")
        (folder / record.key(index)).write_bytes(data)

    def once() -> None:
        asked = experiment.ask("w")
        experiment.apply(asked.trial, Complete(worker="w", attempt=asked.attempt, metrics={"loss": 1.0}))

    once()
    touched = 0
    really = {name: getattr(os, name) for name in ("stat", "lstat", "open", "scandir")}

    def counting(name: str):
        def call(*args, **options):
            nonlocal touched
            touched += 1
            found = really[name](*args, **options)
            if name == "scandir":
                touched += len(list(Path(*args).iterdir()))
            return found

        return call

    with monkeypatch.context() as patched:
        for name in really:
            patched.setattr(os, name, counting(name))
        for _ in range(3):
            once()
    return touched


def test_files_touched_per_trial_do_not_grow(space: Space, tmp_path, monkeypatch):
    """A listing of the folder would add a name, and a `stat`, for each trial there is."""
    costs = [
        cost_of_a_trial(space, tmp_path / f"{trials}-{running}", monkeypatch, trials, running)
        for trials, running in ((100, 0), (1000, 0), (1000, 5))
    ]
    few, many, with_others = costs
    assert few == many > 0
    assert with_others - many == 5 * 2 * 3  # a `stat` for each trial that runs, in two listings of three asks
