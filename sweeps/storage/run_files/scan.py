"""What there is to upload in a run folder, and what is ripe for it. `bulk` is the only caller.

Files in one folder of the run (`checkpoints/00000120/…`), or below it, belong together: they become visible
in the bucket together, once none of them has changed between two scans. Files directly in the run folder
stand alone, and so do files that only grow (logs, metrics): of those a prefix is as good as the whole.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from sweeps.storage.keys import checked_key

log = logging.getLogger(__name__)

GROWING = ("*.jsonl", "*.log", "log.txt", "events.out.tfevents.*")
FREQUENTLY_REWRITTEN = (*GROWING, "heartbeat.json")  # also what is written anew all the time
DRAFTS = ("*.tmp", "*.draft", "*.partial", "*~")
_ROOM = 16  # characters that an object's name may have beyond its file's


class Stamp(NamedTuple):
    """What changes when a file is written; the same stamp twice means the same content."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Files that become visible together: those to bring up to date, and those that are gone."""

    changed: tuple[str, ...]
    gone: tuple[str, ...]


def is_growing(name: str) -> bool:
    """Whether the file is one that programs append to."""
    return any(fnmatchcase(name.rpartition("/")[2], pattern) for pattern in GROWING)


def is_restless(name: str) -> bool:
    """Whether the file changes so often that it goes at a pace of its own."""
    return any(fnmatchcase(name.rpartition("/")[2], pattern) for pattern in FREQUENTLY_REWRITTEN)


def stamp_of(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


def scan(folder: Path, prefix: str) -> dict[str, Stamp]:
    """Every file below `folder` that belongs in the bucket, by its name relative to it.

    Left out: hidden files and drafts, what is not a regular file, links to folders, links to files outside,
    and names that the bucket would not take below `prefix`.
    """
    root = folder.resolve()
    found: dict[str, Stamp] = {}
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _is_draft(name)]
        for file in files:
            path = Path(parent, file)
            if not _is_draft(file) and (stamp := _stamp(path, root)) is not None:
                name = path.relative_to(root).as_posix()
                if _is_fit(name, prefix):
                    found[name] = stamp
    return found


def settled(
    present: Mapping[str, Stamp],
    before: Mapping[str, Stamp],
    safe: Mapping[str, Stamp],
    *,
    resting: Set[str] = frozenset(),
    final: bool = False,
) -> list[Batch]:
    """The batches that have something to send and have settled, those with the fewest bytes first; and last,
    what is only gone: a checkpoint must not leave the bucket before its successor is there.

    Args:
        present, before: this scan and the last one.
        safe: what the bucket is known to hold.
        resting: restless files whose time has not come again.
        final: nobody writes any more: all is settled.
    """
    together: dict[str, set[str]] = defaultdict(set)
    for name in (*present, *safe):
        together[unit_of(name)].add(name)
    batches = []
    for names in together.values():
        changed = sorted(n for n in names if n in present and present[n] != safe.get(n) and n not in resting)
        gone = sorted(n for n in names if n not in present)
        moving = any(present.get(n) != before.get(n) and not is_growing(n) for n in names)
        if (changed or gone) and (final or not moving):
            batches.append(Batch(changed=tuple(changed), gone=tuple(gone)))
    return sorted(batches, key=lambda batch: (not batch.changed, sum(present[n].size for n in batch.changed)))


def unit_of(name: str) -> str:
    """What a file belongs to: the folder of the run that it is in, two levels deep at most; or itself."""
    folders = name.split("/")[:-1]
    return name if not folders or is_growing(name) else "/".join(folders[:2]) + "/"


def _is_draft(name: str) -> bool:
    return name.startswith(".") or any(fnmatchcase(name, pattern) for pattern in DRAFTS)


def _stamp(path: Path, root: Path) -> Stamp | None:
    try:
        if path.is_symlink() and not path.resolve(strict=True).is_relative_to(root):
            return None
        found = path.stat()
    except (OSError, RuntimeError):  # gone meanwhile, a dangling link, a loop of links
        return None
    return stamp_of(found) if stat.S_ISREG(found.st_mode) else None


def _is_fit(name: str, prefix: str) -> bool:
    try:
        checked_key(f"{prefix}/{name}" + "x" * _ROOM)
    except ValueError:
        log.debug("%r is not uploaded: the bucket takes no such name", name)
        return False
    return True
