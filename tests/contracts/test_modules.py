"""Tests are imported by the names of their files alone, whatever folders they are in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_modules_of_the_tests_have_one_name() -> None:
    """Of two modules with one name, the first import would win, depending on which tests run."""
    found = (path for path in TESTS.rglob("*.py") if not (path.parent / "__init__.py").exists())
    names = Counter(path.name for path in found if path.name != "conftest.py")
    assert "test_modules.py" in names
    assert [name for name, count in names.items() if count > 1] == []


def test_folders_of_tests_mirror_the_subpackages() -> None:
    """Exceptions: objectives that tests import, and what runs in the environment of torch_xla."""
    exceptions = {"sweeps/functions", "trainer/xla"}
    packages = ("sweeps", "trainer", "runners", "analysis")
    folders = {
        path.parent.relative_to(TESTS).as_posix()
        for package in packages
        for path in (TESTS / package).rglob("*.py")
    }
    assert set(packages) < folders
    assert [name for name in sorted(folders - exceptions) if not (TESTS.parent / name).is_dir()] == []
