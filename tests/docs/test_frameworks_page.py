"""docs/how-to/frameworks.md: its script of transformers, as it stands, is searched and resumed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md"
FILE = re.compile(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with the files of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, content in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_code_of_frameworks_that_tests_lack_can_be_parsed() -> None:
    for code in PYTHON.findall(PAGE.read_text(encoding="utf-8")):
        compile(code, str(PAGE), "exec")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_trainer_of_transformers_is_searched(folder: Path, sweep) -> None:
    commands = [line[2:] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("$ ")]
    for command in commands:
        assert sweep(*shlex.split(command)[1:]).status == 0
    trials = json.loads(sweep("trials", "--format", "json").out)
    assert [trial["status"] for trial in trials] == ["completed"] * 2
    assert trials[0]["metrics"]["loss"] != trials[1]["metrics"]["loss"]
    line = (
        (folder / "sweep-store/transformers/runs/000000/attempt-1/metrics.jsonl").read_text().splitlines()[-1]
    )
    last = json.loads(line)
    assert (last["step"], last["of"]) == (20, 20)
    assert last["held_out_loss"] >= trials[0]["metrics"]["loss"]  # the best of the run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_trainer_of_transformers_goes_on_from_its_last_complete_checkpoint(folder: Path, monkeypatch) -> None:
    run = folder / "run"
    run.mkdir()
    monkeypatch.setenv("SWEEP_RUN_DIR", str(run))

    def losses() -> tuple[float, list[int]]:
        (run / "metrics.jsonl").unlink(missing_ok=True)
        subprocess.run([sys.executable, "train.py"], check=True, capture_output=True)
        logged = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
        return json.loads((run / "result.json").read_text())["loss"], [json.loads(x)["step"] for x in logged]

    whole, steps = losses()
    assert steps == [5, 10, 15, 20]
    torn = run / "checkpoints" / "checkpoint-20"
    for file in (torn / "trainer_state.json", torn / "optimizer.pt"):
        file.unlink()
    (torn / "model.safetensors").write_bytes(b"")
    assert losses() == (whole, [20])  # after 15
    assert losses() == (whole, [])  # killed between the last checkpoint and the result
