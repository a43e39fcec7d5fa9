"""Last lines of log files, for `sweep pool logs`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path


def tails(folder: Path, pattern: str, lines: int) -> Iterator[str]:
    """Yield the last lines of each matching file, in natural order, under a header if there are several."""
    files = sorted(folder.glob(pattern), key=lambda file: (len(file.name), file.name))
    for file in files:
        if len(files) > 1:
            yield f"==> {file.name} <=="
        with file.open(encoding="utf-8", errors="replace") as text:
            yield from (line.rstrip("\r\n") for line in deque(text, maxlen=lines))
