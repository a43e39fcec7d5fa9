"""docs/explanation/protocol.md names the test behind each of its claims: the tests exist, and no row goes without."""

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
PAGE = (ROOT / "docs" / "explanation" / "protocol.md").read_text(encoding="utf-8")
TEST = r"`(?:tests/\w+/)?(test_\w+\.py)(?:::(\w+))?`"
NAMED = sorted(set(re.findall(TEST, PAGE)))


def defined_tests(file: str) -> set[str]:
    """The names of the tests in the only file of this name."""
    (path,) = (ROOT / "tests").rglob(file)
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {
        node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def rows(heading: str) -> list[str]:
    """The rows of the table under a heading, without its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_named_tests_exist():
    assert NAMED
    assert [
        (file, test)
        for file, test in NAMED
        if not (test in defined_tests(file) if test else defined_tests(file))
    ] == []


def test_missing_test_is_noticed():
    assert "test_gone" not in defined_tests("test_protocol_docs.py")
    with pytest.raises(ValueError, match="not enough values"):
        defined_tests("test_gone.py")


@pytest.mark.parametrize("heading", ["What always holds", "What happens when a worker dies, or is cut off"])
def test_every_claim_names_its_test(heading):
    assert rows(heading)
    assert [row for row in rows(heading) if not re.search(rf"{TEST} \|$", row)] == []


def test_every_field_of_a_record_is_documented():
    documented = set(
        re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows("Fields of a trial's record")))
    )
    # `later` has what this version has no name for.
    assert documented == {field.name for field in dataclasses.fields(Trial)} - {"later"} | {"schema"}


def test_every_event_is_documented():
    documented = {row.split("|")[1].strip().replace(" ", "") for row in rows("Transitions")}
    assert documented == {event.__name__.lower() for event in get_args(lifecycle.Event)}
