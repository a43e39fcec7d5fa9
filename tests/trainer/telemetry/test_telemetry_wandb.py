"""Weights & Biases offline, broken, hanging and switched off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from telemetry_steps import begun, lines_of, step

from trainer import api
from trainer.api import check
from trainer.devices import background_calls
from trainer.errors import PreemptedError
from trainer.layout import WANDB_ID_FILE
from trainer.telemetry.run import Telemetry
from trainer.telemetry.wandb_run import WandbRun, open_wandb


class FakeRun:
    """What of a wandb run is used. `trouble` is done at each call of that name."""

    def __init__(self, **trouble: Callable[[], None]) -> None:
        self.tags: tuple[str, ...] | None = ("mine",)
        self.logged: list[dict[str, Any]] = []
        self.alerts: list[tuple[str, str]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        self._trouble = trouble

    def log(self, values: dict[str, Any]) -> None:
        self._trouble.get("log", lambda: None)()
        self.logged.append(values)

    def alert(self, title: str, text: str) -> None:
        self.alerts.append((title, text))

    def finish(self, exit_code: int) -> None:
        self._trouble.get("finish", lambda: None)()
        self.exit_code = exit_code


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """A call that does not come back before the test is over."""
    over = threading.Event()
    yield lambda: bool(over.wait(60)) and None
    over.set()


def no_network() -> None:
    raise ConnectionError("no\nnetwork")


def logged(tmp_path: Path, wandb: WandbRun, steps: int = 2) -> float:
    """A run of so many steps; returns the seconds that it took."""
    began = time.monotonic()
    with Telemetry(tmp_path / "metrics.jsonl", every=1, channels=[wandb], out=None) as telemetry:
        begun(telemetry, steps)
        for index in range(1, steps + 1):
            telemetry.watch(step(index, steps))
    assert len(lines_of(tmp_path / "metrics.jsonl")) == steps
    return time.monotonic() - began


def test_wandb_gets_stages_as_tags_and_as_prefixes(tmp_path: Path) -> None:
    fake = FakeRun()
    logged(tmp_path, WandbRun(lambda: fake))
    assert fake.tags == ("mine", "stage2")
    assert [line["stage2/loss"] for line in fake.logged] == [3.0, 3.0]
    assert [line["stage2/step"] for line in fake.logged] == [1, 2]
    assert "stage2/stage" not in fake.logged[0]
    assert fake.exit_code == 0


def test_a_warning_becomes_an_alert() -> None:
    fake = FakeRun()
    wandb = WandbRun(lambda: fake)
    wandb.log({"stage": "stage2", "step": 1, "warnings": [{"check": "memory", "message": "it grows"}]})
    wandb.close(0)
    assert fake.alerts == [("memory", "it grows")]
    assert fake.logged == [{"stage2/step": 1}]


def test_a_failed_run_is_marked_failed_in_wandb(tmp_path: Path) -> None:
    fake = FakeRun()
    channels = [WandbRun(lambda: fake)]
    with pytest.raises(ValueError), Telemetry(tmp_path / "m", every=1, channels=channels, out=None):
        raise ValueError("diverged")
    assert fake.exit_code == 1


def test_failing_wandb_warns_once_and_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeRun(log=no_network)
    logged(tmp_path, WandbRun(lambda: fake))
    assert capsys.readouterr().err == "trainer: warning: wandb is off for this run: no network\n"
    assert fake.exit_code == 0  # unfinished, it would be waited for at exit


def test_wandb_that_cannot_start_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged(tmp_path, WandbRun(no_network))
    assert capsys.readouterr().err == "trainer: warning: wandb is off for this run: no network\n"


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_hanging_wandb_delays_no_step(
    where: str, hang: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeRun(**({} if where == "start" else {where: hang}))

    def start() -> FakeRun:
        if where == "start":
            hang()
        return fake

    wandb = WandbRun(start, closing_s=0.3)
    assert 0.3 <= logged(tmp_path, wandb, steps=50) < 5
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "wandb is off for this run: " in err


def test_a_run_that_was_told_to_go_waits_less(hang: Callable[[], None], tmp_path: Path) -> None:
    wandb = WandbRun(lambda: FakeRun(finish=hang), closing_s=60, leaving_s=0.1)
    began = time.monotonic()
    with (
        pytest.raises(PreemptedError),
        Telemetry(tmp_path / "m", every=1, channels=[wandb], out=None),
    ):
        raise PreemptedError(signal_name="SIGTERM")
    assert time.monotonic() - began < 10


def test_lines_before_a_snapshot_are_one_call_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thousands of them while wandb still starts are not a wandb that does not answer."""
    monkeypatch.setattr(background_calls, "MAX_QUEUED", 3)
    fake, started = FakeRun(), threading.Event()

    def start() -> FakeRun:
        started.wait(60)
        return fake

    stages = [("stage1_9", n) for n in (1, 2, 3)] + [("stage2", n) for n in (1, 2)]
    lines = [{"stage": stage, "step": n, "loss": 3.0} for stage, n in stages]
    lines[1]["warnings"] = [{"check": "memory", "message": "it grows"}]
    earlier = tmp_path / "earlier.jsonl"
    earlier.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    wandb = WandbRun(start)
    with Telemetry(tmp_path / "metrics.jsonl", every=1, channels=[wandb], out=None) as telemetry:
        telemetry.plan(5)
        telemetry.take_over(earlier, "step 2", {"stage1_9": (1, 3), "stage2": (1, 2)}, held_out=True)
        started.set()
    assert [next(iter(line)) for line in fake.logged] == [f"{stage}/step" for stage, _ in stages]
    assert fake.logged[-1]["stage2/done"] == 1.0
    assert fake.tags == ("mine", "stage1_9", "stage2")
    assert fake.alerts == [("memory", "it grows")]
    assert capsys.readouterr().err == ""


HANGING_WANDB = """
import atexit, threading, time

class Settings:
    def __init__(self, **options): pass

def init(**options):
    atexit.register(time.sleep, 600)
    threading.Thread(target=time.sleep, args=(600,)).start()
    time.sleep(600)
"""
IMPATIENT = """
import sys
import trainer.telemetry.wandb_run as wandb_run
from trainer.__main__ import leave, main

wandb_run.CLOSING_S = 0.3
leave(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_process_ends_although_wandb_hangs(small: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text(HANGING_WANDB)
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPATIENT, *small, "wandb.mode=online", f"run_dir={run_dir}"],
        env=dict(os.environ, PYTHONPATH=f"{tmp_path}{os.pathsep}{Path(api.__file__).parents[1]}"),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("trainer: warning: wandb ")
    assert "final_loss" in done.stdout
    assert (run_dir / api.RESULT_FILE).exists()


def test_wandb_is_off_unless_asked_for(tmp_path: Path) -> None:
    assert open_wandb(check([]), tmp_path) is None


def test_offline_run_has_group_name_project_and_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "wandb-home"))
    config = check(
        [
            "wandb.mode=offline",
            "wandb.project=p",
            "wandb.group=sweep-1",
            "wandb.name=trial-7",
            "wandb.tags=[a]",
        ]
    )
    made, values, init = [], [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **options: made.append(init(**options)) or made[0])
    run = open_wandb(config, tmp_path)
    assert run is not None
    run.tag("stage2")
    run.log({"stage": "stage2", "loss": 3.0, "warnings": [{"check": "memory", "message": "it grows"}]})
    run.summarise({"final_loss": 2.5, "usd": None})
    run.submit(lambda: values.append((made[0].project, made[0].group, made[0].name, made[0].tags)))
    run.submit(lambda: values.append(made[0].summary["final_loss"]))
    run.close(0)
    (project, group, name, tags), final_loss = values
    assert (project, group, name, set(tags), final_loss) == ("p", "sweep-1", "trial-7", {"a", "stage2"}, 2.5)
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def run_ids(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> list[tuple[str, str]]:
    """Ids, and how to resume, of the wandb runs of two commands in a folder."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(wandb, "init", lambda **o: asked.append((o["id"], o["resume"])) or FakeRun())
    for _ in range(2):
        run = open_wandb(check(["wandb.mode=offline", *overrides]), folder)
        assert run is not None
        run.close(0)
    return asked


def test_a_run_that_goes_on_is_one_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run_ids(tmp_path, monkeypatch)
    assert first == second
    assert first[1] == "allow"
    (tmp_path / WANDB_ID_FILE).write_text("../damaged")
    assert run_ids(tmp_path, monkeypatch)[0] != first
    assert run_ids(tmp_path, monkeypatch, "wandb.id=abc-1") == [("abc-1", "allow")] * 2
