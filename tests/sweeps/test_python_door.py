"""`import sweeps`: asking and reporting from Python, and every way in which a trial leaves its block."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace

import numpy as np
import pytest
import torch
from memory_store import MemoryStore

import sweeps
from analysis.summaries import summary
from sweeps.experiment import Experiment
from sweeps.search.curve_rule import EarlyStop
from sweeps.space.definition import Choice, EarlyTerminate, Fixed, Lease, Objective, Program, Search
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.trials.lifecycle import Abandon
from sweeps.worker import early_stopping

GRID = {
    "name": "grid",
    "objectives": [{"metric": "loss"}],
    "parameters": {"x": {"values": [1, 2, 3, 4, 5, 6]}},
    "search": {"method": "grid"},
}


@pytest.fixture
def grid(space):
    """A finite space without a program: nothing here needs Ax."""
    return replace(
        space,
        parameters=(Choice(name="x", values=(1, 2, 3, 4, 5, 6), ordered=True),),
        program=Program(kind="function"),
        search=Search(method="grid"),
        run_cap=None,
    )


@pytest.fixture
def sweep(grid, clock) -> sweeps.Sweep:
    return sweeps.Sweep(Experiment.create(MemoryStore(clock=clock), grid))


def status(sweep: sweeps.Sweep, trial: sweeps.Trial) -> str:
    return sweep.experiment.trial(trial.index).status


def hearts() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("heart-")]


class TestResults:
    @pytest.mark.parametrize(
        "result", [0.5, {"loss": 0.5}, (0.5,), {"status": "completed", "metrics": {"loss": 0.5}}]
    )
    def test_every_form_of_one_objective_is_its_value(self, sweep, result):
        with sweep.ask() as trial:
            assert sweep.tell(trial, result) == "completed"
        assert dict(sweep.experiment.trial(0).metrics) == {"loss": 0.5}
        assert hearts() == []

    def test_a_tuple_has_a_value_for_each_objective(self, grid):
        two = replace(grid, objectives=(Objective(metric="loss"), Objective(metric="ms")))
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), two))
        sweep.tell(sweep.ask(), (0.5, 7))
        assert dict(sweep.experiment.trial(0).metrics) == {"loss": 0.5, "ms": 7}
        trial = sweep.ask()
        with pytest.raises(sweeps.InputError, match=r"loss, ms.*open"):
            sweep.tell(trial, 0.5)
        assert status(sweep, trial) == "running"
        assert sweep.tell(trial, {"ms": 1, "loss": 2}) == "completed"

    @pytest.mark.parametrize(
        "result",
        [
            *("low", True, {"los": 1.0}, (1.0, 2.0), object(), {"loss": [1.0, 2.0]}),
            *(np.array([0.1, 0.2]), {"loss": np.zeros((9, 9))}, {"loss": torch.zeros(2)}),
        ],
        ids=lambda result: type(result).__name__,
    )
    def test_a_wrong_result_is_an_error_and_the_trial_stays_open(self, sweep, result):
        trial = sweep.ask()
        with pytest.raises(sweeps.InputError, match=r"trial 0: .*open") as caught:
            sweep.tell(trial, result)
        assert "\n" not in str(caught.value)
        assert status(sweep, trial) == "running"
        assert sweep.tell(trial, 1.0) == "completed"

    def test_a_result_that_is_not_finite_fails_as_diverged(self, sweep):
        assert sweep.tell(sweep.ask(), float("nan")) == "failed"
        assert sweep.experiment.trial(0).failure == "diverged"

    @pytest.mark.parametrize("one", [np.float32(0.5), np.array(0.5), torch.tensor([0.5])], ids=repr)
    def test_an_array_of_one_number_is_that(self, sweep, one):
        assert sweep.tell(sweep.ask(), one) == "completed"
        assert dict(sweep.experiment.trial(0).metrics) == {"loss": 0.5}

    def test_a_number_beyond_floats_is_not_finite(self, sweep):
        assert sweep.tell(sweep.ask(), 10**400) == "failed"
        assert sweep.experiment.trial(0).failure == "diverged"

    @pytest.mark.parametrize("several", [np.array([0.1, 0.2]), torch.zeros(2)], ids=["ndarray", "tensor"])
    def test_a_function_that_returns_several_numbers_breaks_the_contract(self, sweep, several):
        """None of its trials can have a result, and the brake sees that at the second."""
        assert sweep.run(lambda parameters: several, n_trials=1) == {"failed": 1}
        record = sweep.experiment.trial(0)
        assert record.failure == "bad_config"
        assert "is neither a number nor" in record.error

    def test_a_failure_is_stated_as_in_a_result_file(self, sweep):
        assert (
            sweep.tell(sweep.ask(), {"status": "failed", "error": "no data", "failure": "diverged"})
            == "failed"
        )
        record = sweep.experiment.trial(0)
        assert (record.error, record.failure) == ("no data", "diverged")

    def test_a_trial_is_reported_once(self, sweep):
        trial = sweep.ask()
        sweep.tell(trial, 1.0)
        with pytest.raises(sweeps.InputError, match="trial 0 has ended"):
            sweep.tell(trial, 1.0)
        with pytest.raises(sweeps.InputError, match=r"\b0\b"):
            sweep.tell(0, 1.0)

    def test_a_trial_of_another_sweep_is_refused(self, grid, tmp_path):
        one, two = (
            sweeps.Sweep(Experiment.create(LocalStore(str(tmp_path / name)), grid)) for name in ("one", "two")
        )
        with one.ask() as trial:
            with pytest.raises(sweeps.InputError, match=r"trial 0 .*one.*two"):
                two.tell(trial, 1.0)
            assert one.tell(trial, 1.0) == "completed"

    def test_losses_and_progress_reach_the_record(self, sweep):
        with sweep.ask() as trial:
            for step in (10, 20):
                trial.report(step=step, loss=1 / step, of=20, rate=3e-4)
            sweep.tell(trial, 0.05)
        assert sweep.experiment.trial(0).curve == ((10, 0.1), (20, 0.05))

    @pytest.mark.parametrize(
        "report",
        [{"step": step} for step in (float("nan"), float("inf"), -1, True, "x", None, 10**400)]
        + [{"step": 1, "loss": loss} for loss in ("x", "0.5", True, [1], b"1", 1j)]
        + [{"step": 1, name: "x"} for name in ("held_out_loss", "of")]
        + [{"step": 1, "at": None}, {"step": 1, "at": {}}, {"step": 1, "\n": 1}, {"step": 1, "\ud800": 1}]
        + [{"step": 1} | {f"note{nth}": "x" * 30_000 for nth in range(9)}],
        ids=str,
    )
    def test_an_odd_report_is_refused_in_one_line(self, sweep, report):
        with sweep.ask() as trial:
            with pytest.raises(sweeps.InputError, match=r"trial 0: report\(") as caught:
                trial.report(**report)
            assert "\n" not in str(caught.value)
            assert not (trial.folder / "metrics.jsonl").exists()
            trial.report(step=0, loss=None, note="\ud800", rate=float("inf"))  # each of these is documented
            sweep.tell(trial, 1.0)
        assert sweep.experiment.trial(0).curve == ()


ODD = {
    "none": None,
    "int": 5,
    "nan": float("nan"),
    "true": True,
    "empty": "",
    "text": "x=1",
    "bytes": b"x",
    "list": [1, 2],
    "tuple": (1,),
    "set": {1},
    "object": object(),
    "function": len,
    "keys": {1: 2, None: 3},
    "nan-in-dict": {"x": float("nan")},
    "list-in-dict": {"x": [1]},
    "null-in-dict": {"x": None},
    "huge": {"x": 10**400},
    "surrogate": {"x": "\ud800"},
    "nul": {"\0": 1},
    "complex": {"x": 1j},
}


class TestOddArguments:
    """Every function of `import sweeps`: one line that says what to give instead, and nothing has changed."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda sweep, odd, folder: sweep.enqueue(odd),
            lambda sweep, odd, folder: sweeps.create(odd, storage=folder),
            lambda sweep, odd, folder: sweeps.Sweep(odd),
            lambda sweep, odd, folder: sweep.tell(odd, 1.0),
        ],
        ids=["enqueue", "create", "Sweep", "tell"],
    )
    def test_argument_of_another_type_is_refused_in_lines(self, sweep, tmp_path, call):
        for name, odd in ODD.items():
            with pytest.raises(sweeps.InputError) as caught:
                call(sweep, odd, tmp_path)
            lines = str(caught.value).splitlines()
            # A dict may have several problems: each has a line that names it.
            assert len(lines) == 1 or isinstance(odd, dict), name
            assert all(": " in line and len(line) < 500 for line in lines), name
            assert sweep.experiment.trials() == [], name
            assert list(tmp_path.iterdir()) == [], name

    @pytest.mark.parametrize(
        "storage",
        [5, b"x", ["a"], True, {}, float("nan"), "", "\0", "\ud800", "ftp://x/y", "gs://", "/dev/null"],
    )
    def test_storage_of_another_type_is_one_line(self, storage):
        for call in (sweeps.open, lambda odd: sweeps.create(GRID, storage=odd)):
            with pytest.raises(sweeps.InputError) as caught:
                call(storage)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "name", [5, b"x", ["a"], True, {}, "", "\0", "../x", "a/b", "\ud800", "x" * 5000]
    )
    def test_name_of_another_type_is_one_line(self, tmp_path, name):
        with pytest.raises(sweeps.InputError, match="name"):
            sweeps.open(tmp_path, name)

    def test_switches_are_true_or_false(self, sweep, tmp_path):
        with pytest.raises(sweeps.InputError, match="write True or False"):
            sweep.enqueue({}, skip_if_exists="no")
        with pytest.raises(sweeps.InputError, match="write True or False"):
            sweeps.create(GRID, storage=tmp_path, skip_if_exists=None)

    def test_end_takes_no_other_outcome(self, sweep):
        with sweep.ask() as trial:
            with pytest.raises(sweeps.InputError, match=r"sweep\.tell"):
                trial.end(0.5)
            assert sweep.tell(trial, 0.5) == "completed"

    def test_numpy_counts_are_counts(self, sweep):
        assert sweep.run(lambda parameters: 1.0, n_trials=np.int64(1)) == {"completed": 1}


class TestLeavingTheBlock:
    def test_an_exception_fails_the_trial_and_goes_on(self, sweep):
        with pytest.raises(ZeroDivisionError), sweep.ask() as trial:
            print(1 / (trial.index - trial.index))
        record = sweep.experiment.trial(0)
        assert (record.status, record.failure) == ("failed", "crashed")
        assert record.error.startswith("ZeroDivisionError: ")
        assert hearts() == []

    def test_out_of_memory_and_a_lost_network_are_told_apart(self, sweep):
        with pytest.raises(MemoryError), sweep.ask():
            raise MemoryError
        assert sweep.experiment.trial(0).failure == "out_of_memory"
        with pytest.raises(ConnectionResetError), sweep.ask():
            raise ConnectionResetError(104, "Connection reset by peer")
        assert sweep.experiment.trial(1).status == "pending"  # to be tried again

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
    def test_an_interrupted_trial_is_put_back_and_loses_no_attempt(self, sweep, stop):
        with pytest.raises(stop), sweep.ask():
            raise stop
        record = sweep.experiment.trial(0)
        assert (record.status, record.history[-1].reason) == ("pending", "released")
        assert sweep.ask().index == 0

    def test_trial_with_a_forgotten_result_is_put_back(self, sweep):
        with (
            pytest.raises(sweeps.InputError, match="trial 0: "),
            sweep.ask(),
        ):
            pass
        assert sweep.experiment.trial(0).status == "pending"

    def test_an_error_after_the_report_changes_nothing(self, sweep):
        with pytest.raises(RuntimeError), sweep.ask() as trial:  # noqa: PT012 - the block is what is tested
            sweep.tell(trial, 1.0)
            raise RuntimeError
        assert sweep.experiment.trial(0).status == "completed"

    def test_a_trial_that_nothing_refers_to_sends_no_heartbeats(self, sweep):
        trial = sweep.ask()
        assert hearts() == ["heart-0"]
        del trial
        gc.collect()
        deadline = time.monotonic() + 5
        while hearts() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert hearts() == []
        assert sweep.experiment.trial(0).status == "running"  # until its lease expires


class TestLease:
    def test_it_is_renewed_in_the_background(self, grid):
        quick = replace(grid, lease=Lease(heartbeat_s=0.05, expire_s=0.3))
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), quick))
        other = sweeps.Sweep(Experiment(sweep.experiment.store, quick))
        with sweep.ask() as trial:
            time.sleep(0.6)
            assert other.ask().index == 1
            assert sweep.tell(trial, 1.0) == "completed"

    def test_a_trial_that_was_taken_over_cannot_be_reported(self, sweep, grid, clock):
        with pytest.raises(sweeps.TrialLost, match=r"lost: .*taken over"), sweep.ask() as trial:  # noqa: PT012
            clock.advance(31)
            taken = sweeps.Sweep(Experiment(sweep.experiment.store, grid)).ask()
            assert taken.index == 0
            sweep.tell(trial, 1.0)
        assert sweep.experiment.trial(0).status == "running"
        assert hearts() == ["heart-0"]  # of the other

    def test_a_report_says_it_too_and_should_stop_is_true(self, grid):
        quick = replace(grid, lease=Lease(heartbeat_s=0.05, expire_s=30))
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), quick))
        with pytest.raises(sweeps.TrialLost, match="is lost"), sweep.ask() as trial:  # noqa: PT012
            sweep.experiment.apply(0, Abandon(by="me"))
            deadline = time.monotonic() + 5
            while not trial.should_stop and time.monotonic() < deadline:
                time.sleep(0.01)
            assert trial.should_stop
            trial.report(step=1, loss=1.0)
        assert sweep.experiment.trial(0).status == "abandoned"

    def test_a_process_that_is_killed_leaves_its_trial_to_another(self, grid, tmp_path):
        """Killed between asking and reporting, by a signal that nothing handles."""
        quick = replace(grid, lease=Lease(heartbeat_s=0.1, expire_s=1.0))
        url = str(tmp_path / "sweep")
        sweep = sweeps.Sweep(Experiment.create(LocalStore(url), quick))
        code = f"import os, sweeps; t = sweeps.open({url!r}).ask(); print(t.index); os.kill(os.getpid(), 9)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == -9
        taken = sweep.ask()
        deadline = time.monotonic() + 20
        while taken.index and time.monotonic() < deadline:
            sweep.tell(taken, 1.0) if taken.index < 5 else None
            time.sleep(0.3)
            taken = sweep.ask()
        assert taken.index == 0
        assert sweep.tell(taken, 1.0) == "completed"
        assert sweep.experiment.trial(0).history[0].reason == "expired"

    def test_early_stopping_ends_it_without_a_result(self, grid, monkeypatch):
        quick = replace(
            grid,
            lease=Lease(heartbeat_s=0.05, expire_s=30),
            early_terminate=EarlyTerminate(min_step=0),
        )
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), quick))
        stop = EarlyStop(reason="behind", predicted={"loss": 2.0, "loss_sem": 0.1})
        monkeypatch.setattr(early_stopping, "should_stop", lambda *given: stop)
        for leave in ("tell", "leave"):
            with sweep.ask() as trial:
                trial.report(step=1, loss=3.0)
                deadline = time.monotonic() + 5
                while not trial.should_stop and time.monotonic() < deadline:
                    time.sleep(0.01)
                if leave == "tell":
                    assert sweep.tell(trial, 3.0) == "early_stopped"
            record = sweep.experiment.trial(trial.index)
            assert (record.status, dict(record.metrics)) == ("early_stopped", {})
            assert record.predicted["loss"] == 2.0
            assert record.history[-1].detail == "behind"

    @pytest.mark.parametrize("rule", ["percentile", "hyperband", "curve"])
    @pytest.mark.parametrize("kind", ["loss", "held_out_loss"])
    def test_losses_that_are_not_finite_are_the_worst(self, grid, rule, kind):
        early = EarlyTerminate(type=rule, min_trials=2, min_step=3)
        quick = replace(grid, lease=Lease(heartbeat_s=0.02, expire_s=30), early_terminate=early)
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), quick))
        for _ in range(2):
            with sweep.ask() as trial:
                for step in range(1, 6):
                    trial.report(step=step, **{kind: 1 / step})
                sweep.tell(trial, 0.2)
        with sweep.ask() as trial:
            for step, value in enumerate([1.0, float("nan"), float("inf"), float("nan")], 1):
                trial.report(step=step, **{kind: value})
            deadline = time.monotonic() + 10
            while not trial.should_stop and time.monotonic() < deadline:
                time.sleep(0.01)
        record = sweep.experiment.trial(2)
        assert (record.status, record.curve) == ("early_stopped", ((1, 1.0),))
        assert "not finite at step 4" in record.history[-1].detail


class TestProcessesAndThreads:
    def test_forked_child_has_trials_of_its_own(self, grid, tmp_path):
        sweep = sweeps.Sweep(Experiment.create(LocalStore(str(tmp_path / "sweep")), grid))
        mine = sweep.ask()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(sweeps.InputError, match="process"):
                    sweep.tell(mine, 1.0)
                mine.__exit__(ValueError, ValueError("in the child"), None)
                with sweep.ask() as trial:
                    sweep.tell(trial, 2.0)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sweep.tell(mine, 1.0) == "completed"
        assert [dict(r.metrics) for r in sweep.experiment.trials()] == [{"loss": 1.0}, {"loss": 2.0}]

    def test_a_pickled_sweep_is_opened_again(self, grid, tmp_path):
        sweep = sweeps.Sweep(Experiment.create(LocalStore(str(tmp_path / "sweep")), grid))
        again = pickle.loads(pickle.dumps(sweep))
        assert again.url == sweep.url
        assert (again.ask().index, sweep.ask().index) == (0, 1)

    def test_a_pickle_is_read_after_a_change_of_the_folder(self, grid, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        sweep = sweeps.Sweep(Experiment.create(LocalStore("sweep"), grid))
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        again = pickle.loads(pickle.dumps(sweep))
        assert (again.ask().index, sweep.ask().index) == (0, 1)

    def test_trial_may_end_in_another_thread(self, sweep):
        trials = []
        asking = [threading.Thread(target=lambda: trials.append(sweep.ask())) for _ in range(3)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert sorted(trial.index for trial in trials) == [0, 1, 2]
        assert {sweep.tell(trial, 1.0) for trial in trials} == {"completed"}

    def test_a_bucket_does_as_a_folder(self, grid, gcs):
        store = GcsStore(f"gs://bucket/door/{uuid.uuid4().hex}", endpoint=gcs.url)
        sweep = sweeps.Sweep(Experiment.create(store, grid))
        assert sweep.enqueue({"x": 4}) == 0
        with sweep.ask() as trial:
            assert trial.parameters == {"x": 4}
            trial.report(step=1, loss=0.5)
            (trial.folder / "notes.txt").write_text("kept")
            assert sweep.tell(trial, 0.25) == "completed"
        assert sweep.best.metrics == {"loss": 0.25}
        assert any(entry.key.endswith("notes.txt") for entry in store.list("runs/"))


class TestRun:
    def test_the_name_of_the_parameter_says_what_a_function_gets(self, sweep):
        got = []

        def of_parameters(parameters):
            got.append(type(parameters))
            return float(parameters["x"])

        def of_trial(trial):
            got.append(type(trial))
            trial.report(step=1, loss=2.0)
            return {"loss": float(trial.parameters["x"]), "ms": 3}

        assert sweep.run(of_parameters, n_trials=2) == {"completed": 2}
        assert sweep.run(of_trial, n_trials=1) == {"completed": 1}
        assert got == [dict, dict, sweeps.Trial]
        assert sweep.experiment.trial(2).curve == ((1, 2.0),)
        assert sweep.run(of_parameters) == {"completed": 3}
        assert sweep.run(of_parameters) == {}

    def test_workers_share_the_number_of_trials(self, sweep):
        meeting = threading.Barrier(2, timeout=20)  # both run at once, or it breaks

        def function(parameters):
            meeting.wait()
            return 1.0

        assert sweep.run(function, n_trials=4, workers=2) == {"completed": 4}
        assert len(sweep.experiment.trials()) == 4

    def test_enough_failures_pause_the_sweep_until_it_is_resumed(self, sweep, clock):
        with pytest.raises(sweeps.SweepClosed, match=r"sweep\.resume\(\)"):
            sweep.run(lambda parameters: 1 / 0)
        assert [record.failure for record in sweep.experiment.trials()] == ["crashed"] * 3
        clock.advance(1)
        sweep.resume()
        assert sweep.run(lambda parameters: 1.0) == {"completed": 3}

    def test_what_a_braked_sweep_quotes_is_left_as_it_is(self, sweep):
        def function(parameters):
            raise RuntimeError("call `sweep status`")

        with pytest.raises(sweeps.SweepClosed, match=r"call `sweep status`; .*sweep\.resume\(\)") as caught:
            sweep.run(function)
        assert caught.value.message == str(caught.value)

    def test_first_failure_of_a_kind_shows_its_line(self, sweep, caplog):
        def function(parameters):
            raise RuntimeError("no data" if parameters["x"] < 3 else "out of data")

        with pytest.raises(sweeps.SweepClosed):
            sweep.run(function)
        shown = [entry.getMessage() for entry in caplog.records]
        kinds = [message.partition("\n")[0].partition(": ")[2] for message in shown]
        assert set(kinds) == {"RuntimeError: no data", "RuntimeError: out of data"}
        for nth, (kind, message) in enumerate(zip(kinds, shown, strict=True)):
            assert ("in function" in message) == (kind not in kinds[:nth]), message

    def test_a_switch_of_its_own(self, sweep, caplog):
        sweep.pause()
        with pytest.raises(sweeps.SweepClosed, match=r"paused; `sweep\.resume\(\)`"):
            sweep.ask()
        sweep.resume()
        trial = sweep.ask()
        sweep.stop()
        assert sweep.tell(trial, 1.0) == "completed"
        assert sweep.run(lambda parameters: 1.0) == {}
        assert caplog.messages == [f"{sweep.url} is stopped; `sweep.resume()` opens it again"]

    def test_a_function_that_is_asked_to_stop_returns_no_result(self, grid, monkeypatch):
        quick = replace(
            grid, lease=Lease(heartbeat_s=0.05, expire_s=30), early_terminate=EarlyTerminate(min_step=0)
        )
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), quick))
        monkeypatch.setattr(early_stopping, "should_stop", lambda *given: EarlyStop(reason="behind"))

        def function(trial):
            trial.report(step=1, loss=3.0)
            deadline = time.monotonic() + 5
            while not trial.should_stop and time.monotonic() < deadline:
                time.sleep(0.01)
            return 3.0

        assert sweep.run(function, n_trials=1) == {"early_stopped": 1}
        assert dict(sweep.experiment.trial(0).metrics) == {}

    def test_ctrl_c_puts_the_trial_back_and_goes_on(self, sweep):
        def function(parameters):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sweep.run(function)
        assert sweep.experiment.trial(0).status == "pending"

    @pytest.mark.parametrize("becomes", ["SystemExit", "a result"])
    def test_ctrl_c_that_a_library_caught_does_the_same(self, sweep, becomes, request):
        """Lightning exits with 1; its older versions return from `fit`, as if training were over."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
        request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

        def function(parameters):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                if becomes == "SystemExit":
                    raise SystemExit(1) from None
            return 3.0

        with pytest.raises(KeyboardInterrupt):
            sweep.run(function)
        assert [record.status for record in sweep.experiment.trials()] == ["pending"]
        assert sweep.run(lambda parameters: 1.0, n_trials=1) == {"completed": 1}

    def test_function_may_handle_signals_by_asyncio(self, sweep):
        async def main() -> float:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
            return 1.0

        assert sweep.run(lambda parameters: asyncio.run(main()), n_trials=2) == {"completed": 2}

    def test_a_wakeup_descriptor_that_a_function_leaves_stays(self, sweep):
        ends = os.pipe()
        os.set_blocking(ends[1], False)

        def function(parameters):
            signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
            return 1.0

        assert sweep.run(function, n_trials=1) == {"completed": 1}
        assert signal.set_wakeup_fd(-1) == ends[1]
        for end in ends:
            os.close(end)  # fails if it is closed already

    def test_a_sweep_without_a_program_needs_a_function(self, sweep):
        with pytest.raises(sweeps.InputError, match="program"):
            sweep.run()

    @pytest.mark.parametrize("name", ["n_trials", "workers"])
    @pytest.mark.parametrize("odd", [0, -1, 1.5, True, "3", [], {}, float("nan"), np.zeros(2)], ids=str)
    def test_a_wrong_number_is_one_line(self, sweep, name, odd):
        with pytest.raises(sweeps.InputError, match="write a whole number from 1"):
            sweep.run(lambda parameters: 1.0, **{name: odd})
        with pytest.raises(sweeps.InputError, match="workers=None"):
            sweep.run(lambda parameters: 1.0, workers=None)
        assert sweep.experiment.trials() == []

    def test_the_programs_own_function_runs_as_in_a_worker(self, space):
        ours = replace(space, search=Search(method="random"), run_cap=1)
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), ours))
        assert sweep.run() == {"completed": 1}

    def test_threads_do_not_share_the_environment_of_the_programs_own_function(self, space):
        """In it a function finds its run folder, and would read and write another trial's."""
        seeded = (*space.parameters, Fixed(name="seed", value=0))
        ours = replace(space, parameters=seeded, search=Search(method="random"), run_cap=2)
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), ours))
        refused = r"workers=2: .*as in run\(function, workers=2\), or start `sweep worker` several times"
        with pytest.raises(sweeps.InputError, match=refused):
            sweep.run(workers=2)
        assert sweep.experiment.trials() == []
        assert sweep.run(lambda parameters: parameters["x"], workers=2) == {"completed": 2}
        with pytest.raises(sweeps.InputError, match=refused):
            sweep.confirm(top=2, seeds=2, workers=2)
        assert len(sweep.experiment.trials()) == 2


class TestReading:
    def test_an_empty_sweep_says_so(self, sweep):
        for read in (lambda: sweep.best, sweep.pareto):
            with pytest.raises(sweeps.InputError, match="no trial"):
                read()
        assert len(sweep.trials()) == 0

    def test_best_and_front_keep_to_the_goals_and_the_constraints(self, grid):
        goals = (Objective(metric="score", goal="maximize"), Objective(metric="ms"))
        bounded = replace(grid, objectives=goals, outcome_constraints=("gb <= 4",))
        sweep = sweeps.Sweep(Experiment.create(MemoryStore(), bounded))
        for score, ms, gb in ((1, 5, 1), (2, 6, 1), (9, 9, 8), (0.5, 5, 1), (1, 7, 1), (2, 6, 4)):
            sweep.tell(sweep.ask(), {"score": score, "ms": ms, "gb": gb})
        assert sweep.best.trial == 1
        assert [result.trial for result in sweep.pareto()] == [1, 5, 0]
        table = sweep.trials()
        assert table["infeasible"].tolist() == [False, False, True, False, False, False]
        assert summary.pareto(table, x="ms", y="score", y_goal="maximize").front == (0, 1, 5)

    def test_damaged_record_is_a_warning(self, sweep):
        for loss in (3.0, 2.0, 1.0):
            sweep.tell(sweep.ask(), loss)
        store = sweep.experiment.store
        store.replace("trials/000001.json", b"{", store.read("trials/000001.json")[1])
        with pytest.warns(UserWarning, match=r"trials/000001\.json: .*`sweep doctor`"):
            assert list(sweep.trials()["trial"]) == [0, 2]

    def test_the_table_has_the_columns_of_an_export(self, sweep):
        sweep.tell(sweep.ask(), {"loss": 1.0, "ms": 2})
        table = sweep.trials()
        assert list(table.columns) == [
            *("trial", "status", "attempt", "generator", "worker", "seconds", "error", "failure"),
            *("param.x", "loss", "ms"),
        ]
        assert table["loss"].tolist() == [1.0]

    def test_nothing_is_left(self, sweep):
        sweep.run(lambda parameters: 1.0)
        with pytest.raises(sweeps.NothingToAsk, match="6 trials"):
            sweep.ask()


class TestCreate:
    def test_a_dict_and_a_file_and_the_same_again(self, tmp_path):
        sweep = sweeps.create(GRID, storage=tmp_path)
        assert sweep.url == str(tmp_path / "grid")
        with pytest.raises(sweeps.InputError, match="a sweep exists here"):
            sweeps.create(GRID, storage=tmp_path)
        assert sweeps.create(GRID, storage=tmp_path, skip_if_exists=True).url == sweep.url
        assert sweeps.open(tmp_path, "grid").name == sweeps.open(tmp_path).name == "grid"
        file = tmp_path / "space.yaml"
        file.write_text(
            "name: filed\nobjectives: [{metric: loss}]\nprogram: {function: 'objectives_for_tests:paraboloid'}\n"
            "parameters: {x: {values: [1, 2]}}\nsearch: {method: grid}\n"
        )
        assert repr(sweeps.create(file, storage=tmp_path)) == f"sweeps.open({str(tmp_path / 'filed')!r})"

    def test_the_same_script_with_more_trials_goes_on(self, tmp_path, capsys):
        few = sweeps.create(GRID | {"run_cap": 2}, storage=tmp_path)
        assert few.run(lambda parameters: 1.0) == {"completed": 2}
        more = sweeps.create(GRID | {"run_cap": 4}, storage=tmp_path, skip_if_exists=True)
        assert more.run(lambda parameters: 1.0) == {"completed": 2}
        assert "run_cap 2 → 4" in capsys.readouterr().err
        with pytest.raises(sweeps.InputError, match=r"parameters\.x\.values: ") as caught:
            sweeps.create(
                GRID | {"parameters": {"x": {"values": [1, 2]}}}, storage=tmp_path, skip_if_exists=True
            )
        assert caught.value.__context__ is None  # a notebook would show that traceback first

    @pytest.mark.parametrize(
        ("space", "message"),
        [
            (7, "the space is a int"),
            ({}, "sweeps.create: name: `name:` is missing"),
            (GRID | {"paramters": {}}, "did you mean `parameters`"),
            (GRID | {"parameters": {"x": {"min": 1, "max": float("nan")}}}, "sweeps.create: parameters.x"),
            (GRID | {"parameters": {"x": {"values": [object()]}}}, "object cannot be written down"),
            ("nothere.yaml", "nothere.yaml: there is no such file"),
        ],
        ids=["int", "empty", "misspelt", "nan", "object", "no-file"],
    )
    def test_wrong_space_is_a_line_for_each_problem(self, tmp_path, space, message):
        with pytest.raises(sweeps.InputError, match=message) as caught:
            sweeps.create(space, storage=tmp_path)
        missing = {"name", "objectives", "parameters"} - (space.keys() if isinstance(space, dict) else set())
        assert len(str(caught.value).splitlines()) == (len(missing) if space == {} else 1)
        assert list(tmp_path.glob("*/sweep.json")) == []

    def test_a_worker_of_a_sweep_without_a_program_says_what_to_do(self, tmp_path):
        sweeps.create(GRID, storage=tmp_path)
        from sweeps.programs.kinds import program_of

        with pytest.raises(sweeps.InputError, match=r"sweeps\.open\(URL\)\.run\(function\)"):
            program_of(Experiment.open(LocalStore(str(tmp_path / "grid"))).space).require_startable()


@pytest.mark.parametrize("method", ["grid", "random"])
def test_reading_imports_neither_torch_nor_ax_nor_pandas(tmp_path, method):
    """Neither do making and asking, of a grid and of random search; `trials()` is what pandas is for."""
    code = f"""
import sys, sweeps
heavy = ("torch", "ax", "botorch", "pandas", "transformers", "trainer", "gcsfs")
assert not [m for m in (*heavy, "numpy", "yaml", "sweeps.experiment") if m in sys.modules]
sweep = sweeps.create({GRID | {"search": {"method": method}}}, storage=sys.argv[1])
sweep = sweeps.open(sweep.url)
sweep.enqueue(dict(x=3))
with sweep.ask() as trial:
    trial.report(step=1, loss=1.0)
    sweep.tell(trial, 1.0)
assert sweep.best.metrics == sweep.pareto()[0].metrics == dict(loss=1.0)
assert sweep.run(lambda trial: 1.0, n_trials=1) == dict(completed=1)
assert not [m for m in heavy if m in sys.modules], [m for m in heavy if m in sys.modules]
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
