"""Pipes, loops of links and folders instead of objects: one line, never a wait; `doctor` and `repair` handle them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from memory_store import MemoryStore
from strange import KINDS, stand_in

from sweeps.errors import AlreadyExists, Conflict, DamagedObject
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.storage.local import LocalStore
from sweeps.trials import control
from sweeps.trials import record as trial
from sweeps.trials.lease import ObjectLease
from sweeps.trials.record import Trial
from sweeps.upkeep import diagnostics
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.doctor import examine
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import carry_out

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sweep"


@pytest.fixture
def local(root: Path, space) -> Experiment:
    """Three pending trials in a folder."""
    experiment = Experiment.create(LocalStore(root), space)
    for index in range(3):
        parameters = {"x": index / 4, "n": 10, "mode": "fast"}
        record = Trial(trial=index, status="pending", parameters=parameters, generator="sobol")
        experiment.store.create(trial.key(index), trial.encode(record, f"token-{index}"))
    return experiment


def findings(experiment: Experiment) -> list[tuple[str, str]]:
    found = diagnostics.examine(experiment, survey(experiment.store))
    return [(finding.kind, Path(finding.where).name) for finding in found]


def mend(experiment: Experiment) -> list[tuple[str, str]]:
    outcomes = [carry_out(step) for step in plan(experiment, survey(experiment.store))]
    return [(outcome.step.kind, outcome.state) for outcome in outcomes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [trial.key(1), control.KEY, ASK_KEY])
def test_object_of_wrong_kind_is_named_and_moved(local, root, key, kind):
    stand_in(kind, root / key)
    with pytest.raises(DamagedObject, match=r"sweep repair.*sweep doctor") as caught:
        local.store.read(key)
    assert "\n" not in str(caught.value)
    assert findings(local) == [("strange", Path(key).name)]
    assert mend(local) == [("strange", "done")]
    assert not os.path.lexists(root / key)
    (moved,) = (root / "quarantine").iterdir()
    assert moved.name.startswith(Path(key).name)
    assert (findings(local), mend(local)) == ([], [])
    assert Experiment.open(LocalStore(root)).ask("w1") is not None


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"folder"}))
def test_strange_record_stops_workers_with_advice(local, root, kind):
    stand_in(kind, root / trial.key(1))
    with pytest.raises(DamagedObject, match=r"000001\.json.*sweep repair"):
        local.ask("w1")


@pytest.mark.parametrize("kind", KINDS)
def test_taken_index_is_refused_not_retried_forever(local, root, kind):
    stand_in(kind, root / trial.key(3))
    with pytest.raises(DamagedObject, match=r"000003\.json"):
        local.store.create(trial.key(3), b"{}")
    with pytest.raises(DamagedObject, match=r"000003\.json"):  # noqa: PT012 - a folder, only at the fourth
        for _ in range(4):
            local.ask("w1")


def test_a_record_that_links_to_a_file_is_a_record(local, root):
    (root / trial.key(1)).rename(root / "elsewhere.json")
    (root / trial.key(1)).symlink_to(root / "elsewhere.json")
    assert len(local.trials()) == 3
    with pytest.raises(AlreadyExists):
        local.store.create(trial.key(1), b"{}")
    with pytest.raises(Conflict):
        local.store.set_aside(trial.key(1), "quarantine/000001.json")


def test_a_record_of_gigabytes_is_not_read_into_memory(local, root):
    os.truncate(root / trial.key(1), 2**40)
    with pytest.raises(DamagedObject, match="larger than 64 MiB"):
        local.trials()
    assert findings(local) == [("strange", "000001.json")]
    assert mend(local) == [("strange", "done")]


def test_a_pipe_in_place_of_a_writers_draft_keeps_nobody_waiting(local, root):
    os.mkfifo(root / "trials" / ".000003.json.draft")
    local.store.create(trial.key(3), b"{}")
    assert local.store.read(trial.key(3))[0] == b"{}"


@pytest.mark.parametrize("kind", KINDS)
def test_doctor_advises_on_unopenable_sweep(local, root, kind):
    stand_in(kind, root / SWEEP_KEY)
    diagnosis = examine(lambda: Experiment.open(LocalStore(root)), expected=True)
    (message,) = [f.what for f in diagnosis.findings if f.level == "problem" and "sweep.json" in f.what]
    assert "not a regular file" in message
    assert "sweep init" in message


def test_a_strange_folder_with_files_in_it_is_one_finding(local, root):
    stand_in("folder", root / trial.key(1))
    (root / trial.key(1) / "what.txt").write_text("?")
    assert findings(local) == [("strange", "000001.json")]
    assert mend(local) == [("strange", "done")]
    assert findings(local) == []


def test_what_was_put_back_before_the_repair_stays(local, root):
    good = (root / trial.key(1)).read_bytes()
    stand_in("pipe", root / trial.key(1))
    (step,) = plan(local, survey(local.store))
    (root / trial.key(1)).unlink()
    (root / trial.key(1)).write_bytes(good)
    assert carry_out(step).state == "overtaken"
    assert (root / trial.key(1)).read_bytes() == good


@pytest.mark.parametrize("renewed", [str(10**400), "1e999", "-1e999", "NaN", "[]", '"soon"', "null", "{}"])
def test_a_lease_renewed_at_no_time_at_all_is_free_to_take(space, renewed):
    store = MemoryStore()
    experiment = Experiment.create(store, space)
    store.create(ASK_KEY, f'{{"schema": 1, "holder": "w0", "renewed": {renewed}}}'.encode())
    assert [finding.kind for finding in survey_findings(experiment)] == ["lock"]
    assert [step.kind for step in plan(experiment, survey(store))] == ["lock"]
    with ObjectLease(store, ASK_KEY, heartbeat_s=1, expire_s=5).held("w1") as mine:
        assert mine


def survey_findings(experiment: Experiment):
    return diagnostics.examine(experiment, survey(experiment.store))
