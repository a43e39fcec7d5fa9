"""Results as JSON lines, in files to which a benchmark appends as it goes, and that a kill may cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def end_last_line(path: Path) -> None:
    """End the file's last line, which may be half of one."""
    if path.exists() and (text := path.read_text(encoding="utf-8")) and not text.endswith("\n"):
        path.write_text(f"{text}\n", encoding="utf-8")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in the file, without lines that were cut; none if there is no file."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
