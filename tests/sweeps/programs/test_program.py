"""Running one trial: what counts as a result, and how every failure is reported."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import UserDict
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.errors import CannotStart, InputError
from sweeps.programs import progress_log
from sweeps.programs.function import FunctionProgram
from sweeps.programs.kinds import program_of, with_nodes
from sweeps.programs.result import Completed, Failed, NotStarted, Preempted
from sweeps.programs.signals import Stop
from sweeps.programs.trainer import TrainerProgram
from sweeps.space.definition import Objective, Program
from sweeps.trials.record import Trial
from trainer.api import check

RECORD = Trial(
    trial=4, status="running", parameters={"x": 0.5, "n": 10}, generator="sobol", attempt=1, worker="w", heartbeat=1.0
)  # fmt: skip


def run(space, tmp_path: Path, record=RECORD, **changes):
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    arguments = {"stop": Stop(), "wants_stop": lambda: False} | changes
    return program_of(space).run(record, folder, **arguments)


@pytest.fixture
def listening(keep_signals) -> Stop:
    # Another test may have left its own handlers.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    stop = Stop()
    stop.listen()
    return stop


def function(space, name: str):
    return replace(space, program=Program(kind="function", function=f"objectives_for_tests:{name}"))


def python(space, code: str, *more: str):
    return replace(space, program=Program(kind="command", command=(sys.executable, "-c", code, *more)))


WRITE = "import json,os,sys; json.dump({}, open(os.environ['SWEEP_RUN_DIR'] + '/result.json', 'w'))"


def write(document: str) -> str:
    return WRITE.replace("{}", document)


FUNCTIONS = """\
def of_trial(trial):
    trial.report(step=1, loss=0.5)
    assert not trial.should_stop
    return trial.index, trial.parameters["o"], trial.folder.name

def of_parameters(given):
    return given["o"]

either = of_trial  # what it takes is not known without running this
"""


class TestFunctions:
    def test_the_returned_metrics_are_the_result(self, space, tmp_path):
        outcome = run(function(space, "paraboloid"), tmp_path)
        assert outcome == Completed(metrics={"loss": pytest.approx(0.14), "effective_steps": 10})

    def test_an_exception_fails_the_trial_with_its_traceback(self, space, tmp_path):
        outcome = run(function(space, "explodes"), tmp_path)
        assert isinstance(outcome, Failed)
        assert outcome.error.startswith("RuntimeError: no such luck\n")
        assert "Traceback" in outcome.error

    def test_nan_is_a_failure_and_not_a_result(self, space, tmp_path):
        assert "loss is nan" in run(function(space, "not_a_number"), tmp_path).error

    @pytest.mark.parametrize(
        ("returned", "expected"),
        [
            ({"status": "failed", "error": "no data"}, Failed(error="no data", failure="crashed")),
            (
                UserDict(status="failed", failure="diverged", error="nan"),
                Failed(error="nan", failure="diverged"),
            ),
            (
                {"status": "refused", "error": "7 heads"},
                Failed(error="config refused: 7 heads", failure="bad_config"),
            ),
            ({"metrics": {"loss": 1.0}}, Completed(metrics={"loss": 1.0})),
            ({"status": "completed", "metrics": {"loss": 1.0}}, Completed(metrics={"loss": 1.0})),
            ({"status": "ok", "loss": 1.0}, Completed(metrics={"loss": 1.0})),  # a note
        ],
    )
    def test_what_it_returns_may_be_as_in_a_result_file(self, space, tmp_path, returned, expected):
        program = FunctionProgram(space, lambda parameters: returned)
        assert program.run(RECORD, tmp_path, stop=Stop(), wants_stop=lambda: False) == expected

    def test_numbers_of_numpy_and_torch_are_numbers(self, space, tmp_path):
        assert run(function(space, "numpy_scalar"), tmp_path) == Completed(
            metrics={"loss": 0.5, "huge": None}
        )

    def test_leaving_the_interpreter_is_a_failure_of_the_trial(self, space, tmp_path):
        assert run(function(space, "leaves"), tmp_path).error.startswith("SystemExit: 0")

    @pytest.mark.parametrize(
        ("name", "output"),
        [
            ("of_trial", "(4, '1e5', 'again')"),
            ("of_parameters", "1e5"),
            ("either", "(4, '1e5', 'again')"),
        ],
    )
    def test_command_line_runs_it_again(self, space, tmp_path, monkeypatch, name: str, output: str):
        (tmp_path / "lab").mkdir()
        (tmp_path / "lab" / "train.py").write_text(FUNCTIONS)
        monkeypatch.chdir(tmp_path)
        program = program_of(replace(space, program=Program(kind="function", function=f"lab.train:{name}")))
        line = program.command_line(replace(RECORD, parameters={"o": "1e5"}), run_dir="runs/again")
        assert "lab.train" not in sys.modules  # a command that only reads runs no code of the user
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ran = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.stderr) == (f"{output}\n", "")

    def test_command_line_of_a_function_that_is_elsewhere(self, space):
        program = program_of(replace(space, program=Program(kind="function", function="no_such.place:f")))
        call = "from no_such.place import f; print(f({'x': 0.5, 'n': 10}))"
        assert program.command_line(RECORD) == f'python -c "{call}"'

    def test_a_missing_objective_names_what_is_there(self, space, tmp_path):
        assert "'loss'; there is accuracy" in run(function(space, "forgets"), tmp_path).error

    @pytest.mark.parametrize(
        ("name", "detail"),
        [
            ("sleeps", "SIGTERM"),
            ("stops_by_itself", "stops_by_itself ended at SIGTERM"),
            ("catches_all", "catches_all ended at SIGTERM"),
        ],
    )
    def test_sigterm_ends_it_without_a_result(
        self, space, tmp_path, monkeypatch, listening, name: str, detail: str
    ):
        monkeypatch.setenv("STARTED", str(tmp_path / "started"))

        def kill_when_started() -> None:
            while not (tmp_path / "started").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=kill_when_started)
        thread.start()
        outcome = run(function(space, name), tmp_path, stop=listening)
        thread.join()
        assert outcome == Preempted(detail=detail)
        assert listening.by == "SIGTERM"  # so that the worker leaves

    def test_signals_of_its_children_are_not_its_own(self, space, tmp_path, listening, capfd):
        assert run(function(space, "ends_a_child"), tmp_path, stop=listening) == Completed(
            metrics={"loss": 0.0}
        )
        assert not listening.requested
        assert capfd.readouterr().err == ""  # no traceback of an exception of ours


class TestCommands:
    def test_overrides_run_dir_and_trial_are_filled_in(self, space, tmp_path):
        code = write("{'loss': 1, 'argc': len(sys.argv)}") + "; print(sys.argv[1:])"
        outcome = run(python(space, code, "${overrides}", "--out=${run_dir}/t${trial}"), tmp_path)
        assert outcome.metrics == {"loss": 1, "argc": 4}
        said = (tmp_path / "run" / "log.txt").read_text()
        assert f"['x=0.5', 'n=10', '--out={tmp_path}/run/t4']" in said

    def test_the_workers_own_python_can_be_asked_for(self, space, tmp_path):
        code = write("{'loss': 1}") + "; print(sys.executable)"
        command = ("${python}", "-c", code, "${overrides}")
        asked = replace(space, program=Program(kind="command", command=command))
        program_of(asked).check([])
        assert run(asked, tmp_path).metrics == {"loss": 1}
        assert (tmp_path / "run" / "log.txt").read_text().strip() == sys.executable

    def test_the_outcome_is_read_with_or_without_the_envelope(self, space, tmp_path):
        enveloped = "{'schema': 1, 'status': 'completed', 'metrics': {'loss': 2.5, 'note': 'x', 'ok': True}}"
        assert run(python(space, write(enveloped)), tmp_path) == Completed(metrics={"loss": 2.5})

    def test_infinite_metric_that_is_not_needed_is_stored_as_none(self, space, tmp_path):
        outcome = run(python(space, write("{'loss': 1.0, 'perplexity': float('inf')}")), tmp_path)
        assert outcome == Completed(metrics={"loss": 1.0, "perplexity": None})

    def test_a_standard_error_that_the_search_needs_is_needed_too(self, space, tmp_path):
        program = python(space, write("{'loss': 1.0}"))
        assert run(program, tmp_path) == Completed(metrics={"loss": 1.0})
        reported = replace(program, search=replace(program.search, noise="reported"))
        assert "'loss_sem'; there is loss" in run(reported, tmp_path).error

    def test_a_constrained_metric_is_needed_too(self, space, tmp_path):
        constrained = replace(
            python(space, write("{'loss': 1.0}")), outcome_constraints=("peak_memory_gib <= 40",)
        )
        assert "no metric 'peak_memory_gib'" in run(constrained, tmp_path).error

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("print('boom'); raise SystemExit(3)", "exited with status 3; its last words: boom"),
            ("raise SystemExit(1)", "exited with status 1 without a word"),
            ("import os,signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL, most likely for want of memory"),
            ("import os,signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
            ("pass", "wrote no result.json"),
            (write("[1]"), "not a JSON object"),
            (write("{'status': 'failed', 'metrics': {'loss': 1}}"), "status is 'failed'"),
            (write("{'loss': 'low'}"), "loss is 'low', not a number"),
            (write("{'loss': True}"), "loss is True, not a number"),
            ("import os; open(os.environ['SWEEP_RUN_DIR'] + '/result.json', 'w').write('{\"loss\": ')", "not JSON"),
        ],
        ids=["status", "silent", "sigkill", "sigsegv", "no-result", "list", "says-failed", "text", "bool", "torn"],
    )  # fmt: skip
    def test_every_way_of_failing_says_what_happened(self, space, tmp_path, code, message):
        outcome = run(python(space, code), tmp_path)
        assert isinstance(outcome, Failed)
        assert message in outcome.error

    @pytest.mark.parametrize("result", ["[1]", "{'loss': 'low'}", "{'acc': 1}", "{'status': 'failed'}"])
    def test_error_begins_with_what_is_wrong(self, space, tmp_path, result):
        """The folder would fill the table's column, and is gone where the sweep is in a bucket."""
        assert run(python(space, write(result)), tmp_path).error.startswith("result.json: ")

    @pytest.mark.parametrize(
        ("code", "failure"),
        [
            ("raise SystemExit(70)", "diverged"),
            ("raise SystemExit(2)", "crashed"),
            (write("{'status': 'refused', 'error': 'x'}") + "; raise SystemExit(2)", "bad_config"),
            (write("{'status': 'failed', 'failure': 'diverged'}"), "diverged"),
            ("raise SystemExit(3)", "crashed"),
            ("import os,signal; os.kill(os.getpid(), signal.SIGKILL)", "out_of_memory"),
            ("import os,signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed"),
            ("raise MemoryError", "out_of_memory"),
            (
                "raise RuntimeError('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate')",
                "out_of_memory",
            ),
            ("raise RuntimeError('cuDNN error: CUDNN_STATUS_ALLOC_FAILED')", "out_of_memory"),
            ("pass", "bad_config"),
            (write("{'loss': float('nan')}"), "diverged"),
            (write("{'acc': 1}"), "bad_config"),
            (write("{'loss': None}"), "diverged"),
            (write("{'loss': '0.5'}"), "bad_config"),
            (write("{'loss': True}"), "bad_config"),
        ],
        ids=[
            "70",
            "2",
            "refused",
            "says",
            "3",
            "sigkill",
            "sigsegv",
            "memory-error",
            "cuda",
            "cudnn",
            "no-result",
            "nan",
            "no-metric",
            "null",
            "quoted-number",
            "boolean",
        ],
    )
    def test_every_failure_has_a_kind(self, space, tmp_path, code, failure):
        assert run(python(space, code), tmp_path).failure == failure

    @pytest.mark.parametrize(
        ("document", "status", "message", "failure"),
        [
            ({"status": "refused", "error": "n is odd"}, 2, "config refused: n is odd", "bad_config"),
            ({"status": "refused"}, 0, "config refused: without a reason", "bad_config"),
            ({"status": "failed", "failure": "bad_config", "error": "odd"}, 1, "config refused: odd", "bad_config"),
            ({"status": "failed", "error": "odd"}, 1, "odd", "crashed"),
            ({"status": "failed", "failure": "diverged", "error": "at step 3"}, 0, "at step 3", "diverged"),
            ({"status": "surprised", "error": "odd"}, 2, "the program exited with status 2 without a word", "crashed"),
        ],
        ids=["refused", "refused-politely", "failed-of-its-config", "failed", "failed-politely", "unknown"],
    )  # fmt: skip
    def test_what_a_program_says_of_its_own_failure_counts(
        self, space, tmp_path, document, status, message, failure
    ):
        code = f"{write(repr(document))}; raise SystemExit({status})"
        assert run(python(space, code), tmp_path) == Failed(error=message, failure=failure)

    @pytest.mark.parametrize(
        ("override", "failure", "message"),
        [
            ("stage2.optimiser.lr=1", "bad_config", "config refused: trainer: error: stage2.optimiser"),
            ("--help=1", "bad_config", "config refused: trainer: error: there is no option --help=1"),
        ],
        ids=["key", "option"],
    )
    def test_the_trainer_refuses_in_its_own_words(self, space, tmp_path, override, failure, message):
        program = Program(kind="trainer", overrides=("model=tiny", override))
        record = replace(RECORD, parameters={})  # the trainer would refuse these first
        outcome = run(replace(space, program=program, parameters=()), tmp_path, record)
        assert outcome.failure == failure
        assert outcome.error.startswith(message)

    @pytest.mark.parametrize("run_dir", ["runs/best", "runs/trial-4"])
    def test_its_command_line_is_a_run_that_the_trainer_accepts(self, space, run_dir):
        space = replace(space, program=Program(kind="trainer", overrides=("model=tiny",)), parameters=())
        record = replace(RECORD, parameters={"stage2.optimizer.lr": 0.004})
        line = TrainerProgram(space).command_line(record, run_dir=run_dir)
        start, overrides = shlex.split(line)[:3], shlex.split(line)[3:]
        assert start == ["python", "-m", "trainer"]
        assert check(overrides).run_dir == run_dir

    @pytest.mark.parametrize("process", ["", "process 1: "], ids=["first", "later"])
    def test_any_process_of_a_trial_may_be_the_one_that_refuses(self, space, process):
        """Files, packages and devices are those of its own machine."""
        program, argv = TrainerProgram(space), ["python", "-m", "trainer"]
        line = f"trainer: {process}error: data.files: '/nowhere/*.txt' names no file"
        refused = program.read_exit(2, line, argv)
        assert (refused.failure, refused.retryable) == ("bad_config", False)
        assert refused.error.splitlines()[0] == f"config refused: {line}"
        line = f"trainer: {process}error: not on this machine: device.type: there is no CUDA device here"
        lacking = program.read_exit(2, line, argv)
        assert lacking == NotStarted(detail="device.type: there is no CUDA device here")
        lost = (
            "trainer: process 3: error: the connection to another process of this run was lost: it was killed"
        )
        assert program.read_exit(2, f"{line}\n{lost}", argv) == lacking

    def test_status_2_without_the_trainers_message_is_a_crash(self, space):
        output = "python: error while loading shared libraries"
        outcome = TrainerProgram(space).read_exit(2, output, ["python", "-m", "trainer"])
        assert outcome.failure == "crashed"

    @pytest.mark.parametrize(
        ("status", "output", "retryable"),
        [
            (2, "", True),
            (2, "preflight: memory below 4.20 MiB", True),
            (1, "", True),
            (1, "trainer: error: the loss hook failed", False),
            (2, "trainer: error: stage2.lr: too high", False),
            (70, "trainer: diverged: loss is nan", False),
        ],
    )
    def test_trainer_that_could_not_say_why_it_ends_is_tried_again(self, space, status, output, retryable):
        """Its log was on a disk that was full for a moment."""
        outcome = TrainerProgram(space).read_exit(status, output, ["python", "-m", "trainer"])
        assert outcome.retryable is retryable

    @pytest.mark.parametrize(
        ("code", "retryable"),
        [
            ("raise KeyError('lr')", False),
            ("raise SystemExit(3)", False),
            ("raise MemoryError", False),
            ("raise ConnectionResetError(104, 'Connection reset by peer')", True),
            ("import os; os.kill(os.getpid(), 9)", True),
            ("import os; os.kill(os.getpid(), 11)", True),
            ("raise SystemExit(137)", True),
            ("raise SystemExit(255)", False),
            ("import os,sys; sys.stderr.write('RESOURCE_EXHAUSTED'); sys.stderr.flush(); os.abort()", False),
        ],
        ids=["exception", "status", "memory", "network", "sigkill", "sigsegv", "137", "255", "device-memory"],
    )
    def test_only_what_may_go_better_is_tried_again(self, space, tmp_path, code, retryable):
        assert run(python(space, code), tmp_path).retryable is retryable

    def test_the_last_fifty_lines_are_kept(self, space, tmp_path):
        outcome = run(python(space, "[print('line', i) for i in range(200)]; raise SystemExit(1)"), tmp_path)
        lines = outcome.error.splitlines()
        assert (lines[1], lines[-1], len(lines)) == ("line 150", "line 199", 51)

    def test_missing_program_is_the_machines_fault(self, space, tmp_path):
        gone = replace(space, program=Program(kind="command", command=("no-such-program", "${overrides}")))
        outcome = run(gone, tmp_path)
        assert isinstance(outcome, NotStarted)
        assert "'no-such-program' is not a program" in outcome.detail

    @pytest.mark.parametrize(
        "code",
        [
            "raise SystemExit(75)",
            "raise SystemExit(143)",
            "import os,signal; os.kill(os.getpid(), signal.SIGTERM)",
            # Who runs the tests under nohup ignores it, and so would every process below.
            "import os,signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGHUP)",
        ],
        ids=["75", "143", "sigterm", "sighup"],
    )
    def test_termination_from_outside_is_a_preemption(self, space, tmp_path, code):
        """A cgroup or a spot machine ends everything at once; our own signal may come a moment later."""
        assert isinstance(run(python(space, code), tmp_path), Preempted)

    def test_stopped_program_without_a_result_is_preempted(self, space, tmp_path):
        code = (
            "import os,signal,sys,time\n"
            "signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))\n"
            "open(os.environ['SWEEP_RUN_DIR'] + '/ready', 'w').close(); time.sleep(600)"
        )
        ready = tmp_path / "run" / "ready"
        assert isinstance(run(python(space, code), tmp_path, wants_stop=ready.exists), Preempted)

    def test_error_shows_progress_bars_as_a_terminal_does(self, space, tmp_path):
        code = (
            r"import sys; print('begin\r\n 10%\r 50%\r100%\n\x1b[A    \r  \r\n\x1b[31mloss 3\x1b[0m\n 99%\r', end='')"
            "; sys.exit('too large')"
        )
        error = run(python(space, code), tmp_path).error
        assert error.splitlines()[1:] == ["begin", "100%", "loss 3", "too large"]

    def test_what_the_program_left_running_is_ended_with_it(self, space, tmp_path):
        marker = tmp_path / "grandchild"
        code = (
            "import subprocess,sys\n"
            "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            f"open({str(marker)!r}, 'w').write(str(c.pid))\n" + write("{'loss': 1.0}")
        )
        assert run(python(space, code), tmp_path) == Completed(metrics={"loss": 1.0})
        assert _gone(int(marker.read_text()))

    def test_signals_are_as_a_shell_leaves_them(self, space, tmp_path):
        """Python ignores SIGPIPE and SIGXFSZ, and what it starts would inherit that: `yes | head` would complain."""
        code = (
            "mask=$(grep SigIgn /proc/self/status | cut -f2); "
            "echo '{\"loss\": 0, \"ignored\": '$((0x$mask))'}' > $SWEEP_RUN_DIR/result.json"
        )
        shell = replace(space, program=Program(kind="command", command=("sh", "-c", code, "${overrides}")))
        ignored = int(run(shell, tmp_path).metrics["ignored"])
        assert [s.name for s in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (s - 1) & 1] == []

    def test_a_lost_trial_stops_the_program_and_all_that_it_started(self, space, tmp_path):
        marker = tmp_path / "grandchild"
        code = (
            "import subprocess,sys,time\n"
            f"c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            f"open({str(marker)!r}, 'w').write(str(c.pid)); time.sleep(600)"
        )
        began = time.monotonic()
        outcome = run(
            python(space, code), tmp_path, wants_stop=lambda: marker.exists() and marker.read_text() != ""
        )
        assert isinstance(outcome, Preempted)
        assert time.monotonic() - began < 20
        assert _gone(int(marker.read_text()))

    def test_a_result_that_was_written_in_the_last_moment_counts(self, space, tmp_path):
        code = (
            "import signal,sys,time\n"
            "signal.signal(signal.SIGTERM, lambda *a: (_ for _ in ()).throw(SystemExit(0)))\n"
            f"{write(json.dumps({'loss': 1.0}))}\n"
            "open(os.environ['SWEEP_RUN_DIR'] + '/ready', 'w').close(); time.sleep(600)"
        )
        ready = tmp_path / "run" / "ready"
        assert run(python(space, code), tmp_path, wants_stop=ready.exists) == Completed(metrics={"loss": 1.0})

    @pytest.mark.parametrize(
        ("document", "outcome"),
        [
            ({"loss": 1.0}, Preempted(detail="the program exited with status 0")),
            ({"status": "completed", "metrics": {"loss": 1.0}}, Completed(metrics={"loss": 1.0})),
        ],
        ids=["metrics alone", "status completed"],
    )
    def test_result_after_sigterm_counts_only_if_it_says_completed(self, space, tmp_path, document, outcome):
        """A library that stops training at SIGTERM returns to the script, which reports half of a run."""
        code = (
            "import signal,time\nstopped = []\nsignal.signal(signal.SIGTERM, lambda *a: stopped.append(1))\n"
            "import os; open(os.environ['SWEEP_RUN_DIR'] + '/ready', 'w').close()\n"
            "while not stopped: time.sleep(0.01)\n" + write(json.dumps(document))
        )
        ready = tmp_path / "run" / "ready"
        assert run(python(space, code), tmp_path, wants_stop=ready.exists) == outcome


def test_what_else_stands_in_a_result_is_no_metric(space, tmp_path):
    """The trainer's warnings and provenance."""
    document = {
        "status": "completed",
        "metrics": {"loss": 1.0},
        "warnings": [{"check": "plateau", "stage": "stage2", "step": 2000, "message": "it stands still"}],
        "provenance": {"seed": 0},
    }
    assert run(python(space, write(json.dumps(document))), tmp_path) == Completed(metrics={"loss": 1.0})


class TestProgress:
    def test_it_is_the_last_whole_line(self, tmp_path):
        lines = [
            '{"stage": "2", "step": 1, "of": 9, "loss": 3.0}',
            '{"stage": "2", "step": 2, "of": 9, "extra": []}',
            '{"st',
        ]
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
        assert progress_log.progress(tmp_path) == {"stage": "2", "step": 2, "of": 9}

    @pytest.mark.parametrize(
        ("before", "shown"),
        [
            ('{"stage": "stage2", "step": 4, "of": 9, "loss": 3.5}', {"loss": 3.5}),
            ('{"stage": "stage1_9", "step": 6, "of": 6, "loss": 1.5}', {}),
            ("no JSON", {}),
            ("", {}),
        ],
        ids=["training", "another-stage", "no-json", "nothing"],
    )
    def test_held_out_loss_is_shown_with_the_training_loss(self, tmp_path, before, shown):
        line = '{"stage": "stage2", "step": 5, "of": 9, "held_out_loss": 3.25}'
        (tmp_path / "metrics.jsonl").write_text(f"{before}\n{line}\n")
        known = {"stage": "stage2", "step": 5, "of": 9, "held_out_loss": 3.25}
        assert progress_log.progress(tmp_path) == known | shown

    def test_what_no_record_can_hold_is_left_out(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN, "done": Infinity}\n')
        assert progress_log.progress(tmp_path) == {"step": 1}

    def test_nothing_written_is_nothing_known(self, tmp_path):
        assert progress_log.progress(tmp_path) == {}


class TestCurve:
    def test_it_is_the_losses_of_the_last_stage_by_step(self, tmp_path):
        lines = [
            '{"stage": "stage1_9", "step": 1, "loss": 9.0}',
            '{"stage": "stage2", "step": 2, "loss": 3.0}',
            '{"stage": "stage2", "step": 1, "loss": 4.0}',
            '{"stage": "stage2", "step": 3, "loss": NaN}',
            "half a li",
        ]
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
        assert progress_log.LossCurve(tmp_path).curve().points == ((1.0, 4.0), (2.0, 3.0))

    def test_programs_without_stages_have_one_too(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_text('{"step": 5, "loss": 1.5}\n')
        assert progress_log.LossCurve(tmp_path).curve().points == ((5.0, 1.5),)

    def test_it_is_the_held_out_losses_as_soon_as_there_are_any(self, tmp_path):
        file, losses = tmp_path / "metrics.jsonl", progress_log.LossCurve(tmp_path)
        file.write_text('{"stage": "stage2", "step": 1, "loss": 4.0}\n')
        assert losses.curve() == (((1.0, 4.0),), "loss")
        with file.open("a") as opened:
            opened.write('{"stage": "stage2", "step": 2, "held_out_loss": 3.5}\n')
            opened.write('{"stage": "stage2", "step": 3, "held_out_loss": null}\n')
            opened.write('{"stage": "stage2", "step": 3, "loss": 3.0}\n')
        assert losses.curve() == (((2.0, 3.5),), "held_out_loss in stage2")
        with file.open("a") as opened:
            opened.write('{"stage": "stage2", "step": 4, "held_out_loss": 3.25}')  # not ended yet
        assert losses.curve() == (((2.0, 3.5), (4.0, 3.25)), "held_out_loss in stage2")
        assert losses.last_held_out("stage2") == {"held_out_loss": 3.25}

    @pytest.mark.parametrize("end", ["\n", ""], ids=["ended", "unfinished"])
    def test_steps_of_two_stages_never_mix(self, tmp_path, end):
        lines = [
            '{"stage": "stage1_9", "step": 50, "held_out_loss": 5.0}',
            '{"stage": "stage2", "step": 25, "loss": 4.5}',
            '{"stage": "stage2", "step": 50, "held_out_loss": 4.0}',
            '{"stage": "stage3", "step": 1, "loss": 9.0}',
            '{"stage": "stage3", "step": 25, "held_out_loss": 3.0}',
        ]
        kinds, points = [], []
        for count in range(1, len(lines) + 1):
            (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:count]) + end)
            curve = progress_log.LossCurve(tmp_path).curve()
            kinds.append(curve.of)
            points.append(curve.points)
        first, second, third = (f"held_out_loss in stage{name}" for name in ("1_9", "2", "3"))
        assert kinds == [first, first, second, second, third]
        assert points == [((50, 5.0),)] * 2 + [((50, 4.0),)] * 2 + [((25, 3.0),)]
        losses = progress_log.LossCurve(tmp_path)
        assert (losses.last_held_out("stage3"), losses.last_held_out(None)) == ({"held_out_loss": 3.0}, {})

    @pytest.mark.parametrize("end", ["\n", ""], ids=["ended", "unfinished"])
    @pytest.mark.parametrize(
        ("last", "step"),
        [
            ('{"step": 2, "loss": NaN}', 2),
            ('{"step": 2, "loss": -Infinity}', 2),
            ('{"step": 2, "loss": null}', None),  # no value, in a program that logs every name
            ('{"step": 2, "loss": "NaN"}', None),
            ('{"step": 2, "loss": 1.0}', None),
            ('{"loss": NaN}', None),
        ],
    )
    def test_a_last_loss_that_is_not_finite_is_known(self, tmp_path, last, step, end):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n' + last + end)
        losses = progress_log.LossCurve(tmp_path)
        assert losses.not_finite("loss") == step
        assert losses.curve().points[0] == (1, 1.0)
        (tmp_path / "metrics.jsonl").write_text(
            '{"step": 1, "loss": 1.0}\n' + last + '\n{"step": 3, "loss": 1}\n'
        )
        assert losses.not_finite("loss") is None

    def test_a_program_without_stages_may_log_both_in_one_line(self, tmp_path):
        lines = (f'{{"step": {step}, "loss": 1.0, "held_out_loss": {step}.5}}\n' for step in (10, 20))
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        assert progress_log.LossCurve(tmp_path).curve() == (((10, 10.5), (20, 20.5)), "held_out_loss")

    def test_a_long_run_is_thinned_so_that_records_stay_small(self, tmp_path):
        (tmp_path / "metrics.jsonl").write_text(
            "\n".join(json.dumps({"step": i, "loss": i}) for i in range(10_000))
        )
        curve = progress_log.LossCurve(tmp_path).curve().points
        assert 32 <= len(curve) <= 64
        assert curve[0] == (0.0, 0.0)

    def test_a_file_put_in_the_place_of_another_is_read_from_its_start(self, tmp_path, caplog):
        """A resumed run of the trainer begins with its checkpoint's lines, then with those of a trunk."""
        losses, draft = progress_log.LossCurve(tmp_path), tmp_path / "draft"
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 4.0}\n')
        assert losses.curve().points == ((1.0, 4.0),)
        draft.write_text('{"step": 1, "loss": 4.0, "lr": 0.1}\n{"step": 2, "loss": 3.0, "lr": 0.1}\n')
        draft.replace(tmp_path / "metrics.jsonl")
        assert losses.curve().points == ((1.0, 4.0), (2.0, 3.0))
        assert not caplog.text

    def test_nothing_written_is_no_curve(self, tmp_path):
        assert progress_log.LossCurve(tmp_path).curve().points == ()


class TestCheck:
    @pytest.mark.parametrize(
        ("spelled", "message"),
        [
            ("no_such_module:f", "cannot be loaded"),
            ("objectives_for_tests:nothing", "cannot be loaded"),
            ("objectives_for_tests:NOT_CALLABLE", "is not a function"),
        ],
    )
    def test_a_function_that_is_not_there_is_refused(self, space, spelled, message):
        with pytest.raises(InputError, match=message):
            program_of(replace(space, program=Program(kind="function", function=spelled))).check([])

    def test_a_command_that_is_not_there_is_refused(self, command_space):
        gone = replace(
            command_space, program=Program(kind="command", command=("no-such-program", "${overrides}"))
        )
        with pytest.raises(InputError, match="'no-such-program' is not a program"):
            program_of(gone).check([])
        program_of(command_space).check([])

    def test_a_script_that_is_not_there_is_refused_with_the_folder(self, command_space, tmp_path):
        command = ("${python}", "-u", "trian.py", "${overrides}")
        wrong = replace(command_space, program=Program(kind="command", command=command))
        with pytest.raises(CannotStart, match=rf"'trian.py' in {re.escape(str(tmp_path))}"):
            program_of(wrong).check([])
        (tmp_path / "trian.py").touch()
        program_of(wrong).check([])

    def test_a_module_that_leaves_while_it_is_imported_is_refused(self, space, tmp_path):
        (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(0)\n")
        gone = replace(space, program=Program(kind="function", function="leaves_at_once:f"))
        with pytest.raises(CannotStart, match="SystemExit: 0"):
            program_of(gone).check([])

    @pytest.mark.parametrize(
        ("processes", "nodes", "overrides", "message"),
        [
            (2, 1, (), "device.parallel: 2 "),
            (1, 2, (), "device.parallel: 2 "),
            (1, 1, ("device.parallel=ddp",), "device.parallel: ddp "),
            (3, 1, ("device.parallel=ddp", "stage2.batch_size=8"), "stage2.batch_size: 8 "),
            (1, 3, ("device.parallel=ddp", "stage2.batch_size=8"), "stage2.batch_size: 8 "),
            (2, 2, ("device.parallel=fsdp", "device.mesh={data: 4, tensor: 2}"), "device.mesh: 4 "),
        ],
    )
    def test_processes_that_cannot_share_a_trial_are_refused(
        self, space, processes, nodes, overrides, message
    ):
        steps = ("stage1_9.max_steps=0",)
        program = Program(kind="trainer", overrides=(*steps, *overrides), processes=processes, nodes=nodes)
        shared = replace(space, program=program, objectives=(Objective(metric="final_loss"),))
        with pytest.raises(InputError, match=re.escape(message)):
            program_of(shared).check([{}])

    @pytest.mark.parametrize(("processes", "nodes"), [(2, 1), (1, 2), (2, 2)])
    def test_processes_that_can_share_a_trial_are_accepted(self, space, processes, nodes):
        program = Program(
            kind="trainer", overrides=("device.parallel=ddp",), processes=processes, nodes=nodes
        )
        shared = replace(space, program=program, objectives=(Objective(metric="final_loss"),))
        program_of(shared).check([{}])

    def test_another_number_of_hosts_is_checked(self, space):
        program = Program(
            kind="trainer", overrides=("device.parallel=ddp", "stage2.batch_size=8"), processes=2
        )
        shared = replace(space, program=program, objectives=(Objective(metric="final_loss"),), parameters=())
        assert with_nodes(shared, None) is with_nodes(shared, 1) is shared
        assert with_nodes(shared, 2).program.nodes == 2
        with pytest.raises(InputError, match=r"^--nodes 3: .*batch_size: "):
            with_nodes(shared, 3)
        with pytest.raises(InputError, match="only trials of"):
            with_nodes(replace(space, program=Program(kind="command", command=("a", "${overrides}"))), 2)

    def test_settings_of_all_points_are_refused_at_once(self, space):
        program = Program(kind="trainer", overrides=("stage2.nothing=1", "+device=cpu", "log_every=0"))
        metric = Objective(metric="final_loss", goal="minimize")
        asked = replace(space, program=program, objectives=(metric,))
        probes = [{"seed": 1}, {"seed": -1}, {"seed": -2, "stage2.max_stepz": 3}]
        with pytest.raises(InputError) as refused:
            program_of(asked).check(probes)
        lines = str(refused.value).removeprefix("the trainer refuses this space: ").split("\n")
        assert [line.partition(":")[0] for line in lines] == [
            "device",
            "stage2.nothing",
            "log_every",
            "seed",
            "stage2.max_stepz",
        ]


def _gone(pid: int) -> bool:
    """Whether the process ends within a few seconds."""
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_function_has_variables_only_while_it_runs(space, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SWEEP_NAME", "outside")
    monkeypatch.delenv("SWEEP_RUN_DIR", raising=False)
    (tmp_path / "finds.py").write_text(
        "import os\n"
        "def folder(parameters):\n"
        "    names = ('SWEEP_RUN_DIR', 'SWEEP_TRIAL', 'SWEEP_NAME')\n"
        "    raise KeyError(*map(os.environ.get, names))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = run(replace(space, program=Program(kind="function", function="finds:folder")), tmp_path)
    assert outcome.error.startswith(f"KeyError: ('{tmp_path / 'run'}', '4', 'toy')\n")
    assert os.environ["SWEEP_NAME"] == "outside"
    assert "SWEEP_RUN_DIR" not in os.environ
