"""Discovery of the newest checkpoint that a run can resume from. Called by `run_folder`, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint import layout
from trainer.checkpoint.manifest import Manifest, UnusableError, verified


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
        config_sha256: of the run's configuration.
        warn: called with one line for people.
    """
    layout.remove_drafts(root)
    unusable: list[Path] = []
    found: Found | None = None
    for path in layout.listing(root):
        try:
            manifest = verified(path)
            if manifest.config_sha256 != config_sha256:
                raise UnusableError("it is of another configuration")
        except UnusableError as error:
            warn(f"checkpoint {path.name} cannot be used ({error})")
            unusable.append(path)
        else:
            found = Found(path=path, manifest=manifest)
            break
    for path in unusable:
        layout.set_aside(path)
    if unusable:
        warn("no checkpoint is left; starting anew" if found is None else f"going back to {found.path.name}")
    if found is not None:
        layout.point_to(root, found.path.name)
    return found
