"""An application's own values are the first trial of its sweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore


@pytest.mark.parametrize(
    ("argument", "first", "says"),
    [
        ("x=range(0,5)", {"x": 0, "model.kind": "a"}, "the first trial has the application's defaults"),
        ("x=range(1,5)", None, "defaults are not the first trial: x is 0, outside"),
        ("hydra.sweeper.baseline=none", None, ""),
    ],
)
def test_first_trial_has_the_applications_values(
    application: Path, environment: dict[str, str], argument: str, first: dict[str, object] | None, says: str
) -> None:
    searched = ["model.kind=choice(b,a)", argument if argument.startswith("x") else "x=range(0,5)"]
    ran = subprocess.run(
        [
            sys.executable,
            *("train.py", "-m", "hydra/sweeper=stagesweep", "hydra.sweeper.method=random"),
            *("hydra.sweeper.n_trials=1", *searched),
            *([] if argument.startswith("x") else [argument]),
        ],
        cwd=application,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert says in ran.stderr + ran.stdout
    experiment = Experiment.open(LocalStore(str(application / "sweep-store" / "train")))
    assert experiment.space.baseline == first
    (trial,) = experiment.trials()
    assert (trial.generator == "baseline") == (first is not None)
    assert first is None or dict(trial.parameters) == first


def test_a_groups_default_is_its_choice(application: Path, environment: dict[str, str]) -> None:
    conf = application / "conf"
    for folder in ("db", "db/engine"):
        (conf / folder).mkdir()
        for option in "ab":
            (conf / folder / f"{option}.yaml").write_text(f"name: {option}\n")
    written = (conf / "train.yaml").read_text()
    (conf / "train.yaml").write_text(f"defaults: [db/engine: b, db@backup: b, _self_]\n{written}")
    arguments = [
        *("-m", "hydra/sweeper=stagesweep", "hydra.sweeper.method=random", "hydra.sweeper.n_trials=1"),
        *("db/engine=choice(a,b)", "db@backup=choice(a,b)"),
    ]
    ran = subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=application,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    experiment = Experiment.open(LocalStore(str(application / "sweep-store" / "train")))
    assert experiment.space.baseline == {"db/engine": "b", "db@backup": "b"}
