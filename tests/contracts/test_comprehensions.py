"""No comprehension binds a name that its function captures from the function around it."""

from __future__ import annotations

import symtable
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="its symbol tables have comprehensions inlined, and the name lost"
)

ROOT = Path(__file__).parents[2]
INLINED = {"listcomp", "setcomp", "dictcomp"}


def reused(table: symtable.SymbolTable) -> Iterator[tuple[int, str]]:
    """Yield the line and the name where a comprehension binds a name that its function has from outside."""
    captured = {each.get_name() for each in table.get_symbols() if each.is_free()}
    for child in table.get_children():
        if child.get_name() in INLINED:
            own = (each.get_name() for each in child.get_symbols() if each.is_local())
            yield from ((child.get_lineno(), name) for name in own if name in captured)
        yield from reused(child)


@pytest.mark.parametrize("package", ["sweeps", "trainer", "runners", "analysis"])
def test_no_captured_name_is_bound_by_a_comprehension(package: str) -> None:
    """From Python 3.12 on the captured name would be unbound where only a nested function reads it.

    Comprehensions are inlined since (PEP 709). Python 3.13.5 and 3.14.10 then compile
    `def attempt(): ask = lambda: name; return ask(), [name for name in "ab"]`, within a function that has
    `name`, to a NameError.
    """
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    found = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        for line, name in reused(symtable.symtable(path.read_text(), str(path), "exec"))
    }
    assert not found


def test_such_a_name_is_found() -> None:
    code = "def head(name):\n def attempt():\n  ask = lambda: name\n  return ask(), [name for name in 'ab']\n"
    assert list(reused(symtable.symtable(code, "head.py", "exec"))) == [(4, "name")]
