"""`python -m trainer` as a process: files, streams and exit statuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer import __main__ as program
from trainer import api


def run_trainer(*overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "trainer", *overrides],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_writes_its_result_and_metrics_and_nothing_else(small: tuple[str, ...], tmp_path: Path) -> None:
    run_dir = tmp_path / "a folder, it's new"
    command = api.command(small, run_dir)
    done = run_trainer(*command[3:], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in run_dir.iterdir()} == {"result.json", "metrics.jsonl"}
    assert list(tmp_path.iterdir()) == [run_dir]
    metrics = json.loads((run_dir / api.RESULT_FILE).read_text())["metrics"]
    assert 0 < metrics["final_loss"] < 10
    assert f"final_loss {metrics['final_loss']:.4f}" in done.stdout
    assert len((run_dir / api.METRICS_FILE).read_text().splitlines()) == 12


def test_a_refused_config_is_one_line_and_status_2_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from trainer.__main__ import main; status = main(['stage2.max_stps=3', 'run_dir=x']); "
        "print(status, 'torch' in sys.modules)"
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 False\n"
    assert done.stderr == (
        "trainer: error: stage2.max_stps: there is no such key; did you mean 'stage2.max_steps'?\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=3"], "run_dir: needs a value"),
        (["--multirun", "run_dir=x"], "there is no option --multirun"),
        (["--cfg", "hydra"], "--cfg takes one word"),
        (["device=cuda", "run_dir=RUN"], "there is no CUDA device here"),
    ],
)
def test_other_wrong_command_lines_end_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, keep_signals: None
) -> None:
    arguments = [argument.replace("RUN", str(tmp_path / "run")) for argument in arguments]
    assert program.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_folder_that_cannot_be_written_ends_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keep_signals: None
) -> None:
    (tmp_path / "file").write_text("")
    assert program.main([f"run_dir={tmp_path}/file/run"]) == 1
    assert "cannot write to run_dir" in capsys.readouterr().err


def test_divergence_ends_with_70_names_the_step_and_leaves_no_result(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], keep_signals: None
) -> None:
    run_dir = tmp_path / "run"
    assert program.main([*small, f"run_dir={run_dir}"]) == 0
    assert (run_dir / api.RESULT_FILE).exists()
    capsys.readouterr()
    wild = ["stage2.optimizer.lr=1e30", "stage2.optimizer.type=adamw", "stage2.max_steps=20"]
    assert program.main([*small, *wild, f"run_dir={run_dir}"]) == 70
    error = capsys.readouterr().err
    assert error.startswith("trainer: diverged: ")
    assert " of stage2; " in error
    assert error.count("\n") == 1
    assert not (run_dir / api.RESULT_FILE).exists()  # not even the earlier run's


def test_sigterm_while_the_teacher_is_trained_ends_with_75_and_caches_nothing(
    small: tuple[str, ...], tmp_path: Path
) -> None:
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    process = subprocess.Popen(
        api.command([*small, "model.teacher.max_steps=100000"], tmp_path / "run"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "preparing teacher: 0 %\n"
    before = set((Path(os.environ["STAGESWEEP_CACHE"]) / "teachers").iterdir())
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75
    assert re.fullmatch(r"trainer: stopped by SIGTERM after step \d+ of teacher\n", stderr)
    after = set((Path(os.environ["STAGESWEEP_CACHE"]) / "teachers").iterdir())
    assert {path.name for path in after - before if not path.name.endswith(".lock")} == set()


def test_sigterm_ends_with_75_after_the_step(small: tuple[str, ...], tmp_path: Path) -> None:
    long = ("stage2.max_steps=100000", "stage1_9.max_steps=0")
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    process = subprocess.Popen(
        api.command([*small, *long], tmp_path),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / api.METRICS_FILE
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert stderr == f"trainer: stopped by SIGTERM after step {last['step']} of stage2\n"
    assert not (tmp_path / api.RESULT_FILE).exists()


def test_help_names_groups_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "usage: python -m trainer",
        "optimizer: adamw, muon",
        "stage1_9.saliency.ema_decay=0.99",
    ):
        assert expected in text


def test_cfg_job_prints_the_composed_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["seed=7", "--cfg", "job"]) == 0
    assert "seed: 7\n" in capsys.readouterr().out


@pytest.fixture
def keep_signals():
    """`main` installs handlers; the test process gets its own back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
