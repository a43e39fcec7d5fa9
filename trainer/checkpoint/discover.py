"""The newest checkpoint that a run can go on from. Called by `run_folder` before torch is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint import layout
from trainer.checkpoint.manifest import Document, UnusableError, verified


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint whose files are as they were written."""

    path: Path
    document: Document


def newest(root: Path, config_sha256: str, warn: Callable[[str], None]) -> Found | None:
    """The newest checkpoint in `root` that is whole and of this configuration, or None.

    Those that are newer and cannot be used are told to `warn` and set aside, for their names will be needed.
    """
    layout.remove_drafts(root)
    unusable: list[Path] = []
    found: Found | None = None
    for path in layout.listing(root):
        try:
            document = verified(path)
            if document.config_sha256 != config_sha256:
                raise UnusableError("it is of another configuration")
        except UnusableError as error:
            warn(f"checkpoint {path.name} cannot be used ({error})")
            unusable.append(path)
        else:
            found = Found(path=path, document=document)
            break
    for path in unusable:
        layout.set_aside(path)
    if unusable:
        warn("no checkpoint is left; starting anew" if found is None else f"going back to {found.path.name}")
    if found is not None:
        layout.point_to(root, found.path.name)
    return found
