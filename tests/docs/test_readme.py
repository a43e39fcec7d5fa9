"""The README's commands are run in order, in one shell session's folder, as a reader would type them."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from trainer import api
from trainer.training.loop import StagePlan

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALLER = (
    *("model.hidden_size=32", "model.intermediate_size=96", "model.layers=2", "model.heads=2"),
    *("stage1_9.batch_size=2", "stage2.batch_size=2", "eval.batches=2"),
)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
FILES = dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL))
"""What the page has to be written into files, by name."""


def commands(language: str) -> list[str]:
    """The lines after `$ ` of every block in this language, continued lines joined."""
    text = "".join(body for name, body in BLOCKS if name == language).replace("\\\n", " ")
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


def test_make_targets_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wanted = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"quickstart", "test", "setup", "lint"} <= wanted
    assert {
        target for target in wanted if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    } == set()


def test_links_to_files_lead_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_pages_that_the_code_names_exist():
    """In messages, help and docstrings."""
    files = [
        path
        for name in ("sweeps", "trainer", "runners", "analysis", "benchmarks", "tests", "search_spaces")
        for ending in ("*.py", "*.yaml", "*.md", "*.txt")
        for path in (ROOT / name).rglob(ending)
    ]
    named = {
        (page, path.relative_to(ROOT).as_posix())
        for path in files
        for page in re.findall(r"(?<![\w./])docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert sorted(each for each in named if not (ROOT / each[0]).is_file()) == []


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("name", ["space.yaml", "ternary.yaml"])
def test_the_spaces_in_the_readme_are_ones_that_init_accepts(name):
    from sweeps.space.space_file import loads

    assert loads(FILES[name], name).parameters


def test_pictures_are_there_for_light_and_dark_pages_and_small():
    """Drawn by `make pictures`; MkDocs does not look for those in HTML."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [
        (page.parent / name).resolve()
        for page in pages
        for name in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8"))
    ]
    assert {picture.name for picture in shown} == {
        *("quickstart-light.svg", "quickstart-dark.svg", "dashboard-light.png", "dashboard-dark.png")
    }
    assert all(picture.stat().st_size < 100_000 for picture in shown)


def smaller(text: str) -> str:
    """A space of the page, with smaller models and batches and fewer trials than a reader's: their sizes are
    defaults of the space's file, and take minutes that prove nothing more."""
    listed = "- model=tiny " in text
    before, after = ("- ", "\n      ") if listed else ("", ", ")
    more = "".join(f"{before}{override}{after}" for override in SMALLER)
    ours = "|".join(re.escape(override.partition("=")[0]) for override in SMALLER)
    changed = re.sub(rf"\n +- (?:{ours})=.*", "", text)
    changed = changed.replace(f"{before}model=tiny", f"{more}{before}model=tiny")
    assert changed != text
    return re.sub(r"run_cap: \d+", "run_cap: 3", changed).replace("sobol: 6", "sobol: 2")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the tour's teachers, hardly trained: how good they are is no matter here, and takes a minute."""
    from trainer.stages import teacher

    train = teacher.train
    monkeypatch.setattr(teacher, "train", lambda plan, *given, **named: train(short(plan), *given, **named))
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    for more in (SMALLER, (*SMALLER, "model.teacher.max_steps=200")):
        api.prepare(["model=tiny", "data=stdlib", "device.threads=1", *more])
    return tmp_path / "cache"


def short(plan: StagePlan) -> StagePlan:
    return dataclasses.replace(
        plan, steps=2, schedule=dataclasses.replace(plan.schedule, warmup_steps=1, decay_fraction=0.0)
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("keep_signals")
def test_the_tour_runs_as_written(tmp_path, cache, sweep, monkeypatch):
    """Each command, as it is printed, ends with 0; models are smaller.

    All run in this process: each would load torch and Ax for some ten seconds. `make test-release` starts the
    quickstart as a reader does.
    """
    for name, text in FILES.items():
        (tmp_path / name).write_text(smaller(text) if "model=tiny" in text else text, encoding="utf-8")
    spaces = tmp_path / "packages" / "search_spaces"
    spaces.mkdir(parents=True)
    monkeypatch.delitem(sys.modules, "search_spaces", raising=False)
    monkeypatch.syspath_prepend(str(spaces.parent))
    quickstart = (ROOT / "search_spaces" / "quickstart.yaml").read_text(encoding="utf-8")
    (spaces / "quickstart.yaml").write_text(smaller(quickstart), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(spaces.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("SWEEP_STORAGE", "SWEEP_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    tour = [command for command in commands("console") if not command.startswith("make ")]
    assert len(tour) >= 8
    prepared = sorted((cache / "teachers").iterdir())
    for command in tour:
        program, *given = shlex.split(command)
        assert program == "sweep", command
        result = sweep(*given)
        assert result.status == 0, f"$ {command}\n{result.out}\n{result.err}"
    assert sorted((cache / "teachers").iterdir()) == prepared, "a teacher was trained"
    assert (tmp_path / "report.html").stat().st_size > 800_000  # with the scripts that draw it
