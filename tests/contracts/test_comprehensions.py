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


def captured_and_bound(table: symtable.SymbolTable) -> Iterator[tuple[int, str]]:
    """Yield the line and the name where a comprehension binds a name that its function has from outside."""
    captured = {each.get_name() for each in table.get_symbols() if each.is_free()}
    for child in table.get_children():
        if child.get_name() in INLINED:
            own = (each.get_name() for each in child.get_symbols() if each.is_local())
            yield from ((child.get_lineno(), name) for name in own if name in captured)
        yield from captured_and_bound(child)


@pytest.mark.parametrize("package", ["sweeps", "trainer", "runners", "analysis"])
def test_no_captured_name_is_bound_by_a_comprehension(package: str) -> None:
    """Where only a nested function reads the captured name, it would be unbound in newer Pythons.

    Comprehensions are inlined since 3.12 (PEP 709). Python 3.13.5 and 3.14.10 compile
    `def attempt(): ask = lambda: name; return ask(), [name for name in "ab"]`, within a function that has
    `name`, to a NameError.
    """
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    found = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        for line, name in captured_and_bound(symtable.symtable(path.read_text(), str(path), "exec"))
    }
    assert not found


def test_such_a_name_is_found() -> None:
    code = "def head(name):\n def attempt():\n  ask = lambda: name\n  return ask(), [name for name in 'ab']\n"
    assert list(captured_and_bound(symtable.symtable(code, "head.py", "exec"))) == [(4, "name")]
