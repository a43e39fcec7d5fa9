"""The examples of docs/how-to/analysis.md, run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_examples_give_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(
        str(ROOT / "docs" / "how-to" / "analysis.md"), module_relative=False, encoding="utf-8"
    )
    assert failed == 0
    assert tried >= 8
