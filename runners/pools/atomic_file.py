"""Atomic replacement of small text files; the package writes its files through this alone."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

OWNER_ONLY = 0o600
OWNER_EXECUTABLE = 0o700
BY_UMASK = 0o666


def write_atomic(path: Path, text: str, *, mode: int = OWNER_ONLY) -> None:
    """Replace a file durably; a reader, also a shell halfway through it, sees the old or the new text.

    Args:
        path: the file; missing parent folders are created.
        text: written as UTF-8.
        mode: permission bits before the umask. A pool's environment may be confidential, so the default is
            `OWNER_ONLY`.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # left by a killed writer, whose mode would stay
    with open(fresh, "w", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
