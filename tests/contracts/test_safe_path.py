"""Whatever the platform starts in Python has no working folder on its import path: `python -P -m`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"-m (?:sweeps|runners|trainer|submitit)\b")
USERS = {
    "sweeps/hydra_app/app.py",  # an application of the user, as it was started
    "sweeps/programs/trainer.py",  # a command line for people; it starts processes through trainer.api
}


@pytest.mark.parametrize("package", ["sweeps", "trainer", "runners", "analysis"])
def test_python_is_started_with_a_safe_path(package: str) -> None:
    unsafe = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / package).rglob("*.py")
        if str(path.relative_to(ROOT)) not in USERS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r'"-m",', line) and not re.search(r'("-P"|\*safe), "-m",', line)
    ]
    assert unsafe == []


def test_scripts_of_pools_start_python_with_a_safe_path() -> None:
    files = [path for path in (ROOT / "tests" / "golden" / "runners").rglob("*") if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines() if OURS.search(line)]
    assert len(lines) >= 12  # of each engine
    for line in lines:
        starts = OURS.findall(line)
        assert len(re.findall(r"python[\d.]* -P (?:-u )?-m ", line)) == len(starts), line
