"""Where a run's checkpoints lie. Knows nothing of what is in them. Used by the rest of this package.

RUN_DIR/checkpoints/00000120/    after 120 optimizer steps, counted over all stages; never rewritten
RUN_DIR/checkpoints/latest       the name of the one that was written last
RUN_DIR/checkpoints/.…           a draft, or one that could not be used; nobody reads it
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

FOLDER = "checkpoints"
LATEST = "latest"
_DIGITS = 8


def name_of(steps: int) -> str:
    """Of the checkpoint after so many steps. Names sort as their numbers do."""
    return f"{steps:0{_DIGITS}d}"


def listing(root: Path) -> list[Path]:
    """The checkpoints in `root`, the newest first; none if there is no such folder."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if len(path.name) >= _DIGITS and path.name.isdecimal()]
    return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name), reverse=True)


def draft_in(root: Path) -> Path:
    """A new hidden folder to write a checkpoint into."""
    draft = root / f".{uuid.uuid4().hex}.tmp"
    draft.mkdir(parents=True)
    return draft


def remove_drafts(root: Path) -> None:
    """Those of a process that was killed while it wrote."""
    for draft in root.glob(".*.tmp"):
        remove(draft)


def set_aside(path: Path) -> None:
    """Takes a checkpoint that cannot be used out of the way, without deleting it."""
    path.rename(path.with_name(f".{path.name}.unusable.{uuid.uuid4().hex[:8]}"))


def remove(path: Path) -> None:
    """Deletes a folder or a file; it is gone at once under its name, so that nobody finds half of it."""
    hidden = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        path.rename(hidden)
    except FileNotFoundError:
        return
    if hidden.is_dir() and not hidden.is_symlink():
        shutil.rmtree(hidden, ignore_errors=True)
    else:
        hidden.unlink(missing_ok=True)


def point_to(root: Path, name: str) -> None:
    """Makes `latest` say `name`."""
    draft = root / f".{uuid.uuid4().hex}.tmp"
    try:
        with draft.open("w", encoding="ascii") as stream:
            stream.write(f"{name}\n")
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(root / LATEST)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Has a file's bytes, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
