"""Names and docstrings use the words of the field: CONTRIBUTING.md says which, and these tests hold them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)  # every file of the project is parsed
ROOT = Path(__file__).parents[2]
PACKAGES = ("sweeps", "trainer", "runners", "analysis")
# What they mean depends on who reads them.
BANNED = {"told", "tell", "beside", "look", "whole", "seen", "ground", "news"}
# As Optuna and Ax have it.
ALLOWED = {("sweeps/experiment.py", "tell"), ("sweeps/api.py", "tell")}
# As the whole name of a function they need a module that says of what.
NEED_AN_OBJECT = {"read", "check", "write", "keep"}
SAYS_OF_WHAT = {
    "analysis/table/files.py: read",
    "runners/pools/engines.py: check",
    "runners/pools/launched.py: read",
    "runners/pools/launched.py: write",
    "runners/pools/pool_file.py: read",
    "runners/pools/pool_file.py: write",
    "sweeps/export/ax_export.py: write",
    "sweeps/export/optuna_journal.py: write",
    "sweeps/export/table.py: write",
    "sweeps/hydra_app/params.py: read",
    "sweeps/space/space_parameters.py: read",
    "sweeps/text/csv_format.py: write",
    "sweeps/text/json_reader.py: read",
    "sweeps/trials/control.py: read",
    "sweeps/trials/control.py: write",
    "sweeps/upkeep/tables.py: read",
    "sweeps/programs/program.py: check",
    "trainer/api.py: check",
    "trainer/checkpoint/config_pin.py: check",
    "trainer/checkpoint/reader.py: read",
    "trainer/checkpoint/writer.py: write",
    "trainer/devices/xla_sharding.py: check",
    "trainer/distributed/launched.py: check",
    "trainer/result.py: write",
    "trainer/teachers/cached/compatibility.py: check",
    "trainer/teachers/http/protocol.py: read",
}
NO_OPENERS = {
    "What", "Whether", "How", "Where", "Who", "Whose", "Why", "Which", "When", "As", "That", "Of", "Until", "Those",
}  # fmt: skip


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


def modules(*folders: str) -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")
    )


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a module gives to something: what it only uses was named elsewhere."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(alias)):
                yield node.lineno, alias


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "benchmarks"])
def test_no_identifier_is_a_word_that_means_many_things(folder: str) -> None:
    found = [
        f"{module}:{line}: {name}"
        for module in modules(folder)
        for line, name in names(parsed(module))
        if name.strip("_").lower() in BANNED and (module, name) not in ALLOWED
    ]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_short_verbs_stand_only_where_the_module_says_of_what(package: str) -> None:
    found = {
        f"{module}: {node.name}"
        for module in modules(package)
        for node in parsed(module).body
        if isinstance(node, ast.FunctionDef) and node.name in NEED_AN_OBJECT
    }
    assert found - SAYS_OF_WHAT == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_say_what_a_thing_is_or_does(package: str) -> None:
    found = [
        f"{module}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for module in modules(package)
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and text.split()[0].strip(",.:;`") in NO_OPENERS
    ]
    assert found == []


def test_the_rules_find_what_they_forbid() -> None:
    tree = ast.parse("def tell(whole):\n    seen = news = whole\n    self.beside = seen\nimport x as look\n")
    assert {name for _, name in names(tree)} >= {"tell", "whole", "seen", "news", "beside", "look"}
