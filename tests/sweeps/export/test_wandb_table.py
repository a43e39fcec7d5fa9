"""The table that wandb gets, tested offline: the run's files hold every trial."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import wandb

from sweeps.errors import InputError
from sweeps.export import wandb_table
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    program=Program(kind="function", function="m:f"),
    parameters=(Range(name="lr", min=1e-3, max=1e-1, kind="float"),),
)
RECORDS = [
    Trial(trial=0, status="completed", parameters={"lr": 0.01}, generator="sobol", metrics={"loss": 3.5}),
    Trial(trial=1, status="failed", parameters={"lr": 0.02}, generator="sobol", error="diverged"),
]


@pytest.mark.timeout(300)  # wandb starts a process of its own
@pytest.mark.filterwarnings("ignore")
def test_every_trial_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb.setup()  # as another test, or the trainer, may have done: then the environment is not read again
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    where = wandb_table.log("project", SPACE, "file:///sweeps/case", RECORDS)
    assert str(tmp_path) in where
    (file,) = tmp_path.rglob("*.table.json")
    table = json.loads(file.read_text())
    assert table["columns"][:3] == ["trial", "status", "attempt"]
    assert table["columns"][-2:] == ["param.lr", "loss"]
    assert [row[:2] + row[-2:] for row in table["data"]] == [
        [0, "completed", 0.01, 3.5],
        [1, "failed", 0.02, None],
    ]


def test_nothing_to_log_is_reported() -> None:
    with pytest.raises(InputError, match="no trials"):
        wandb_table.log("project", SPACE, "url", [])
    with pytest.raises(InputError, match="empty"):
        wandb_table.log(" ", SPACE, "url", RECORDS)
