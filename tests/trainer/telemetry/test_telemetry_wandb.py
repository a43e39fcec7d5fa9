"""Weights & Biases offline, broken and switched off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from telemetry_steps import begun, lines_of, step

from trainer.api import check
from trainer.telemetry import Telemetry
from trainer.telemetry.wandb_run import WandbRun, open_wandb


class FakeRun:
    """What of a wandb run is used."""

    def __init__(self, fail: bool = False) -> None:
        self.tags: tuple[str, ...] | None = ("mine",)
        self.logged: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.fail = fail

    def log(self, values: dict[str, Any]) -> None:
        if self.fail:
            raise ConnectionError("no\nnetwork")
        self.logged.append(values)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def test_wandb_gets_stages_as_tags_and_as_prefixes(tmp_path: Path) -> None:
    fake = FakeRun()
    with Telemetry(tmp_path / "metrics.jsonl", every=1, channels=[WandbRun(fake)], out=None) as telemetry:
        begun(telemetry, 1)
        telemetry.watch(step(1, 1))
    assert fake.tags == ("mine", "stage2")
    assert fake.logged[0]["stage2/loss"] == 3.0
    assert fake.exit_code == 0


def test_a_failed_run_is_marked_failed_in_wandb(tmp_path: Path) -> None:
    fake = FakeRun()
    with pytest.raises(ValueError), Telemetry(tmp_path / "m", every=1, channels=[WandbRun(fake)], out=None):
        raise ValueError("diverged")
    assert fake.exit_code == 1


def test_wandb_that_breaks_is_told_once_and_never_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = WandbRun(FakeRun(fail=True))
    with Telemetry(tmp_path / "metrics.jsonl", every=1, channels=[wandb], out=None) as telemetry:
        begun(telemetry, 2)
        telemetry.watch(step(1, 2))
        telemetry.watch(step(2, 2))
    assert capsys.readouterr().err == "trainer: warning: wandb is off for this run: no network\n"
    assert len(lines_of(tmp_path / "metrics.jsonl")) == 2


def test_wandb_is_off_unless_asked_for(tmp_path: Path) -> None:
    assert open_wandb(check([]), tmp_path) is None


def test_an_offline_run_has_the_group_the_name_the_project_and_the_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    run = open_wandb(config, tmp_path)
    assert run is not None
    inner = run._run
    run.tag("stage2")
    run.log({"stage": "stage2", "loss": 3.0})
    run.summarise({"final_loss": 2.5, "usd": None})
    assert (inner.project, inner.group, inner.name) == ("p", "sweep-1", "trial-7")
    assert set(inner.tags) == {"a", "stage2"}
    assert inner.summary["final_loss"] == 2.5
    run.close(0)
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
