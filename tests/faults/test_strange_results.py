"""Bad input of a program, a user or a table ends one trial or one command with one line, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_store import MemoryStore
from what_programs_write import FUNCTION, SPACE, Sweep, must_be_sound, sweep

from sweeps.errors import DamagedObject, InputError, UnstorableRecord
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.programs import progress_log
from sweeps.search.allocation import ASK_KEY
from sweeps.space.definition import Objective
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files import manifest
from sweeps.text import json_reader
from sweeps.trials import control, storable
from sweeps.trials import record as trial
from sweeps.trials.lease import ObjectLease
from sweeps.trials.lifecycle import Complete, Fail, Heartbeat
from sweeps.trials.record import Trial
from sweeps.worker import loop

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
HUGE = b"1" + b"0" * 400
HALF = "\ud800"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> LocalStore:
    """Create a sweep in a folder, for commands."""
    store = LocalStore(str(tmp_path / "store" / "anything"))
    Experiment.create(store, SPACE)
    return store


class TestResultFiles:
    @pytest.mark.parametrize(
        ("data", "failure", "message"),
        [
            pytest.param(b'{"metrics": {"loss": 1.0, "\\ud800x": 2.0}}', "bad_config", "half of a surrogate pair", id="half-pair-name"),
            pytest.param(b'{"loss": 1.0, "note": "\xed\xa0\x80"}', "bad_config", "not JSON", id="half-pair-bytes"),
            pytest.param(DEEP, "bad_config", "not JSON: recursion", id="deep"),
            pytest.param(b'{"loss": 1.0, "deep": ' + DEEP + b"}", "bad_config", "not JSON: recursion", id="deep-note"),
            pytest.param(b'{"loss": 1' + b"0" * 5000 + b"}", "bad_config", "not JSON", id="5001-digits"),
            pytest.param(b'{"loss": ' + HUGE + b"}", "diverged", "not a finite number", id="huge-objective"),
            pytest.param(b'{"loss": NaN}', "diverged", "not a finite number", id="nan"),
            pytest.param(b'{"status": [' + b"1," * 100_000 + b"1]}", "bad_config", "status is [1, 1", id="long-status"),
            pytest.param(b"\xff\xfe", "bad_config", "not JSON", id="not-utf-8"),
            pytest.param(b"", "bad_config", "not JSON", id="empty"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_read_fails_its_trial_with_one_line(self, tmp_path, data, failure, message):
        running = Sweep()
        ended = running.run(lambda folder: (folder / "result.json").write_bytes(data) * 0)
        assert (ended.status, ended.failure) == ("failed", failure)
        assert "result.json" in ended.error
        assert message in ended.error
        assert len(ended.error.splitlines()) == 1
        assert len(ended.error) < 1000
        running.must_be_sound(tmp_path / "copy")

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            pytest.param(os.mkfifo, "not a regular file", id="pipe"),
            pytest.param(os.mkdir, "cannot be read: Is a directory", id="folder"),
            pytest.param(lambda path: path.symlink_to(path), "cannot be read: a loop of links, not a regular file", id="link-to-itself"),
        ],
    )  # fmt: skip
    def test_what_is_no_file_fails_its_trial(self, make: Callable[[Path], object], message):
        ended = Sweep().run(lambda folder: int(make(folder / "result.json") is not None))
        assert (ended.status, ended.failure) == ("failed", "bad_config")
        assert message in ended.error

    @pytest.mark.parametrize("name", ["new\nline", "\x1b[31mred", "a" * 201])
    def test_a_name_that_no_record_can_hold_is_left_out_and_said_so(self, tmp_path, name):
        running = Sweep()
        result = json.dumps({"loss": 1.0, name: 2.0, "kept": 3.0, "huge": 10**400})
        ended = running.run(lambda folder: (folder / "result.json").write_text(result) * 0)
        assert dict(ended.metrics) == {"loss": 1.0, "kept": 3.0, "huge": None}
        assert [line for line in running.log if "1 metric left out" in line]
        running.must_be_sound(tmp_path / "copy")

    def test_of_too_many_metrics_the_objective_is_kept(self):
        running = Sweep()
        result = json.dumps({f"m{i}": i for i in range(12_000)} | {"loss": 1.0})
        ended = running.run(lambda folder: (folder / "result.json").write_text(result) * 0)
        assert (len(ended.metrics), ended.metrics["loss"]) == (10_000, 1.0)
        assert [line for line in running.log if "2001 metrics left out" in line]

    def test_the_last_words_of_a_program_are_kept_whatever_they_are(self, tmp_path):
        running = Sweep()
        ended = running.run(
            lambda folder: (folder / "log.txt").write_bytes(b"\xed\xa0\x80 \xff bad\n") * 0 + 3
        )
        assert (ended.status, ended.failure) == ("failed", "crashed")
        running.must_be_sound(tmp_path / "copy")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class NoNumber:
    def __float__(self) -> float:
        raise RuntimeError("a tensor of two elements")


class NoName:
    def __str__(self) -> str:
        raise RuntimeError("no name")


def raises(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


class TestFunctions:
    @pytest.mark.parametrize(
        ("function", "message"),
        [
            pytest.param(raises(ValueError(f"bad {HALF}x")), "ValueError: bad \ufffdx", id="half-pair-in-a-text"),
            pytest.param(raises(Unspeakable()), "Unspeakable: (its text could not be made", id="no-text"),
            pytest.param(raises(ValueError("word " * 1_000_000)), "characters left out", id="5-MB-of-text"),
            pytest.param(raises(SystemExit(HALF)), "SystemExit: \ufffd", id="exit"),
            pytest.param(raises(GeneratorExit()), "GeneratorExit", id="no-ordinary-exception"),
            pytest.param(lambda: {NoName(): 1.0}, "RuntimeError: no name", id="a-name-without-text"),
            pytest.param(lambda: None, "None is neither a number nor a dict of metrics", id="nothing"),
            pytest.param(lambda: {"loss": NoNumber()}, "not a number", id="no-number"),
        ],
    )  # fmt: skip
    def test_an_error_fails_its_trial_and_no_worker(self, tmp_path, function, message):
        running = Sweep(FUNCTION)
        ended = running.call(function)
        assert ended.status == "failed"
        assert message in ended.error
        assert len(ended.error) < 40_000
        running.must_be_sound(tmp_path / "copy")

    def test_odd_names_are_spelled_or_left_out(self, tmp_path):
        running = Sweep(FUNCTION)
        ended = running.call(lambda: {"loss": 1, HALF: 2.0, 7: 3.0, "other": NoNumber()})
        assert dict(ended.metrics) == {"loss": 1, "7": 3.0}
        assert [line for line in running.log if "\\ud800" in line]
        running.must_be_sound(tmp_path / "copy")


class TestMetricsFiles:
    @pytest.mark.parametrize(
        ("line", "progress"),
        [
            pytest.param(b'{"step": 2, "loss": ' + HUGE + b"}", {"step": 2}, id="huge-loss"),
            pytest.param(b'{"step": ' + HUGE + b', "loss": 1.0}', {"loss": 1.0}, id="huge-step"),
            pytest.param(DEEP, {}, id="deep"),
            pytest.param(b"[" * 5000, {"step": 1, "loss": 4.0}, id="deep-and-cut-short"),
            pytest.param(b'{"stage": "\\ud800", "step": 2}', {"step": 1, "loss": 4.0}, id="half-pair"),
            pytest.param(b'{"stage": "\xff\xed\xa0\x80", "step": 2}', {"stage": "\ufffd" * 4, "step": 2}, id="not-utf-8"),
            pytest.param(b'{"stage": "' + b"a" * 5000 + b'", "step": 2}', {"stage": "a" * 100, "step": 2}, id="long"),
            pytest.param(b'{"stage": "\\u001b[31m\\n", "step": 2}', {"stage": "[31m", "step": 2}, id="control"),
            pytest.param(b"\x00" * 100_000, {}, id="zeros"),
        ],
    )  # fmt: skip
    def test_no_line_ends_the_heart(self, tmp_path, line, progress):
        running = Sweep()
        shown: list[dict[str, object]] = []

        def program(folder: Path) -> int:
            (folder / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 4.0}\n' + line + b"\n")
            running.wait_for_heartbeats(2)
            shown.append(dict(running.experiment.trials()[-1].progress))
            return (folder / "result.json").write_text('{"loss": 1.0}') * 0

        ended = running.run(program)
        assert shown == [progress]
        assert (ended.status, ended.curve[0]) == ("completed", (1, 4.0))
        running.must_be_sound(tmp_path / "copy")

    def test_a_pipe_is_not_waited_for(self):
        running = Sweep()

        def program(folder: Path) -> int:
            os.mkfifo(folder / "metrics.jsonl")
            running.wait_for_heartbeats(2)
            return (folder / "result.json").write_text('{"loss": 1.0}') * 0

        assert running.run(program).status == "completed"

    def test_endless_line_takes_no_memory(self, tmp_path):
        import tracemalloc

        with (tmp_path / "metrics.jsonl").open("wb") as file:
            file.write(b'{"step": 1, "loss": 4.0}\n')
            file.seek(50_000_000, os.SEEK_CUR)  # zeros that take no disk
            file.write(b'\n{"step": 2, "loss": 3.0}\n')
        tracemalloc.start()
        try:
            losses = progress_log.LossCurve(tmp_path).curve().points
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert losses == ((1, 4.0), (2, 3.0))
        assert peak < 4 * progress_log.MAX_LINE

    def test_each_line_is_read_once_and_an_unfinished_one_again(self, tmp_path):
        file = tmp_path / "metrics.jsonl"
        losses = progress_log.LossCurve(tmp_path)
        assert losses.curve().points == ()
        file.write_bytes(b'{"step": 1, "loss": 4.0}\n{"step": 2, "lo')
        assert losses.curve().points == ((1, 4.0),)
        with file.open("r+b") as opened:
            opened.write(b" " * 24)  # what was read is not read again
            opened.seek(0, os.SEEK_END)
            opened.write(b'ss": 3.0}\n{"step": 3, "loss": 2.0}')
        assert losses.curve().points == ((1, 4.0), (2, 3.0), (3, 2.0))
        assert losses.curve().points == ((1, 4.0), (2, 3.0), (3, 2.0))
        file.write_bytes(b'{"step": 9, "loss": 9.0}\n')
        assert losses.curve().points == ((9, 9.0),)

    def test_a_million_losses_are_thinned_as_they_come(self, tmp_path):
        lines = (f'{{"step": {step}, "loss": {step}.0}}\n' for step in range(100_000))
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        losses = progress_log.LossCurve(tmp_path)
        points = losses.curve().points
        assert 64 <= len(points) <= 128
        assert points[0] == (0, 0.0)
        assert points[-1][0] > 97_000
        assert all(step == loss for step, loss in points)


class TestTell:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            pytest.param(b'{"loss": 1.0, "\\ud800x": 2.0}', "half of a surrogate pair", id="half-pair-name"),
            pytest.param(DEEP, "not JSON: recursion", id="deep"),
            pytest.param(b'{"loss": ' + HUGE + b"}", "not a finite number", id="huge"),
        ],
    )
    def test_what_cannot_be_kept_is_refused_and_the_trial_stays_open(self, folder, data, message):
        Experiment.open(folder).ask("me", leased=False)
        Path("r.json").write_bytes(data)
        ran = sweep("tell", "0", "--result", "r.json", "--storage", folder.url)
        assert ran.status == 2
        assert ran.err.startswith("sweep: error: r.json: ")
        assert message in ran.err
        assert len(ran.err.splitlines()) == 1
        assert Experiment.open(folder).trial(0).status == "running"
        must_be_sound(folder.url)

    def test_a_reported_failure_is_kept_whatever_its_text(self, folder):
        Experiment.open(folder).ask("me", leased=False)
        Path("r.json").write_text(json.dumps({"status": "failed", "error": ["x" * 100_000, "\x1b"]}))
        assert sweep("tell", "0", "--result", "r.json", "--storage", folder.url).status == 0
        must_be_sound(folder.url)

    def test_a_result_may_come_through_a_pipe(self, folder):
        Experiment.open(folder).ask("me", leased=False)
        read, write = os.pipe()
        os.write(write, b'{"loss": 1.0}')
        os.close(write)
        assert sweep("tell", "0", "--result", f"/dev/fd/{read}", "--storage", folder.url).status == 0
        os.close(read)


class TestImport:
    @pytest.mark.parametrize(
        ("name", "data", "message"),
        [
            pytest.param("t.json", b'[{"x": 0.5, "loss": 1.0, "\\ud800": 2.0}]', "half of a surrogate pair", id="half-pair-name"),
            pytest.param("t.json", b"[" + DEEP + b"]", "not JSON: recursion", id="deep"),
            pytest.param("t.json", b'[{"x": 0.5, "loss": ' + HUGE + b"}]", "not a finite number", id="huge"),
            pytest.param("t.csv", b"x,loss,\xed\xa0\x80\n0.5,1.0,2.0\n", "not a CSV file in UTF-8", id="csv-half-pair"),
            pytest.param("t.csv", b"x,loss\n0.5,1" + b"0" * 5000 + b"\n", "not a finite number", id="csv-huge"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_kept_is_refused_and_nothing_is_imported(self, folder, name, data, message):
        Path(name).write_bytes(data)
        ran = sweep("import", name, "--storage", folder.url)
        assert ran.status == 2
        assert message in ran.err
        assert "Traceback" not in ran.err
        assert Experiment.open(folder).trials() == []
        must_be_sound(folder.url)

    def test_column_with_an_impossible_name_is_left_out(self, folder, caplog):
        Path("t.csv").write_text('x,loss,"new\nline"\n0.5,1.0,2.0\n')
        assert sweep("import", "t.csv", "--storage", folder.url).status == 0
        assert dict(Experiment.open(folder).trial(0).metrics) == {"loss": 1.0}
        assert "'new\\nline'" in caplog.text
        must_be_sound(folder.url)


class TestObjectsOfTheStore:
    def test_a_sweep_that_nobody_could_open_is_not_made(self):
        store = MemoryStore()
        with pytest.raises(InputError, match="cannot be stored"):
            Experiment.create(store, replace_space(name=HALF))
        with pytest.raises(InputError, match=r"a\\nb"):
            Experiment.create(store, replace_space(objectives=(Objective(metric="a\nb"),)))
        assert store.list("") == []

    @pytest.mark.parametrize("data", [DEEP, b'{"schema": 1, "space": {"name": "\\ud800"}}', b"[]", b"\xff"])
    def test_a_damaged_sweep_is_one_line(self, data):
        store = MemoryStore()
        store.create(SWEEP_KEY, data)
        with pytest.raises(DamagedObject) as caught:
            Experiment.open(store)
        assert len(str(caught.value).splitlines()) == 1

    @pytest.mark.parametrize("data", [DEEP, b'{"state": "\\ud800"}', b"[]"])
    def test_a_damaged_switch_is_one_line(self, data):
        store = MemoryStore()
        store.create(control.KEY, data)
        with pytest.raises(DamagedObject, match="state"):
            control.read(store)

    def test_whoever_turns_the_switch_may_be_called_anything(self):
        store = MemoryStore()
        control.write(store, "paused", HALF * 5000)
        assert control.read(store) == "paused"
        assert len(store.read(control.KEY)[0]) < 4000

    @pytest.mark.parametrize(
        "data", [DEEP, b'{"holder": "\\ud800", "renewed": 1e99}', b'{"renewed": ' + HUGE + b"}"]
    )
    def test_a_damaged_lease_is_free_to_take(self, data):
        store = MemoryStore()
        store.create(ASK_KEY, data)
        lease = ObjectLease(store, ASK_KEY, heartbeat_s=5, expire_s=30)
        with lease.held("me") as mine:
            assert mine
        lease.settle()

    def test_a_lease_is_held_by_whoever_is_called_anything(self):
        store = MemoryStore()
        lease = ObjectLease(store, ASK_KEY, heartbeat_s=5, expire_s=30)
        with lease.held(f"{HALF}me") as mine:
            assert mine
            assert json_reader.parse(store.read(ASK_KEY)[0])["holder"] == "\ufffdme"
            with ObjectLease(store, ASK_KEY, heartbeat_s=5, expire_s=30).held("other") as theirs:
                assert not theirs

    @pytest.mark.parametrize("data", [DEEP, b'{"\\ud800": 1}'])
    def test_a_damaged_manifest_is_a_value_error(self, data):
        with pytest.raises(ValueError, match="not JSON"):
            manifest.decode(data)

    @pytest.mark.parametrize(
        "change",
        [
            {"metrics": {HALF: 1.0}},
            {"metrics": {"loss": float("nan")}},
            {"metrics": {("a", "b"): 1.0}},
            {"progress": {"step": {"a": 1}}},
            {"error": HALF},
            {"worker": 5},
            {"curve": ((1, 10**400),)},
        ],
        ids=str,
    )
    def test_a_record_that_its_reader_refuses_is_not_stored(self, change):
        fields = {"trial": 7, "status": "pending", "parameters": {}, "generator": "sobol"}
        with pytest.raises(UnstorableRecord, match="trial 7: "):
            trial.encode(Trial(**(fields | change)), "token")

    def test_what_the_last_check_finds_fails_its_trial(self, monkeypatch):
        monkeypatch.setattr(storable, "event", lambda event: event)  # as if the cleaning had a hole
        running = Sweep(FUNCTION)
        ended = running.call(raises(ValueError(HALF)))
        assert (ended.status, ended.failure) == ("failed", "bad_config")
        assert ended.error.startswith("its result cannot be stored: ")

    @pytest.mark.parametrize(
        "event",
        [
            Heartbeat(worker="w", attempt=1, progress={HALF: 1, "stage": HALF, "step": 10**400}, curve=()),
            Fail(worker="w", attempt=1, error=HALF, failure="diverged"),
            Complete(worker="w", attempt=1, metrics={HALF: 1.0, "loss": float("inf")}),
        ],
        ids=lambda event: type(event).__name__,
    )
    def test_every_event_is_made_storable_where_it_is_applied(self, event):
        experiment = Experiment.create(MemoryStore(), SPACE)
        experiment.ask("w")
        experiment.apply(0, event)
        assert Experiment.open(experiment.store).trial(0).trial == 0


def replace_space(**changes: Any) -> Any:
    from dataclasses import replace

    return replace(SPACE, **changes)


def test_a_worker_may_be_called_anything():
    experiment = Experiment.create(MemoryStore(), SPACE)
    record = experiment.ask(HALF)
    assert record is not None
    assert record.worker == "\ufffd"
    assert loop.identity()
