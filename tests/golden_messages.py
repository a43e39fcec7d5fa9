"""The page of messages to people, tests/golden/messages.md: the one place where their exact wording stands.

A person reads the page; other tests match the file, key or value that a message names. After a change of messages run
`UPDATE_GOLDEN=1 pytest` on the file that the test names, and read what has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

PAGE = Path(__file__).parent / "golden" / "messages.md"


def sections() -> dict[str, str]:
    """Return the sections of the page by title, in order."""
    _, *parts = ("\n" + PAGE.read_text(encoding="utf-8")).split("\n## ")
    return {title: text.strip("\n") for title, _, text in (part.partition("\n") for part in parts)}


def compare(title: str, messages: Iterable[tuple[str, str]]) -> None:
    """Compare a section with messages, each after the input that it answers; UPDATE_GOLDEN=1 rewrites the section."""
    blocks = []
    for given, message in messages:
        indented = "".join(f"\n    {line}" for line in message.rstrip("\n").split("\n"))
        blocks.append(f"{given}\n{indented}")
    text = "\n\n".join(blocks)
    if os.environ.get("UPDATE_GOLDEN"):
        with FileLock(f"{PAGE}.lock"):
            now = {**sections(), title: text}
            head = PAGE.read_text(encoding="utf-8").partition("\n## ")[0].rstrip("\n")
            page = "".join(f"\n\n## {name}\n\n{part}" for name, part in now.items())
            PAGE.write_text(f"{head}{page}\n", encoding="utf-8")
    assert text == sections()[title]


def compare_refusals(
    title: str, error: type[Exception], cases: Mapping[str, Callable[[], object]], *, hide: object = ""
) -> dict[str, Any]:
    """Call each case, which must raise this error in one line, and compare the lines; return the errors by case.

    Args:
        title: The section of the page.
        error: The type that each case raises.
        cases: What to call, by its description on the page.
        hide: What the page leaves out of the lines, such as a test's own folder.
    """
    raised: dict[str, Any] = {}
    for case, call in cases.items():
        with pytest.raises(error) as caught:
            call()
        raised[case] = caught.value
        assert "\n" not in str(caught.value), case
    compare(
        title,
        [(case, str(each).replace(str(hide), "") if hide else str(each)) for case, each in raised.items()],
    )
    return raised
