"""docs/tutorial: what a page shows as files is written, and its commands are run in order, as they stand.

Commands `sweep …` that need no shell run in this process: each would load torch and Ax for some ten seconds.
The page on one's own script shows what its commands print as well: `test_task_pages.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Ran

import sweeps
from sweeps.space.space_file import loads
from trainer.api import check
from trainer.data.inputs import prepare_inputs

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALLER = (
    *("model.hidden_size=32", "model.intermediate_size=96", "model.layers=2", "model.heads=2"),
    *("model.teacher.max_steps=20", "device.threads=1"),
    *("stage1_9.batch_size=2", "stage2.batch_size=2"),
)
"""A model that is trained in seconds; how good it is proves nothing more."""
FEWER = {
    "[0, 20, 40, 80]": "[0, 6, 12, 24]",
    "{value: 40}": "{value: 6}",
    "warmup_steps=10": "warmup_steps=2",
    "eval.batches=8": "eval.batches=2",
}
"""Steps and evaluations, likewise."""


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


def test_texts_of_the_tutorial_are_enough_for_its_evaluations(folder):
    """Also for those on the test text, which `sweep confirm` makes."""
    (make, train, *_) = [each for each in commands("two-stages") if each.startswith("python ")]
    exec(files("two-stages")[make.split()[1]], {})
    config = check([*shlex.split(train)[3:], "eval.test=true"])
    inputs = prepare_inputs(config)
    assert len(inputs.held_out) == len(inputs.test) == config.eval.batches


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the current one, with a cache of its own."""
    for name in [name for name in os.environ if name.startswith("SWEEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(page: str, folder: Path, sweep: Callable[..., Ran]) -> list[str]:
    """Run the commands of a page in a folder, and return what each has printed."""
    for name, content in files(page).items():
        smaller = "".join(f"      - {override}\n" for override in SMALLER)
        text = content.replace("      - model=tiny\n", f"      - model=tiny\n{smaller}")
        for shown, fewer in FEWER.items():
            text = text.replace(shown, fewer)
        (folder / name).write_text(text, encoding="utf-8")
    printed = []
    for command in commands(page):
        if command.startswith("sweep ") and "&" not in command:
            result = sweep(*shlex.split(command)[1:])
            assert result.status == 0, f"$ {command}\n{result.out}\n{result.err}"
            printed.append(result.out)
            continue
        if command.startswith("python -m trainer "):
            more = shlex.join([*SMALLER, "stage2.lambda_warmup.warmup_steps=2"])
            for shown, fewer in (("max_steps=40", "max_steps=6"), *FEWER.items()):
                command = command.replace(shown, fewer)
            command = f"{command} {more}"
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}\n{ran.stderr}"
        printed.append(ran.stdout)
    return printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_stages_run_as_written(folder, sweep):
    printed = run("two-stages", folder, sweep)
    assert "final_loss" in printed[1]
    assert "are on the front" in printed[4]
    assert "confirmed by 2 fresh seeds" in printed[6]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_machines_run_as_written(folder, sweep):
    printed = run("many-machines", folder, sweep)
    assert "10 of 10: 10 completed" in printed[6]
    attempts = [
        trial.attempt for trial in sweeps.open(str(folder / "sweep-store"), "fleet").experiment.trials()
    ]
    assert sum(attempts) == 10 + ("1 running" in printed[2]), "the killed worker's trial was taken over"


@pytest.mark.timeout(120)
def test_the_loop_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's script, with more steps: told to go twice, it exits with 75 and has lost no step."""
    page = text_of("own-script").partition("## Go on after a preemption")[2]
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0].replace("1001", "10**9")
    monkeypatch.setenv("SWEEP_RUN_DIR", str(tmp_path))

    def newest() -> int:
        return max((int(each.name[5:]) for each in tmp_path.glob("checkpoints/step-*")), default=0)

    for attempt in range(2):
        before = newest()
        script = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
        try:
            while newest() == before:
                assert script.poll() is None
                time.sleep(0.02)
            if attempt:
                after = {int(each.name[5:]) for each in tmp_path.glob("checkpoints/step-*")}
                assert min(step for step in after if step > before) == before // 100 * 100 + 100
            script.send_signal(signal.SIGTERM)
            assert script.wait(30) == 75
        finally:
            script.kill()
            script.wait()
    assert not list(tmp_path.glob("checkpoints/.step-*"))
