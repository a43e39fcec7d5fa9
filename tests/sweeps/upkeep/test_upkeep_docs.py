"""`docs/how-to/upkeep.md` names every kind of finding with its level, and every kind of step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from sweeps.upkeep import checkpoints, repair

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "upkeep.md").read_text(encoding="utf-8")
UPKEEP = Path(repair.__file__).parent


def rows(heading: str) -> dict[str, str]:
    section = PAGE.split(f"## `{heading}`")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))


def test_every_kind_of_finding_is_described():
    source = "".join(file.read_text() for file in UPKEEP.glob("*.py"))
    kinds = set(
        re.findall(r'(?:kind=|_error_finding\(|_leftover\(\s*|kind, (?:remedy, step|what) = )"(\w+)"', source)
    )
    assert set(rows("sweep doctor")) == kinds | set(get_args(checkpoints.State))


def test_every_kind_of_step_is_described():
    source = (UPKEEP / "diagnostics.py").read_text()
    kinds = set(re.findall(r'(?:RepairStep\(\s*kind=|_leftover\(\s*)"(\w+)"', source)) | {"torn", "strange"}
    assert set(rows("sweep repair")) == kinds | set(get_args(checkpoints.State)) - {"newer"}
