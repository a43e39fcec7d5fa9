"""Real processes: killed with SIGKILL, preempted with SIGTERM, and gone on with by the same command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from forked import Forked
from kept_runs import Attempt, names
from trainer_outcomes import TIMES, lines_without_times

from trainer import api

pytestmark = pytest.mark.timeout(300)  # three processes, each of which loads torch

LONG = ("stage2.max_steps=80", "log_every=5", "stage2.schedule.decay_fraction=0.9")


def fork(server: ForkServerContext, folder: Path, *overrides: str) -> Forked:
    _, _, _, _, *given = api.command(overrides, folder)
    return Forked(server, "trainer.__main__", given, cwd=folder.parent, folder=folder.parents[1])


def start(small: tuple[str, ...], folder: Path, *overrides: str) -> subprocess.Popen[str]:
    python, *program = api.command([*small, *LONG, *overrides], folder)
    return subprocess.Popen(
        [python, "-W", "error", *program],
        cwd=folder.parent,
        env=dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: Forked, steps: int, folder: Path) -> None:
    """Until a checkpoint of so many steps stands."""
    deadline = time.monotonic() + 90
    while not (there := names(folder)) or int(there[-1]) < steps:
        assert process.poll() is None, process.communicate(0)
        assert time.monotonic() < deadline
        time.sleep(0.005)


def outcome_of(folder: Path) -> object:
    document = json.loads((folder / api.RESULT_FILE).read_text())
    metrics = {name: value for name, value in document["metrics"].items() if name not in TIMES}
    return metrics, document["provenance"], lines_without_times(folder / api.METRICS_FILE)


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
    ids=lambda number: number.name,
)
def test_the_same_command_ends_as_if_nothing_had_happened(
    number: signal.Signals,
    small: tuple[str, ...],
    attempt: Attempt,
    forkserver: ForkServerContext,
    tmp_path: Path,
) -> None:
    """And as it should: it writes its result and metrics into its folder, and nothing else or elsewhere."""
    (tmp_path / "here").mkdir()
    folder = tmp_path / "here" / "a folder, it's new"
    process = fork(forkserver, folder, *small, *LONG, "checkpoint.every_steps=10")
    wait_for(process, 20, folder)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=90)
    kept = int(names(folder)[-1])
    if number == signal.SIGKILL:
        assert (process.returncode, kept % 10) == (-signal.SIGKILL, 0)
    else:
        assert process.returncode == 75
        assert stderr.startswith(f"trainer: stopped by SIGTERM after step {kept - 6} of stage2; ")
        assert stderr.count("\n") == 1
    assert not (folder / api.RESULT_FILE).exists()

    # A start takes five seconds of imports, and is the same after both signals.
    again: Forked | subprocess.Popen[str]
    if number == signal.SIGKILL:
        again = fork(forkserver, folder, *small, *LONG, "checkpoint.every_steps=10")
    else:
        again = start(small, folder, "checkpoint.every_steps=10")
    stdout, stderr = again.communicate(timeout=90)
    assert (again.returncode, stderr) == (0, "")
    lines = stdout.splitlines()
    assert lines[0].startswith("preflight: ")
    assert lines[1].endswith(f"after step {kept - 6} of stage2, from checkpoint {kept:08d}")
    attempt(tmp_path / "uninterrupted", *LONG)
    assert outcome_of(folder) == outcome_of(tmp_path / "uninterrupted")
    metrics = json.loads((folder / api.RESULT_FILE).read_text())["metrics"]
    assert 0 < metrics["final_loss"] < 10
    assert f"final_loss {metrics['final_loss']:.4f}" in stdout
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "heartbeat.json", "held_out.json", "metrics.jsonl", "result.json")
    }
    assert list(folder.parent.iterdir()) == [folder]


def test_another_configuration_is_refused_without_torch(
    small: tuple[str, ...], attempt: Attempt, tmp_path: Path
) -> None:
    from kept_runs import terminate

    from trainer.errors import PreemptedError

    with pytest.raises(PreemptedError):
        attempt(tmp_path, end=terminate, at=3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code = (
        "import sys; from trainer.__main__ import main; "
        f"print(main({[*small, 'seed=4', f'run_dir={tmp_path}']!r}), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1])),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith(f"trainer: error: run_dir: '{tmp_path}' ")
    assert "(seed: 0 → 4)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
