"""Forked programs are what started ones are, and what forks them is made, made again and ended as needed.

The program and its imports are small modules that each test writes into its working folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path

import psutil
import pytest

from sweeps.errors import CannotStart
from sweeps.programs import process, warm_start
from sweeps.programs.kinds import program_of
from sweeps.programs.warm_start import WarmStarts
from sweeps.space.definition import Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has warm starts")

PRELOAD = """
import uuid
TOKEN = uuid.uuid4().hex
def preload(arguments): return ""
def data_files(): return []
def must_start_cold(arguments): return False
"""


@dataclass
class Starts:
    """Runs of small programs in a folder, started by their command or forked."""

    folder: Path
    warm: WarmStarts | None
    log: Path = field(init=False)
    grace_s: float = 5

    def __post_init__(self) -> None:
        self.log = self.folder / "log.txt"

    def run(self, code: str, *arguments: str, until: Callable[[], bool] = lambda: False, **env: str) -> int:
        """Run the code as a module; return its exit status."""
        (self.folder / "small_program.py").write_text(textwrap.dedent(code))
        return process.run(
            [sys.executable, "-P", "-m", "small_program", *arguments],
            log_file=self.log,
            env=env,
            should_stop=until,
            grace_s=self.grace_s,
            warm=self.warm,
        )

    def lines(self) -> list[str]:
        """Return what the programs have written since the last call."""
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return lines


def write_preload(folder: Path, code: str = "") -> None:
    (folder / "small_preload.py").write_text(PRELOAD + textwrap.dedent(code))


def servers() -> list[psutil.Process]:
    """Return the processes that fork; this one has other children as well."""
    children = psutil.Process().children()
    return [child for child in children if "sweeps.programs.fork_server" in " ".join(child.cmdline())]


@pytest.fixture(autouse=True)
def _programs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # as they are not by the folder where they start


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Starts]:
    write_preload(tmp_path)
    before = psutil.Process().children(recursive=True)
    with WarmStarts("small_program", preload="small_preload") as warm:
        yield Starts(tmp_path, warm)
    assert set(psutil.Process().children(recursive=True)) <= set(before)  # a zombie would count


@pytest.fixture(params=["cold", "warm"])
def starts(request, tmp_path: Path) -> Starts:
    return Starts(tmp_path, None) if request.param == "cold" else request.getfixturevalue("warm")


PRINT_TOKEN = "import small_preload; print(small_preload.TOKEN)"
SLEEP = "import os, time; open('started', 'w').close(); time.sleep(600)"


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestLikeAStartedProgram:
    def test_it_has_its_arguments_and_is_the_main_module(self, starts):
        code = """
            import sys
            print(__name__, sys.modules["__main__"].__spec__.name, sys.argv[1:])
            print(sys.argv[0].endswith("small_program.py"))
        """
        odd = ["a=1", "b='x y'", "", "c=ä\n", "d=\udcff"]
        assert starts.run(code, *odd) == 0
        assert starts.lines() == [f"__main__ small_program {odd!a}".replace("\\xe4", "ä"), "True"]

    def test_forked_process_has_environment_folder_and_variables(self, starts, monkeypatch):
        monkeypatch.setenv("OF_THE_WORKER", "1")
        monkeypatch.setenv("OF_BOTH", "worker")
        code = """
            import os, sys
            print(os.environ["OF_THE_WORKER"], os.environ["OF_BOTH"], os.environ["TRIAL"], os.getcwd(), sys.path[0])
        """
        assert starts.run(code, TRIAL="4", OF_BOTH="a=b") == 0
        assert starts.lines() == [f"1 a=b 4 {starts.folder} {starts.folder}"]

    def test_its_log_has_both_streams_in_order_after_what_was_there(self, starts):
        starts.log.write_text("before\n")
        code = """
            import atexit, os, subprocess, sys
            atexit.register(print, "at exit")
            print("out", flush=True); print("err", file=sys.stderr); os.write(1, b"fd\\n")
            subprocess.run(["echo", "of a child"], check=True)
            print("not flushed", repr(sys.stdin.read()))
        """
        assert starts.run(code) == 0
        assert starts.lines() == ["before", "out", "err", "fd", "of a child", "not flushed ''", "at exit"]

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("pass", 0),
            ("raise SystemExit(75)", 75),
            ("raise SystemExit('words')", 1),
            ("raise KeyError('lr')", 1),
            ("import os; os._exit(70)", 70),
            ("import os; os.abort()", -signal.SIGABRT),
            ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
            ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
            ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
            ("import os; os.kill(os.getpid(), 10)", -signal.SIGUSR1),
            ("import os; os.kill(os.getpid(), 12)", -signal.SIGUSR2),
        ],
    )
    def test_its_exit_status_is_told_apart(self, starts, code, status):
        assert starts.run(code) == status
        assert starts.run("raise SystemExit(3)") == 3  # a hard end takes nothing along

    def test_an_exception_is_in_the_log_with_its_traceback(self, starts):
        assert starts.run("def f():\n    raise KeyError('lr')\nf()") == 1
        lines = starts.lines()
        assert lines[0] == "Traceback (most recent call last):"
        assert re.fullmatch(
            r'  File ".*small_program\.py", line 2, in f', lines[-2 - lines[-2].startswith("    ")]
        )
        assert lines[-1] == "KeyError: 'lr'"

    def test_it_handles_signals_as_a_new_python_does(self, starts):
        code = """
            import signal
            for number in range(1, 32):
                handler = signal.getsignal(number)
                name = getattr(handler, "__qualname__", handler)
                if handler not in (signal.SIG_DFL, None): print(signal.Signals(number).name, name)
            print(signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, []))
        """
        by_command = [sys.executable, "-c", textwrap.dedent(code)]
        expected = subprocess.run(by_command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert starts.run(code) == 0
        assert [line for line in starts.lines() if "SIGHUP" not in line] == [
            line for line in expected if "SIGHUP" not in line
        ]

    def test_it_leads_no_terminal_and_its_group_gets_its_signals(self, starts):
        """SIGTERM reaches it and its children, once; it may end as it likes."""
        code = """
            import os, signal, subprocess, sys, time
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            def leave(*_):
                print("stopped", child.wait())
                sys.exit(75)
            signal.signal(signal.SIGTERM, leave)
            print(os.getsid(0) == os.getpgid(0) == os.getpgid(child.pid), os.getsid(0) != int(sys.argv[1]))
            sys.stdout.flush()
            open("started", "w").close(); time.sleep(600)
        """
        started = starts.folder / "started"
        assert starts.run(code, str(os.getsid(0)), until=started.exists) == 75
        assert starts.lines() == ["True True", "stopped -15"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_it_decides_when_all_processes_of_a_job_get_a_signal(self, starts, number):
        """As Slurm sends them at a preemption: the checkpoint takes a while."""
        code = f"""
            import signal, sys, time
            def leave(*_):
                time.sleep(0.5)
                sys.exit(75)
            signal.signal({int(number)}, leave)
            open("started", "w").close(); time.sleep(600)
        """
        others, signalled = psutil.Process().children(recursive=True), []

        def signal_all() -> bool:
            if not signalled and (starts.folder / "started").exists():
                signalled.extend(set(psutil.Process().children(recursive=True)) - set(others))
                for each in signalled:
                    each.send_signal(number)
            return False

        assert starts.run(code, until=signal_all) == 75
        (starts.folder / "started").unlink()
        assert starts.run("raise SystemExit(3)") == 3

    def test_it_is_killed_when_it_does_not_end(self, starts):
        code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
        starts.grace_s = 0.5
        began = time.monotonic()
        assert starts.run(code, until=(starts.folder / "started").exists) == -signal.SIGKILL
        assert 0.5 < time.monotonic() - began < 10

    def test_what_it_leaves_running_is_ended_with_it(self, starts):
        code = """
            import subprocess, sys
            print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
        """
        assert starts.run(code) == 0
        (pid,) = map(int, starts.lines())
        wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")

    def test_it_has_the_workers_limits(self, starts):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        assert starts.run(code) == 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 7, before[1]))
        try:
            assert starts.run(code) == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert starts.lines() == [str(before[0]), str(before[0] - 7)]

    def test_it_has_no_files_open_but_its_streams(self, starts):
        code = """
            import os
            for number in os.listdir("/proc/self/fd"):
                try: target = os.readlink("/proc/self/fd/" + number)
                except FileNotFoundError: continue  # of the listing itself
                if "libffi" not in target:  # from 3.5 on it keeps its own file open
                    print(number, target)
        """
        assert starts.run(code) == 0
        assert starts.lines() == ["0 /dev/null", f"1 {starts.log}", f"2 {starts.log}"]

    def test_others_see_its_command_line(self, starts):
        code = "print(open('/proc/self/cmdline').read().rstrip(chr(0)).split(chr(0)))"
        assert starts.run(code, "a=1", "b=2") == 0
        assert starts.lines() == [str([sys.executable, "-P", "-m", "small_program", "a=1", "b=2"])]

    def test_its_random_numbers_are_not_those_of_the_one_before(self, starts):
        code = "import random, uuid; print(random.random()); print(uuid.uuid4())"
        assert [starts.run(code), starts.run(code)] == [0, 0]
        assert len(set(starts.lines())) == 4


class TestFork:
    def test_imports_are_done_once_and_nothing_else_is_shared(self, warm):
        code = (
            PRINT_TOKEN + "; import os; print(os.environ.get('ONLY_FIRST')); small_preload.TOKEN = 'changed'"
        )
        assert warm.run(code, ONLY_FIRST="1") == 0
        assert warm.run(code) == 0
        first, variable, second, none = warm.lines()
        assert (first, variable, none) == (second, "1", "None")

    def test_a_crash_leaves_the_server_alone(self, warm):
        assert warm.run("import os; os.abort()") == -signal.SIGABRT
        server = servers()[0]
        assert warm.run("raise SystemExit(3)") == 3
        assert servers()[0] == server

    def test_server_killed_between_trials_is_replaced(self, warm):
        for _ in range(2):
            assert warm.run(PRINT_TOKEN) == 0
            servers()[0].kill()
        assert warm.run(PRINT_TOKEN) == 0
        assert len(set(warm.lines())) == 3

    def test_server_killed_while_importing_is_replaced(self, warm):
        write_preload(warm.folder, SLEEP)

        def kill_when_importing() -> bool:
            if (warm.folder / "started").exists():
                (warm.folder / "started").unlink()
                write_preload(warm.folder)
                servers()[0].kill()
            return False

        assert warm.run("raise SystemExit(3)", until=kill_when_importing) == 3
        assert servers() == []
        assert warm.run("raise SystemExit(3)") == 3
        assert len(servers()) == 1

    def test_server_killed_during_a_trial_is_replaced(self, warm):
        killed: list[psutil.Process] = []

        def kill_when_started() -> bool:
            if not killed and (warm.folder / "started").exists():
                killed.extend(servers()[0].children(recursive=True))
                servers()[0].kill()
            return False

        assert warm.run(SLEEP, until=kill_when_started) == -signal.SIGKILL
        assert len(killed) == 2  # the program and its guard
        wait_until(lambda: not any(each.is_running() and each.status() != "zombie" for each in killed))
        assert warm.run("raise SystemExit(3)") == 3

    def test_servers_that_keep_dying_are_given_up(self, warm, caplog):
        caplog.set_level(logging.INFO)
        for _ in range(warm_start.MAX_DEATHS):
            assert warm.run("pass") == 0
            servers()[0].kill()
        assert warm.run("raise SystemExit(3)") == 3
        assert servers() == []
        assert "new Python: 3 processes " in caplog.text

    def test_another_environment_makes_another_server(self, warm, monkeypatch):
        assert warm.run(PRINT_TOKEN) == 0
        monkeypatch.setenv("OMP_NUM_THREADS", "7")  # libraries read it when they are loaded
        assert warm.run(PRINT_TOKEN) == 0
        monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # this one appears when the worker loads Ax
        assert warm.run(PRINT_TOKEN) == 0
        first, second, third = warm.lines()
        assert first != second == third

    def test_files_of_the_folder_replace_no_module(self, starts, monkeypatch):
        write_preload(starts.folder)
        other = starts.folder / "other"
        other.mkdir()
        for name in ("sweeps", "small_preload", "small_program"):
            (other / f"{name}.py").write_text("raise SystemExit(9)\n")
        monkeypatch.chdir(other)
        assert starts.run("import sweeps, small_preload; print(sweeps.__name__)") == 0
        assert starts.lines() == ["sweeps"]

    def test_another_folder_makes_another_server(self, warm, monkeypatch):
        assert warm.run(PRINT_TOKEN) == 0
        other = warm.folder / "other"
        other.mkdir()
        write_preload(other)
        monkeypatch.chdir(other)
        Starts(other, warm.warm).run(PRINT_TOKEN)
        assert len({*warm.lines(), *(other / "log.txt").read_text().splitlines()}) == 2

    @pytest.mark.parametrize("name", ["small_preload.py", "values.yaml"])
    def test_a_file_that_was_changed_since_makes_another_server(self, warm, name, caplog):
        caplog.set_level(logging.INFO)
        (warm.folder / "values.yaml").write_text("a: 1")
        write_preload(
            warm.folder, "from pathlib import Path\ndef data_files(): return [Path('values.yaml').absolute()]"
        )
        assert warm.run(PRINT_TOKEN) == 0
        with (warm.folder / name).open("a") as file:
            file.write("# changed\n")
        assert warm.run(PRINT_TOKEN) == 0
        assert len(set(warm.lines())) == 2
        assert f"stale {warm.folder / name}" in caplog.text

    def test_a_worker_with_many_open_files_forks_too(self, warm, caplog):
        """The server inherits the number of its channel, which select() takes below 1,024 only."""
        caplog.set_level(logging.INFO)
        with contextlib.ExitStack() as files:
            while files.enter_context(Path(os.devnull).open()).fileno() < 1100:
                pass
            assert warm.run(PRINT_TOKEN) == 0
            assert warm.run(PRINT_TOKEN) == 0
        assert len(set(warm.lines())) == 1
        assert len(servers()) == 1, caplog.text

    def test_its_memory_is_logged(self, warm, caplog):
        caplog.set_level(logging.INFO)
        assert warm.run("pass") == 0
        pid, mib = re.findall(r"forked from process (\d+), which takes (\d+) MiB", caplog.text)[0]
        assert int(pid) == servers()[0].pid
        assert int(mib) == pytest.approx(servers()[0].memory_info().rss / 2**20, rel=0.3)

    def test_a_stop_is_heeded_while_it_imports(self, warm):
        write_preload(warm.folder, "import time; time.sleep(600)")
        began = time.monotonic()
        assert warm.run("import time; time.sleep(600)", until=lambda: time.monotonic() - began > 1) < 0
        assert time.monotonic() - began < 10


class TestStartedByItsCommandAfterAll:
    @pytest.mark.parametrize(
        ("preload", "why"),
        [
            ("def preload(arguments): return 'of ' + ' '.join(arguments)", "of common=1"),
            ("raise RuntimeError('no such library')", "its imports failed: RuntimeError: no such library"),
            ("import os; os.abort()", "its imports failed: killed by SIGABRT"),
            (
                "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
                "its imports leave 1 thread running",
            ),
        ],
        ids=["says so", "fails", "crashes", "thread"],
    )
    def test_where_its_imports_cannot_be_forked(self, tmp_path, caplog, preload, why):
        caplog.set_level(logging.INFO)
        write_preload(tmp_path, preload)
        with WarmStarts("small_program", preload="small_preload", common=["common=1"]) as warm:
            for _ in range(2):
                assert Starts(tmp_path, warm).run("raise SystemExit(3)") == 3
            assert servers() == []
        (record,) = caplog.records
        assert record.getMessage().endswith(f": {why}")

    def test_where_its_own_arguments_do_not_allow_it(self, warm):
        write_preload(warm.folder, "def must_start_cold(arguments): return 'cold' in arguments")
        for arguments in ([], ["cold"], []):
            assert warm.run(PRINT_TOKEN + "; import sys; print(sys.argv[1:])", *arguments) == 0
        first, _, cold, words, second, _ = warm.lines()
        assert first == second != cold
        assert words == "['cold']"

    def test_where_it_is_another_program(self, warm):
        status = process.run(
            [sys.executable, "-c", "raise SystemExit(3)"],
            log_file=warm.log,
            env={},
            should_stop=lambda: False,
            warm=warm.warm,
        )
        assert status == 3
        assert servers() == []

    def test_where_its_arguments_are_longer_than_a_message(self, warm):
        assert warm.run("import sys; raise SystemExit(len(sys.argv) // 100)", *["x" * 1000] * 900) == 9


WORKER = """
import sys
from pathlib import Path
from sweeps.programs import process
from sweeps.programs.warm_start import WarmStarts
with WarmStarts("small_program", preload="small_preload") as warm:
    argv = [sys.executable, "-P", "-m", "small_program"]
    process.run(argv, log_file=Path("log.txt"), env={}, should_stop=lambda: False, warm=warm)
"""


@pytest.mark.parametrize("moment", ["importing", "running"])
def test_a_killed_worker_takes_the_server_and_the_trial_along(tmp_path, moment):
    write_preload(tmp_path, "" if moment == "running" else SLEEP)
    (tmp_path / "small_program.py").write_text(SLEEP)
    worker = subprocess.Popen([sys.executable, "-c", WORKER], cwd=tmp_path)
    wait_until((tmp_path / "started").exists)
    others = psutil.Process(worker.pid).children(recursive=True)
    assert len(others) == (3 if moment == "running" else 1)  # the server, the guard, the program
    worker.kill()
    worker.wait()
    wait_until(lambda: not any(each.is_running() and each.status() != "zombie" for each in others))


class TestSwitch:
    TRAINER = Program(kind="trainer", overrides=("model=tiny",))

    @pytest.fixture(autouse=True)
    def nothing_begins(self, monkeypatch):
        monkeypatch.setattr(WarmStarts, "begin", lambda self: None)

    def starter(self, space, program):
        found = program_of(changed(space, program=program))
        found.warm_up()
        return found.warm_starter()

    @pytest.mark.parametrize(("value", "expected"), [(None, True), ("", True), ("1", True), ("0", False)])
    def test_an_environment_variable_switches_it(self, space, monkeypatch, value, expected):
        monkeypatch.delenv("STAGESWEEP_WARM_START", raising=False)
        if value is not None:
            monkeypatch.setenv("STAGESWEEP_WARM_START", value)
        assert (self.starter(space, self.TRAINER) is not None) is expected

    def test_another_value_is_refused(self, space, monkeypatch):
        monkeypatch.setenv("STAGESWEEP_WARM_START", "off")
        with pytest.raises(CannotStart, match="STAGESWEEP_WARM_START is 'off'"):
            self.starter(space, self.TRAINER)

    @pytest.mark.parametrize(
        "other",
        [Program(kind="trainer", processes=2), Program(kind="command", command=("train", "${overrides}"))],
        ids=["several processes", "command"],
    )
    def test_it_is_for_the_trainer_in_one_process(self, space, other):
        assert self.starter(space, other) is None
