"""Changes to a good search space file that are refused, and the comparison of all their messages with the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import golden_messages
import pytest

from sweeps.errors import EXIT_INPUT, SpaceError
from sweeps.space.space_file import loads


@dataclass(frozen=True)
class Case:
    """`old` in a base replaced by `new` (appended where there is no `old`) is refused at `line` and `key`."""

    id: str
    old: str
    new: str
    line: int
    key: str

    def change(self, base: str) -> str:
        assert self.old in base, self.id
        return base.replace(self.old, self.new, 1) if self.old else base + self.new

    def description(self) -> str:
        old, new = (text if len(text) < 200 else f"{text[:200]} …" for text in (self.old, self.new))
        change = f"{json.dumps(old, ensure_ascii=False)} becomes" if old else "added"
        return f"{self.id}: {change} {json.dumps(new, ensure_ascii=False)}"


def compare(title: str, base: str, cases: Sequence[Case]) -> None:
    """Refuse each case at its line and key, in one line with the file, and compare the lines with the page."""
    messages, wrong = [], {}
    for case in cases:
        with pytest.raises(SpaceError) as caught:
            loads(case.change(base), "x.yaml")
        error = caught.value
        # The longest message lists the keys of the file.
        good = "\n" not in str(error) and len(str(error)) < 360 and error.exit_status == EXIT_INPUT
        if (error.file, error.line, error.key) != ("x.yaml", case.line, case.key) or not good:
            wrong[case.id] = error
        messages.append((case.description(), str(error)))
    assert wrong == {}
    golden_messages.compare(title, messages)
