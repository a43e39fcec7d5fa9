"""Folders of a run's checkpoints, and the newest that it can go on from. Without torch.

RUN_DIR/checkpoints/00000120/    after 120 optimizer steps, counted over all stages; never rewritten
RUN_DIR/checkpoints/latest       the name of the newest
RUN_DIR/checkpoints/.…           a draft, or one that cannot be used; nobody reads it
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sweeps.text.atomic_file import atomic_write
from trainer.checkpoint.manifest import Manifest, UnusableError, verified
from trainer.result import code_version

FOLDER = "checkpoints"
LATEST = "latest"
DIGITS = 8  # of a checkpoint's name at least; names sort as their numbers do


def listing(root: Path) -> list[Path]:
    """Return the checkpoints in `root`, the newest first; none if there is no such folder."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if len(path.name) >= DIGITS and path.name.isdecimal()]
    return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name), reverse=True)


def draft_in(root: Path) -> Path:
    """Make a hidden folder to write a checkpoint into."""
    draft = root / f".{uuid.uuid4().hex}.tmp"
    draft.mkdir(parents=True)
    return draft


def remove_drafts(root: Path) -> None:
    """Delete the drafts of a process that was killed while it wrote."""
    for draft in root.glob(".*.tmp"):
        remove(draft)


def set_aside(path: Path) -> None:
    """Hide a checkpoint that cannot be used, without deleting it."""
    path.rename(path.with_name(f".{path.name}.unusable.{uuid.uuid4().hex[:8]}"))


def remove(path: Path) -> None:
    """Delete a folder or a file, renamed first, so that nobody finds half of it."""
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
    """Write `name` to the file `latest`."""
    with atomic_write(root / LATEST, durable=True) as draft:
        draft.write_text(f"{name}\n", encoding="ascii")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint whose files have been verified."""

    path: Path
    manifest: Manifest


def newest(root: Path, config_sha256: str, warn: Callable[[str], None]) -> Found | None:
    """Return the newest intact checkpoint of this configuration, or None.

    Newer ones that cannot be used are reported to `warn` and renamed, as their names will be needed.

    Args:
        root: folder of the checkpoints; it need not exist.
    """
    remove_drafts(root)
    unusable: list[Path] = []
    found: Found | None = None
    for path in listing(root):
        try:
            manifest = verified(path)
            if manifest.config_sha256 != config_sha256:
                # A version with more keys has another digest for the same overrides.
                theirs = manifest.code_version
                by = "" if theirs == code_version() else f", or of other keys: version {theirs} wrote it"
                raise UnusableError(f"it is of another configuration{by}")
        except UnusableError as error:
            warn(f"checkpoint {path.name} cannot be used ({error})")
            unusable.append(path)
        else:
            found = Found(path=path, manifest=manifest)
            break
    for path in unusable:
        set_aside(path)
    if unusable:
        warn("no checkpoint is left; starting anew" if found is None else f"going back to {found.path.name}")
    if found is not None:
        point_to(root, found.path.name)
    return found
