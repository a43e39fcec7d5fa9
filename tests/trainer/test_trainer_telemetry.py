"""metrics.jsonl, and Weights & Biases offline, broken and switched off."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.api import check
from trainer.device import Device
from trainer.loop import Step
from trainer.telemetry import Telemetry
from trainer.wandb_run import WandbRun, open_wandb

DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")


def step(index: int, of: int) -> Step:
    return Step(
        stage="stage2",
        step=index,
        of=of,
        losses={"loss": 3.0},
        lr=0.001,
        grad_norm=1.0,
        tokens=100,
        seconds=0.5,
        settings={"lambda": 1.0},
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("every", "logged"), [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [1, 3, 6, 7]), (100, [1, 7])])
def test_the_first_the_last_and_every_nth_step_are_logged(
    every: int, logged: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=every, out=None) as telemetry:
        telemetry.plan(7)
        telemetry.begin("stage2", finished=0, weight=1, device=DEVICE)
        for index in range(1, 8):
            telemetry.watch(step(index, 7))
    assert [line["step"] for line in lines_of(path)] == logged
    assert lines_of(path)[-1]["done"] == 1.0
    assert all(line["tokens_per_second"] == pytest.approx(200) for line in lines_of(path))


def test_each_line_is_on_the_disk_when_it_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=1, out=None) as telemetry:
        telemetry.plan(2)
        telemetry.begin("stage2", finished=0, weight=1, device=DEVICE)
        telemetry.watch(step(1, 2))
        assert len(lines_of(path)) == 1


def test_numbers_of_layers_are_read_and_counted_from_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    detailed = dataclasses.replace(step(1, 1), details={"distill_layer": torch.tensor([0.5, 0.25])})
    with Telemetry(path, every=1, out=None) as telemetry:
        telemetry.plan(1)
        telemetry.begin("stage2", finished=0, weight=1, device=DEVICE)
        telemetry.watch(detailed)
    (line,) = lines_of(path)
    assert (line["distill_layer_1"], line["distill_layer_2"]) == (0.5, 0.25)


def test_people_get_a_line_too(tmp_path: Path) -> None:
    out = io.StringIO()
    with Telemetry(tmp_path / "metrics.jsonl", every=1, out=out) as telemetry:
        telemetry.plan(2)
        telemetry.begin("stage2", finished=0, weight=1, device=DEVICE)
        telemetry.watch(step(1, 2))
    assert out.getvalue() == "stage2 1/2  loss 3  lr 0.001  lambda 1  tokens_per_second 200\n"


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
    with Telemetry(tmp_path / "metrics.jsonl", every=1, wandb=WandbRun(fake), out=None) as telemetry:
        telemetry.plan(1)
        telemetry.begin("stage2", finished=0, weight=1, device=DEVICE)
        telemetry.watch(step(1, 1))
    assert fake.tags == ("mine", "stage2")
    assert fake.logged[0]["stage2/loss"] == 3.0
    assert fake.exit_code == 0


def test_a_failed_run_is_marked_failed_in_wandb(tmp_path: Path) -> None:
    fake = FakeRun()
    with pytest.raises(ValueError), Telemetry(tmp_path / "m", every=1, wandb=WandbRun(fake), out=None):
        raise ValueError("diverged")
    assert fake.exit_code == 1


def test_wandb_that_breaks_is_told_once_and_never_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = WandbRun(FakeRun(fail=True))
    with Telemetry(tmp_path / "metrics.jsonl", every=1, wandb=wandb, out=None) as telemetry:
        telemetry.plan(2)
        telemetry.begin("stage2", finished=0, weight=1, device=DEVICE)
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
