"""One worker, supervised in a task of an engine: crashes are answered here, a preemption is passed on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runners.tend import supervise_worker
from runners.workers import restarts


def ends_with(folder: Path, *statuses: int) -> list[str]:
    """Return a command that ends with one status after another; each start writes a dot."""
    script = f"printf . >> {folder}/starts; set -- {' '.join(map(str, statuses))}; shift $(($(wc -c < {folder}/starts) - 1)); "
    return ["bash", "-c", script + '[ "$1" -ge 0 ] && exit "$1"; kill $1 $$']


@pytest.mark.parametrize(
    ("statuses", "expected", "starts"),
    [
        pytest.param((0,), 0, 1, id="no work is left"),
        pytest.param((75, 0), 75, 1, id="preempted: the engine has other machines"),
        pytest.param((2, 0), 2, 1, id="poison"),
        pytest.param((42, 0), 42, 1, id="poison of its own"),
        pytest.param((1, -9, 0), 0, 3, id="crashes are answered here"),
        pytest.param((1, 1, 1, 0), 1, 3, id="given up"),
    ],
)
def test_the_exit_status_decides(tmp_path, monkeypatch, statuses, expected, starts):
    monkeypatch.setattr(restarts, "SOON_S", 0.01)
    lines: list[str] = []
    assert (
        supervise_worker(ends_with(tmp_path, *statuses), restarts=2, grace_s=5, notify=lines.append)
        == expected
    )
    assert len((tmp_path / "starts").read_text()) == starts
    assert len(lines) == starts - 1 + (expected == 1)


def test_a_worker_is_told_of_its_supervision_and_its_last_start(tmp_path, monkeypatch):
    monkeypatch.setattr(restarts, "SOON_S", 0.01)
    variables = f"${restarts.SUPERVISED} ${{{restarts.LAST_START}:-more}}"
    script = f'echo "{variables}" >> {tmp_path}/told; exit 1'
    supervise_worker(["bash", "-c", script], restarts=2, grace_s=5, notify=lambda line: None)
    assert (tmp_path / "told").read_text().split("\n") == [
        "1 more",
        "1 more",
        f"1 {restarts.HEALTHY_S:g}",
        "",
    ]


def test_failed_import_is_not_restarted(tmp_path):
    """The worker's stderr is a file here, as engines make it."""
    worker = [
        sys.executable,
        "-c",
        f"open({str(tmp_path / 'starts')!r}, 'a').write('.'); import no_such_package",
    ]
    with (tmp_path / "log").open("wb") as log:
        argv = [sys.executable, "-m", "runners.tend", "--", *worker]
        ran = subprocess.run(argv, stderr=log, check=False)
    assert ran.returncode == 2
    assert (tmp_path / "starts").read_text() == "."
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert last.startswith("the worker cannot start: ModuleNotFoundError: ")


@pytest.mark.parametrize(
    ("worker", "status"),
    [
        pytest.param(
            "trap 'exit 75' TERM; touch ready; while :; do sleep 0.05; done", 75, id="hands its trial back"
        ),
        pytest.param(
            "trap 'exit 0' TERM; touch ready; while :; do sleep 0.05; done", 0, id="was done anyway"
        ),
        pytest.param(
            "trap '' TERM; touch ready; while :; do sleep 0.05; done", 75, id="deaf: killed after the grace"
        ),
    ],
)
def test_sigterm_is_passed_on_and_waited_for(tmp_path, worker, status):
    argv = [sys.executable, "-m", "runners.tend", "--grace", "0.5", "--", "bash", "-c", worker]
    with subprocess.Popen(argv, cwd=tmp_path) as supervisor:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline and supervisor.poll() is None:
            time.sleep(0.02)
        supervisor.terminate()
        assert supervisor.wait(30) == status
