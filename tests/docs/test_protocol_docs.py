"""docs/protocol.md names the test behind each of its claims: the tests exist, and no row goes without."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from sweeps.trials import lifecycle
from sweeps.trials.record import Trial

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def rows(heading: str) -> list[str]:
    """The rows of the table under a heading, without its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_test_that_the_page_names_exists(file, test):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("heading", ["What always holds", "What happens when a worker dies, or is cut off"])
def test_every_claim_names_its_test(heading):
    assert rows(heading)
    assert [row for row in rows(heading) if not re.search(r"`tests/[\w/]+\.py::\w+` \|$", row)] == []


def test_every_field_of_a_record_is_documented():
    documented = set(
        re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows("Fields of a trial's record")))
    )
    assert documented == {field.name for field in dataclasses.fields(Trial)} | {"schema"}


def test_every_event_is_documented():
    documented = {row.split("|")[1].strip().replace(" ", "") for row in rows("Transitions")}
    assert documented == {event.__name__.lower() for event in get_args(lifecycle.Event)}
