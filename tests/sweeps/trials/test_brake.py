"""After equal failures in a row a sweep pauses itself: when, once, why, and how it goes on."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import MemoryStore

from sweeps.errors import SweepClosed
from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.space.definition import Brake, Program
from sweeps.storage.base import Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.trials import brake, control
from sweeps.trials.lifecycle import Complete, Fail, Retry
from sweeps.trials.record import Attempt, Trial
from sweeps.worker import loop

KEY_ERROR = "KeyError: 'lr'"


def trial(index: int, outcome: str, failure: str = "crashed", **changes) -> Trial:
    """Return a trial that started and ended in the order of indices; `outcome` is its error or status."""
    fields = {"started": 100.0 + index, "ended": 100.5 + index} | changes
    status = outcome if outcome in ("completed", "early_stopped", "abandoned", "running") else "failed"
    if status == "failed":
        fields |= {"error": outcome, "failure": failure}
    return Trial(
        trial=index, parameters={}, generator=fields.pop("generator", "sobol"), status=status, **fields
    )


def row(*outcomes: str, failure: str = "crashed") -> list[Trial]:
    return [trial(index, each, failure) for index, each in enumerate(outcomes)]


def paused(records: list[Trial], since: float = 0.0, **limits: int) -> bool:
    return bool(brake.reason_to_pause(Brake(**limits), records, since=since))


class TestWhen:
    @pytest.mark.parametrize(
        ("outcomes", "expected"),
        [
            pytest.param([], False, id="nothing"),
            pytest.param([KEY_ERROR] * 2, False, id="two"),
            pytest.param([KEY_ERROR] * 3, True, id="three-at-the-start"),
            pytest.param([KEY_ERROR] * 8, True, id="those-that-were-in-flight"),
            pytest.param([KEY_ERROR, "ValueError: n", KEY_ERROR, KEY_ERROR], False, id="another-between"),
            pytest.param([KEY_ERROR] * 3 + ["completed"], False, id="the-last-completed"),
            pytest.param([KEY_ERROR] * 3 + ["early_stopped"], False, id="the-last-was-stopped-early"),
            pytest.param([KEY_ERROR] * 3 + ["abandoned"], True, id="a-person-gave-one-up"),
            pytest.param([KEY_ERROR] * 3 + ["running"], True, id="another-runs"),
            pytest.param(["completed"] + [KEY_ERROR] * 4, False, id="four-later"),
            pytest.param(["completed"] + [KEY_ERROR] * 5, True, id="five-later"),
            pytest.param([KEY_ERROR] * 3 + ["completed"] + [KEY_ERROR] * 4, False, id="not-in-a-row"),
        ],
    )
    def test_equal_failures_in_a_row(self, outcomes, expected):
        assert paused(row(*outcomes)) is expected

    @pytest.mark.parametrize("failure", ["crashed", "bad_config"])
    def test_of_these_kinds(self, failure):
        assert paused(row(*["x"] * 3, failure=failure))

    @pytest.mark.parametrize("failure", ["diverged", "out_of_memory"])
    def test_expected_failures_count_until_first_completion(self, failure):
        assert not paused(row(*["x"] * 4, failure=failure))
        assert paused(row(*["x"] * 5, failure=failure))
        assert not paused(row("completed", *["x"] * 50, failure=failure))

    def test_two_kinds_are_two_reasons(self):
        assert not paused([*row("x", "x"), trial(2, "x", "bad_config")])

    def test_lost_trials_are_compared_by_last_attempt(self):
        def lost(index: int, why: str) -> Trial:
            past = Attempt(attempt=3, worker=f"w{index}", start=0, end=1, reason="given_up", detail=why)
            return trial(index, f"lost 3 times: attempt 1 by w{index}", "lost", history=(past,))

        assert paused([lost(index, "RecursionError: too deep") for index in range(3)])
        assert not paused([lost(index, f"RecursionError: {index * 'x'}") for index in range(3)])

    def test_the_order_is_that_of_their_ends(self):
        records = row("completed", *[KEY_ERROR] * 5)
        slow = replace(records[0], ended=1000.0)
        assert not paused([slow, *records[1:]])

    def test_imported_trials_say_nothing(self):
        failed = [trial(index, KEY_ERROR) for index in (1, 2, 3)]
        assert paused([trial(0, "completed", generator="imported"), *failed])
        assert not paused([replace(record, generator="imported") for record in failed])

    def test_trials_before_a_resume_do_not_count(self):
        records = row(*[KEY_ERROR] * 5)
        assert paused(records, since=102.0)  # three began since
        assert not paused(records, since=102.5)

    @pytest.mark.parametrize(
        ("limits", "outcomes", "expected"),
        [
            ({"first": 1}, [KEY_ERROR], True),
            ({"first": 0}, [KEY_ERROR] * 50, False),
            ({"first": 0}, ["completed"] + [KEY_ERROR] * 5, True),
            ({"later": 0}, ["completed"] + [KEY_ERROR] * 50, False),
            ({"later": 2}, ["completed"] + [KEY_ERROR] * 2, True),
        ],
        ids=["one", "never-at-first", "never-at-first-but-later", "never-later", "two-later"],
    )
    def test_the_limits_are_the_spaces(self, limits, outcomes, expected):
        assert paused(row(*outcomes), **limits) is expected


class TestReason:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("diverged: loss is nan at step 12 of stage2", "diverged: loss is inf at step 3 of stage2"),
            ("/s/runs/000003/attempt-1/result.json: no metric 'loss'", "/s/runs/000012/attempt-2/result.json: no metric 'loss'"),
            ("OSError: C:\\runs\\3 is full", "OSError: C:\\runs\\4 is full"),
            ("TypeError: <object at 0x7f35aa>", "TypeError: <object at 0x7f99bb>"),
            ("ValueError: lr=1e-3 is too small", "ValueError: lr=-2.5 is too small"),
            ("RuntimeError: run 3f2a9c81b7d04e55 is gone", "RuntimeError: run 90ab12cd34ef56aa is gone"),
            ("KeyError: 'lr'\nTraceback 1", "KeyError: 'lr'\nTraceback 2"),
        ],
        ids=["numbers", "paths", "windows", "addresses", "floats", "tokens", "first-line"],
    )  # fmt: skip
    def test_what_differs_from_trial_to_trial_does_not_count(self, one, other):
        assert brake.error_pattern(one) == brake.error_pattern(other)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("KeyError: 'lr'", "KeyError: 'depth'"),
            ("KeyError: 'lr'", "ValueError: 'lr'"),
            ("config refused: a.b: too low", "config refused: a.c: too low"),
        ],
        ids=["name", "class", "key"],
    )
    def test_what_says_why_does(self, one, other):
        assert brake.error_pattern(one) != brake.error_pattern(other)

    @given(st.text(max_size=400))
    def test_any_error_has_a_reason_and_one_line_for_people(self, error):
        reason = brake.reason_to_pause(Brake(first=1), [trial(0, f"x{error}")])
        assert reason.isprintable()
        assert len(reason) < 300

    def test_people_are_told_the_last_one_as_it_was(self):
        reason = brake.reason_to_pause(Brake(), row("at step 1", "at step 2", "at step 3\nmore"))
        assert reason == "3 trials in a row failed with: at step 3"


# ---- in a sweep, over each kind of store

BACKENDS = {
    "memory": lambda folder, endpoint: MemoryStore(),
    "local": lambda folder, endpoint: LocalStore(folder / "store"),
    "gcs": lambda folder, endpoint: GcsStore(f"gs://bucket/brake/{uuid.uuid4().hex}", endpoint=endpoint),
}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    endpoint = request.getfixturevalue("gcs").url if request.param == "gcs" else ""
    return BACKENDS[request.param](tmp_path, endpoint)


def fail(experiment: Experiment, error: str = KEY_ERROR) -> Trial:
    record = experiment.ask("w")
    event = Fail(worker="w", attempt=record.attempt, error=error, failure="crashed")
    return experiment.apply(record.trial, event)


def complete(experiment: Experiment) -> Trial:
    record = experiment.ask("w")
    return experiment.apply(record.trial, Complete(worker="w", attempt=record.attempt, metrics={"loss": 1.0}))


def test_it_pauses_says_why_and_goes_on_when_it_is_resumed(space, store):
    experiment = Experiment.create(store, space)
    for _ in range(3):
        fail(experiment)
    with pytest.raises(SweepClosed, match=r"3 trials .*KeyError: 'lr'") as caught:
        experiment.ask("w")
    assert caught.value.state == "braked"
    switch = control.switch(store)
    assert (switch.braked, switch.by, switch.why) == (
        True,
        "brake",
        "3 trials in a row failed with: KeyError: 'lr'",
    )
    control.write(store, "running", "me")
    fail(experiment)
    fail(experiment)
    assert complete(experiment).status == "completed"
    assert len(experiment.trials()) == 6


def test_what_failed_before_it_was_resumed_no_longer_counts(space, clock):
    experiment = Experiment.create(MemoryStore(clock=clock), space)
    for _ in range(3):
        fail(experiment)
    with pytest.raises(SweepClosed):
        experiment.ask("w")
    clock.advance(60)
    control.write(experiment.store, "running", "me")
    for _ in range(3):
        fail(experiment)
    with pytest.raises(SweepClosed, match="3 trials in a row"):
        experiment.ask("w")
    assert len(experiment.trials()) == 6


def test_of_many_who_come_to_it_one_turns_the_switch(space, store, monkeypatch):
    experiment = Experiment.create(store, space)
    for _ in range(3):
        fail(experiment)
    written, together = [], threading.Barrier(8)
    pull = control.brake

    def pull_together(*arguments) -> None:
        together.wait(30)
        pull(*arguments)

    for name in ("create", "replace"):
        real = getattr(store, name)
        monkeypatch.setattr(store, name, _noting(real, written))
    monkeypatch.setattr(control, "brake", pull_together)
    closed: list[SweepClosed] = []

    def ask(name: str) -> None:
        try:
            Experiment(store, space).ask(name)
        except SweepClosed as error:
            closed.append(error)

    threads = [threading.Thread(target=ask, args=(f"w{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written == [control.KEY]
    assert len(closed) == 8
    assert len({str(error) for error in closed}) == 1


def _noting(real, written: list[str]):
    def write(key, *arguments):
        version = real(key, *arguments)
        written.append(key)
        return version

    return write


def test_a_person_who_turned_it_meanwhile_wins(space, monkeypatch, clock):
    """The brake read the switch before a user resumed the sweep: its write is refused, and it reads again."""
    experiment = Experiment.create(MemoryStore(clock=clock), space)
    for _ in range(3):
        fail(experiment)
    clock.advance(1)
    pull = control.brake

    def too_late(store, observed, why) -> None:
        control.write(store, "running", "me")
        pull(store, observed, why)

    monkeypatch.setattr(control, "brake", too_late)
    assert experiment.ask("w").trial == 3
    assert control.switch(experiment.store).by == "me"


def test_a_retried_trial_no_longer_counts(experiment):
    for _ in range(3):
        fail(experiment)
    experiment.apply(2, Retry(by="me"))
    assert experiment.ask("w").trial == 2


def test_a_sweep_with_nothing_left_to_save_is_not_paused(space):
    """Its workers would wait for a person instead of leaving."""
    experiment = Experiment.create(MemoryStore(), replace(space, run_cap=3))
    for _ in range(3):
        fail(experiment)
    assert experiment.ask("w") is None
    assert control.read(experiment.store) == "running"


class TestSwitch:
    @pytest.mark.parametrize(
        "document",
        [
            {"schema": 1, "state": "paused", "by": "me@host", "at": 5.0},
            {"state": "paused"},
            {"state": "paused", "by": 3, "at": "noon", "why": None, "more": 1},
            {"state": "paused", "at": 10**400},
        ],
        ids=["earlier", "bare", "strange", "huge"],
    )
    def test_one_without_a_reason_still_loads(self, document):
        store = MemoryStore()
        store.create(control.KEY, json.dumps(document).encode())
        switch = control.switch(store)
        assert (switch.state, switch.why, switch.braked) == ("paused", "", False)

    def test_an_earlier_reader_finds_what_it_reads(self):
        store = MemoryStore()
        control.brake(store, control.switch(store), "why")
        document = json.loads(store.read(control.KEY)[0])
        assert (document["schema"], document["state"]) == (1, "paused")


class RecordingWatcher:
    """Watcher that records why workers wait, and calls `waits`."""

    def __init__(self, waits=lambda: None) -> None:
        self.lines: list[str] = []
        self._waits = waits

    def started(self, record) -> None: ...
    def progressed(self, record, progress) -> None: ...
    def ended(self, record) -> None: ...
    def dropped(self, record, why) -> None: ...

    def waiting(self, why) -> None:
        self.lines.append(why)
        self._waits()

    def closed(self, why) -> None:
        self.lines.append(why)


@pytest.mark.slow
def test_brake_stops_eight_workers_until_mended(space, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_PAUSED_POLL_S", 0.02)
    code = (
        "[ -e mended ] || { echo \"KeyError: 'lr'\"; exit 1; }; "
        'echo \'{"loss": 1}\' > "$SWEEP_RUN_DIR/result.json"'
    )
    program = Program(kind="command", command=("sh", "-c", code, "${overrides}"))
    store = LocalStore(tmp_path / "store")
    experiment = Experiment.create(store, replace(space, program=program, run_cap=30))
    mended = threading.Event()
    watchers = [RecordingWatcher(lambda: mended.wait(60)) for _ in range(8)]

    def work(watcher: RecordingWatcher) -> None:
        loop.work(Experiment.open(store), stop=Stop(), watcher=watcher)

    threads = [threading.Thread(target=work, args=(watcher,)) for watcher in watchers]
    for thread in threads:
        thread.start()
    for watcher in watchers:  # each comes to wait
        while not watcher.lines and any(thread.is_alive() for thread in threads):
            mended.wait(0.02)
    failed = [record for record in experiment.trials() if record.status == "failed"]
    assert 3 <= len(failed) <= 3 + 8
    assert {record.attempt for record in failed} == {1}
    assert all("status 1" in w.lines[0] for w in watchers)
    Path("mended").touch()
    control.write(store, "running", "me")
    mended.set()
    for thread in threads:
        thread.join()
    records = experiment.trials()
    assert [record.trial for record in records] == list(range(30))
    assert sum(record.status == "completed" for record in records) == 30 - len(failed)


@pytest.mark.parametrize("limits", [{"leave_when_idle": True}, {"leave_when_braked": True}], ids=str)
def test_a_worker_that_shall_not_wait_leaves_and_says_why(space, limits):
    program = Program(kind="function", function="objectives_for_tests:lacks_a_key")
    experiment = Experiment.create(MemoryStore(), replace(space, program=program))
    watcher = RecordingWatcher()
    tally = loop.work(experiment, stop=Stop(), watcher=watcher, limits=loop.Limits(**limits))
    assert tally.ended == {"failed": 3}
    (line,) = watcher.lines
    assert "KeyError: 'lr'" in line
