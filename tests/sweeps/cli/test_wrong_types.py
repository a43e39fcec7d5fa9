"""Every value of every stored document, replaced by one of another type: a damaged object, never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_store import MemoryStore

from sweeps.errors import DamagedObject
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm import plan
from sweeps.space.definition import (
    Brake,
    Budget,
    Choice,
    EarlyTerminate,
    Fixed,
    Objective,
    Program,
    Range,
    Search,
    Snapshots,
    Space,
    Stage,
    Trunk,
)
from sweeps.storage.base import Store
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files import manifest
from sweeps.trials import actions, amendments, control
from sweeps.trials.lease import ObjectLease
from sweeps.trials.record import Attempt, Trial, decode, encode, key
from sweeps.trials.stage_run import StageRun
from sweeps.upkeep.inventory import ask_lock, survey

WRONG = (None, True, 1, -1, 2.5, 10**400, float("nan"), "x", "", [], [1], {}, {"a": 1})

RECORD = Trial(
    trial=0,
    status="completed",
    parameters={"x": 0.5, "n": 3, "mode": "fast"},
    generator="sobol",
    attempt=2,
    metrics={"loss": 0.25, "loss_sem": 0.1},
    predicted={"loss": 0.3},
    progress={"stage": "one", "step": 3, "loss": 0.4},
    curve=((1.0, 0.5), (2.0, 0.25)),
    curve_of="held_out_loss",
    stages=(
        StageRun(name="one", key="a" * 64, cost=3.0, reused_from=1, snapshot=True, seconds=1.0, usd=0.1),
    ),
    points=(StageRun(name="one", key="b" * 64, cost=3.0, step=2, branched_from=1, branched_at=1, saved=1.0),),
    created=1.0,
    started=2.0,
    ended=3.0,
    history=(Attempt(attempt=1, worker="w", start=1.0, end=2.0, reason="expired", detail="lost"),),
)
PLAN = plan.Plan(
    metric="loss",
    goal="minimize",
    finalists=tuple(plan.Finalist(trial=n, parameters={"x": 0.1}, first=1.0, predicted=2.0) for n in (3, 4)),
    seed_name="seed",
    seeds=(1, 2),
    fixed={"flag": True},
    top=2,
    trials=4,
    within={"loss": 2.0},
)
SPACE = Space(
    name="toy",
    objectives=(Objective(metric="loss"),),
    program=Program(kind="command", command=("run", "${overrides}")),
    parameters=(
        Range(name="x", min=0.0, max=1.0, kind="float", log=False, step=0.25),
        Range(name="n", min=1, max=100, kind="int", when=(("> 3", ("deep",)),)),
        Choice(name="mode", values=("fast", "slow"), ordered=True, when=(("fast", ("speed",)),)),
        Range(name="width", min=1.0, max=9.0, kind="float", normal=(3.0, 1.0)),
        Choice(name="deep", values=(1, 2)),
        Fixed(name="speed", value=3.0),
        Range(name="steps", min=10, max=90, kind="int"),
    ),
    stages=(Stage(name="one", parameters=("x",), cost="2*x", trunk=Trunk(length="steps", decay=0.1)),),
    outcome_constraints=("memory <= 3",),
    parameter_constraints=("x <= 0.5*width",),
    baseline={"x": 0.5, "n": 1, "mode": "slow", "width": 3.0, "steps": 20},
    search=Search(sobol=4, noise=0.5, reuse="none"),
    early_terminate=EarlyTerminate(type="hyperband"),
    budget=Budget(usd=3.0, until=4.0),
    brake=Brake(first=1),
    snapshots=Snapshots(keep=2, keep_gib=3.0),
    run_cap=900,
)


def edits(document: Any) -> Iterator[Any]:
    """Yield the document with each part of it, at any depth, replaced by each wrong value, and left out."""

    def places(part: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for name, value in inner:
            yield (*path, name)
            yield from places(value, (*path, name))

    for *parents, last in places(document, ()):
        for wrong in (*WRONG, places):
            edited = copy.deepcopy(document)
            part = edited
            for name in parents:
                part = part[name]
            if wrong is places:
                del part[last]
            else:
                part[last] = wrong
            yield edited


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def must_be_a_line(error: Exception, name: str = "") -> None:
    assert len(str(error).splitlines()) == 1
    assert name in str(error)


def is_legible(data: bytes) -> bool:
    try:
        decode(data)
    except ValueError:
        return False
    return True


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A sweep with the edits of a record as trials: a third of those that can be read, a tenth of the others."""
    store = LocalStore(tmp_path / "sweep")
    Experiment.create(store, SPACE)
    monkeypatch.setenv("SWEEP_STORAGE", store.url)
    index = 0
    for number, edited in enumerate(edits(json.loads(encode(RECORD, "token")))):
        if edited.get("trial") == 0:
            edited["trial"] = index
        if number % 10 == 0 or (number % 3 == 0 and is_legible(as_json(edited))):
            store.create(key(index), as_json(edited))
            index += 1
    return store.url


@pytest.mark.timeout(300)
def test_commands_skip_records_of_wrong_types(sweep, url):
    found = survey(LocalStore(url))
    torn = {stored.index for stored in found.unreadable}
    assert len(torn) > 50
    assert len(found.trials) > 20
    for command in (
        ("status",),
        ("trials",),
        ("best",),
        ("export", "trials.csv"),
        ("history",),
        ("snapshots",),
        ("report", "--out", "report.html"),
    ):
        ended = sweep(*command)
        assert "Traceback" not in ended.err, command
        assert ended.status in (0, 1), (command, ended.err)
    named = sweep("doctor", "--format", "json").out
    assert all(Path(key(index)).name in named for index in torn)


def test_worker_of_attempt_is_text():
    document = json.loads(encode(RECORD, "token"))
    document["history"][0]["worker"] = 1
    with pytest.raises(ValueError, match=r"history\[0\].worker is 1"):
        decode(as_json(document))


def test_record_of_wrong_type_is_refused():
    """Whatever is read is written back as it was read."""
    for edited in edits(json.loads(encode(RECORD, "token"))):
        try:
            record = decode(as_json(edited))
        except ValueError as error:
            must_be_a_line(error)
        else:
            assert decode(encode(record, record.write)) == record


def opened(store: Store) -> object:
    experiment = Experiment.open(store)
    assert Experiment.open(store).space == experiment.space
    return experiment.allocator


def leased(store: Store) -> object:
    ask_lock(store)
    return ObjectLease(store, ASK_KEY, heartbeat_s=1.0, expire_s=1.0)


@pytest.mark.parametrize(
    ("name", "data", "read"),
    [
        (plan.KEY, plan.encoded(PLAN), plan.stored_plan),
        (control.KEY, as_json({"schema": 1, "state": "paused", "by": "me", "at": 1.0, "why": "so"}), control.switch),
        (
            actions.key(1),
            as_json({"schema": 1, "what": "paused", "by": "me", "at": 1.0}),
            lambda store: actions.History(store).refresh(),
        ),
        (amendments.key(1), amendments.encoded({"run_cap": 4, "archived": True}, "me", 1.0), opened),
        (ASK_KEY, as_json({"schema": 1, "holder": "me", "renewed": 1.0}), leased),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_edited_object_is_read_or_damaged(space, name: str, data: bytes, read: Callable[[Store], object]):
    for edited in edits(json.loads(data)):
        store = MemoryStore()
        Experiment.create(store, space)
        store.create(name, as_json(edited))
        try:
            read(store)
        except DamagedObject as error:
            must_be_a_line(error, name)
        survey(store)


def test_edited_sweep_is_opened_or_damaged():
    first = MemoryStore()
    Experiment.create(first, SPACE)
    accepted = 0
    for edited in edits(json.loads(first.read(SWEEP_KEY)[0])):
        store = MemoryStore()
        store.create(SWEEP_KEY, as_json(edited))
        try:
            experiment = Experiment.open(store)
        except DamagedObject as error:
            must_be_a_line(error, SWEEP_KEY)
            continue
        accepted += 1
        again = MemoryStore()
        assert Experiment.create(again, experiment.space).space == experiment.space
        assert Experiment.open(again).space == experiment.space
    assert accepted > 50


def test_edited_manifest_is_read_or_refused():
    stored = manifest.Stored(object="a/b", generation="1", size=3, sha256="a" * 64, md5="x", growing=False)
    for edited in edits(json.loads(manifest.encode({"b": stored}))):
        try:
            files = manifest.decode(as_json(edited))
        except ValueError as error:
            must_be_a_line(error)
        else:
            assert manifest.decode(manifest.encode(files)) == files
