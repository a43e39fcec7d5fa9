"""Pools of real processes that end in every way that a worker can."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runners.pools.pool import Pool
from runners.workers import restarts
from runners.workers.processes import Process, processes
from runners.workers.supervise_pool import supervise_pool


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "SOON_S", 0.05)


def ends_with(folder: Path, *statuses: int) -> Process:
    """Return a process that ends with one status after another; each start writes a dot."""
    starts = folder / "starts"
    code = (
        f"import os, sys; from pathlib import Path; f = Path({str(starts)!r}); n = f.stat().st_size if f.exists() "
        f"else 0; f.open('a').write('.'); s = {statuses!r}[n]; "
        "os.kill(os.getpid(), -s) if s < 0 else sys.exit(s)"
    )
    return Process(argv=(sys.executable, "-c", code), env={}, log_file=folder / "log")


def starts(folder: Path) -> int:
    return (folder / "starts").stat().st_size


def a_pool(**fields: object) -> Pool:
    """Return a pool for `supervise_pool` alone."""
    defaults = {
        "name": "s",
        "storage": "s",
        "folder": Path("logs"),
        "workers": 1,
        "command": ("true",),
        **fields,
    }
    return Pool(**defaults)  # type: ignore[arg-type]


def supervised(
    *processes: Process, stopped: Callable[[], bool] = lambda: False, **pool: object
) -> tuple[object, list[str]]:
    lines: list[str] = []
    ends = supervise_pool(
        processes, a_pool(workers=len(processes), **pool), stopped=stopped, notify=lines.append
    )
    return ends, lines


def test_ended_workers_restart_until_no_work_is_left(tmp_path: Path) -> None:
    ends, lines = supervised(ends_with(tmp_path, 75, 1, -signal.SIGKILL, 75, 0))
    assert ends == ["done"]
    assert starts(tmp_path) == 5
    assert [line.partition(",")[0].partition(";")[0] for line in lines] == [
        "worker 1 was preempted",
        "worker 1 crashed (exit status 1)",
        "worker 1 crashed (signal 9)",
        "worker 1 was preempted",
        "worker 1 has no work left",
    ]


def test_poisoned_worker_is_not_restarted(tmp_path: Path) -> None:
    for name in ("wrong", "right"):
        (tmp_path / name).mkdir()
    ends, lines = supervised(ends_with(tmp_path / "wrong", 2, 0), ends_with(tmp_path / "right", 75, 0))
    assert ends == ["poison", "done"]
    assert starts(tmp_path / "wrong") == 1
    assert any("rejected its input" in line for line in lines)


@pytest.mark.parametrize(
    "reason",
    [
        "error: host 1 of 2: the leader at 127.0.0.1 has ended, and after so many crashes it is not started again",
        "the leader has sent this host away, with exit status 2",
    ],
    ids=["left", "sent away"],
)
@pytest.mark.parametrize("long", [0, 200_000], ids=["short", "long"])
def test_host_of_a_gang_ends_for_what_its_log_says(tmp_path: Path, reason: str, long: int) -> None:
    """Here for the other host, which is given up, and not for its own input."""
    code = (
        f"print('sweep: error: an earlier one\\n' + 'x' * {long} + '\\nsweep: {reason}'); raise SystemExit(2)"
    )
    member = Process(argv=(sys.executable, "-c", code), env={}, log_file=tmp_path / "member.log")
    ends, lines = supervised(ends_with(tmp_path, 1), member, restarts=0, nodes=2)
    assert ends == ["given up", "poison"]
    (line,) = (line for line in lines if line.startswith("worker 1-host-1 "))
    assert f"ended ({reason.removeprefix('error: ')})" in line
    assert "rejected" not in line


def test_a_worker_that_only_crashes_is_given_up(tmp_path: Path) -> None:
    ends, lines = supervised(ends_with(tmp_path, *[1] * 9), restarts=2)
    assert ends == ["given up"]
    assert starts(tmp_path) == 3
    assert "3 times in a row" in lines[-1]


def test_a_worker_is_told_of_its_last_start(tmp_path: Path) -> None:
    script = f'echo "${{{restarts.LAST_START}:-more}}"; exit 1'
    supervised(Process(argv=("bash", "-c", script), env={}, log_file=tmp_path / "log"), restarts=1)
    assert (tmp_path / "log").read_text().split() == ["more", f"{restarts.HEALTHY_S:g}"]


def test_failed_import_is_not_restarted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("sweep: trial 0 started\n")  # of a worker before this one
    worker = Process(argv=(sys.executable, "-c", "import no_such_package"), env={}, log_file=log)
    ends, lines = supervised(worker)
    assert ends == ["poison"]
    (line,) = lines
    assert line.startswith("worker 1 cannot start: ModuleNotFoundError: ")
    assert str(log) in line


def test_import_failure_after_a_beginning_is_a_crash(tmp_path: Path) -> None:
    code = "print('sweep: trial 0 started', flush=True); import no_such_package"
    worker = Process(argv=(sys.executable, "-c", code), env={}, log_file=tmp_path / "log")
    ends, _ = supervised(worker, restarts=1)
    assert ends == ["given up"]


def test_stop_tells_the_workers_and_leaves_nobody(tmp_path: Path) -> None:
    ready, went = tmp_path / "ready", tmp_path / "went"
    code = (
        "import signal, sys, time; from pathlib import Path\n"
        f"def go(*_): Path({str(went)!r}).touch(); sys.exit(75)\n"
        f"signal.signal(15, go); Path({str(ready)!r}).write_text(str(__import__('os').getpid())); time.sleep(600)"
    )
    process = Process(argv=(sys.executable, "-c", code), env={}, log_file=tmp_path / "log")
    ends, _ = supervised(process, stopped=lambda: ready.exists() and bool(ready.read_text()), grace_s=20.0)
    assert ends == [None]
    assert went.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)


def test_the_processes_that_run_are_told_after_each_change(tmp_path: Path) -> None:
    changes: list[list[int]] = []
    pool = a_pool()
    supervise_pool(
        [ends_with(tmp_path, 75, 0)],
        pool,
        stopped=lambda: False,
        notify=lambda line: None,
        on_change=lambda pids: changes.append(list(pids.values())),
    )
    assert [len(pids) for pids in changes] == [1, 0, 1, 0]
    assert changes[0] != changes[2]


def test_full_disk_of_the_supervisor_ends_no_worker(tmp_path: Path) -> None:
    """Neither its record nor its log can be written; the record is, once that is possible."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    code = (
        "import sys, time; from pathlib import Path\nwhile not Path(sys.argv[1]).exists(): time.sleep(0.05)"
    )
    over = tmp_path / "over"
    worker = Process(argv=(sys.executable, "-c", code, str(over)), env={}, log_file=tmp_path / "log")
    lines: list[str] = []
    changes: list[dict[int, int]] = []

    def notify(line: str) -> None:
        lines.append(line)
        raise full

    def record(pids: Mapping[int, int]) -> None:
        changes.append(dict(pids))
        if len(changes) < 3:
            raise full
        over.touch()

    ends = supervise_pool([worker], a_pool(), stopped=lambda: False, notify=notify, on_change=record)
    assert ends == ["done"]
    assert [len(pids) for pids in changes] == [1, 1, 1, 0]
    assert changes[0] == changes[2]
    assert [line for line in lines if "No space left on device" in line] == lines[:1]


@pytest.mark.parametrize("restarts", [0, 1])
def test_worker_that_cannot_be_started_has_crashed(tmp_path: Path, restarts: int) -> None:
    (tmp_path / "logs").touch()  # where a folder belongs
    worker = Process(argv=("true",), env={}, log_file=tmp_path / "logs" / "log")
    lines: list[str] = []

    def notify(line: str) -> None:
        lines.append(line)
        (tmp_path / "logs").unlink(missing_ok=True)

    workers = [worker, ends_with(tmp_path, 0)]
    pool = a_pool(workers=2, restarts=restarts)
    ends = supervise_pool(workers, pool, stopped=lambda: False, notify=notify)
    assert ends == ["done" if restarts else "given up", "done"]
    assert lines[0].startswith("worker 1 cannot be started (")
    assert lines[0].endswith("; trying again in 0.05 s" if restarts else "; giving up on it")


def test_it_waits_longer_after_each_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "SOON_S", 0.4)
    began = time.monotonic()
    ends, _ = supervised(ends_with(tmp_path, 1, 1, 0))
    assert ends == ["done"]
    assert time.monotonic() - began >= 0.4 + 0.8


def test_the_number_of_places_follows_what_is_wanted(tmp_path: Path) -> None:
    """Two are wanted and then one; the second is stopped and not restarted, and the first goes on."""
    counts: list[int] = []
    script = 'trap "exit 75" TERM; while [ ! -e over ]; do sleep 0.05; done'
    pool = a_pool(folder=tmp_path, command=("bash", "-c", f"cd {tmp_path}; {script}"))

    def wanted() -> int | None:
        if counts and counts[-1] == 1 and 2 in counts:
            (tmp_path / "over").touch()
        return 2 if 2 not in counts else 1

    lines: list[str] = []
    ends = supervise_pool(
        processes(pool),
        pool,
        stopped=lambda: False,
        notify=lines.append,
        on_change=lambda pids: counts.append(len(pids)),
        wanted=wanted,
    )
    assert ends == ["done", None]
    assert "starting worker 2: 2 workers wanted" in lines
    assert "stopping worker 2: 1 worker wanted" in lines
