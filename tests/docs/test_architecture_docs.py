"""docs/explanation/architecture.md names every subpackage that exists, once, and none that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
# No subpackages of code: an example for the documentation, and what the page is made from.
NO_SUBPACKAGES = {"analysis/examples", "analysis/report/templates"}


def subpackages(package: str) -> set[str]:
    folders = (path for path in (ROOT / package).iterdir() if path.is_dir())
    holding = (path for path in folders if any(path.rglob("*.py")) or any(path.rglob("*.ipynb")))
    return {path.relative_to(ROOT).as_posix() for path in holding} - NO_SUBPACKAGES


@pytest.mark.parametrize("package", ["sweeps", "trainer", "runners", "analysis"])
def test_every_subpackage_has_its_sentence(package: str) -> None:
    rows = re.findall(rf"^\| `({package}/[\w/]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert {name for name, _ in rows} == subpackages(package)
    assert len(rows) == len(subpackages(package))


@pytest.mark.parametrize(("package", "modules", "folders"), [("trainer", 11, 19), ("sweeps", 7, 15)])
def test_the_top_of_a_package_stays_small(package: str, modules: int, folders: int) -> None:
    top = [path for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
    assert len(top) <= modules
    assert len(subpackages(package)) <= folders


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"`((?:trainer|sweeps|runners|analysis)/[\w/]+\.py)`", PAGE)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
