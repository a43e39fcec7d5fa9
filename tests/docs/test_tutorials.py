"""docs/tutorial: what a page shows as files is written, and its commands are run in order, as they stand.

The page on one's own script shows what its commands print as well: `test_task_pages.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sweeps
from sweeps.space.space_file import loads
from trainer.api import check

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALLER = (
    *("model.hidden_size=32", "model.intermediate_size=96", "model.layers=2", "model.heads=2"),
    *("model.teacher.max_steps=20", "device.threads=1", "eval.batches=2"),
    *("stage1_9.batch_size=2", "stage2.batch_size=2"),
)
"""A model that is trained in seconds; how good it is proves nothing more."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / "tutorial" / f"{page}.md").read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    lines = "".join(CONSOLE.findall(text_of(page))).splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]


def files(page: str) -> dict[str, str]:
    return dict(FILE.findall(text_of(page)))


@pytest.mark.parametrize(("page", "name"), [("two-stages", "stages.yaml"), ("many-machines", "space.yaml")])
def test_the_space_of_a_tutorial_is_one_that_init_accepts(page, name):
    assert loads(files(page)[name], name).run_cap


def test_the_trainer_accepts_the_command_of_the_tutorial():
    (command,) = [each for each in commands("two-stages") if each.startswith("python -m trainer ")]
    assert check(shlex.split(command)[3:]).data.name == "text"


def run(page: str, folder: Path) -> list[str]:
    """Run the commands of a page in a folder, and return what each has printed."""
    for name, content in files(page).items():
        smaller = "".join(f"      - {override}\n" for override in SMALLER)
        text = content.replace("      - model=tiny\n", f"      - model=tiny\n{smaller}")
        (folder / name).write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWEEP_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment["STAGESWEEP_CACHE"] = str(folder / "cache")
    printed = []
    for command in commands(page):
        smaller = f" {shlex.join(SMALLER)}" if command.startswith("python -m trainer ") else ""
        ran = subprocess.run(
            ["bash", "-c", f"{command}{smaller}"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}\n{ran.stderr}"
        printed.append(ran.stdout)
    return printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_stages_run_as_written(tmp_path):
    printed = run("two-stages", tmp_path)
    assert "final_loss" in printed[1]
    assert "are on the front" in printed[4]
    assert "confirmed by 2 fresh seeds" in printed[6]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_machines_run_as_written(tmp_path):
    printed = run("many-machines", tmp_path)
    assert "10 of 10: 10 completed" in printed[6]
    attempts = [
        trial.attempt for trial in sweeps.open(str(tmp_path / "sweep-store"), "fleet").experiment.trials()
    ]
    assert sum(attempts) == 10 + ("1 running" in printed[2]), "the killed worker's trial was taken over"
