"""The README's commands are run in order, in one shell session's folder, as a reader would type them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALLER = ("model.hidden_size=32", "model.intermediate_size=96", "model.heads=2")
NEXT = "\n      "  # an item of the list of overrides
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


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
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_space_in_the_readme_is_one_that_init_accepts():
    from sweeps.space_file import loads

    (text,) = [body for name, body in BLOCKS if name == "yaml"]
    assert loads(text, "README.md").parameters


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_tour_runs_as_written(tmp_path):
    """Each command, as it is printed, ends with 0. The quickstart's models are smaller than a reader's: their
    size is a default of the space's file, and takes minutes that prove nothing more."""
    (tmp_path / "space.yaml").write_text(next(body for name, body in BLOCKS if name == "yaml"))
    spaces = tmp_path / "packages" / "search_spaces"
    spaces.mkdir(parents=True)
    quickstart = (ROOT / "search_spaces" / "quickstart.yaml").read_text(encoding="utf-8")
    items = "".join(f"- {override}{NEXT}" for override in SMALLER)
    smaller = quickstart.replace("- model=tiny ", f"{items}- model=tiny ")
    assert smaller != quickstart
    (spaces / "quickstart.yaml").write_text(smaller, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(spaces.parent), os.environ.get("PYTHONPATH", "")]),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "STAGESWEEP_CACHE": str(tmp_path / "cache"),
    }
    for name in ("SWEEP_STORAGE", "SWEEP_NAME"):
        environment.pop(name, None)
    tour = [command for command in commands("console") if not command.startswith("make ")]
    assert len(tour) >= 8
    for command in tour:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}\n{ran.stderr}"
        program = shlex.split(command)[0]
        assert program in ("sweep", "python", "export"), command
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
