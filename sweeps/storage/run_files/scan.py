"""Scan of a run folder for files to upload, and for those that have settled.

Files in or below one folder of the run (`checkpoints/00000120/…`) form a unit: they become visible in the
bucket together, once none of them has changed between two scans. Files directly in the run folder stand
alone, and so do files that only grow (logs, metrics), of which any prefix is valid. Files beside such folders
(`checkpoints/latest`) may name one of them, and become visible after those.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from sweeps.storage.keys import checked_key

log = logging.getLogger(__name__)

GROWING = ("*.jsonl", "*.log", "log.txt", "events.out.tfevents.*")
FREQUENTLY_REWRITTEN = (*GROWING, "heartbeat.json")
DRAFTS = (
    *("*.tmp", "*.draft", "*.partial", "*~", ".*.part", ".*incoming"),
    *(".*.unusable.*", ".*.earlier", ".*.lock", ".*.sw?", ".nfs*"),
)
PRIVATE = (".git", ".env", ".netrc", ".ssh")
"""Hidden names that may hold keys, which others who read the bucket should not have."""
CHECKPOINTS = "checkpoints"
"""Folder of a run from which the next attempt goes on."""
_NAMED_WITHIN_S = 60
"""A folder that is still written so long after the file beside it is not what that file names."""
_SUFFIX_CHARACTERS = 16  # an object's name may be longer than its file's by so many


class Stamp(NamedTuple):
    """Status of a file that changes when it is written: equal stamps mean equal content."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Files that become visible together: those to upload, and those that were removed.

    Args:
        unit: see `unit_of`.
        after: units that become visible before it.
    """

    unit: str
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    after: frozenset[str]


def is_growing(name: str) -> bool:
    """Return whether programs append to files of this name."""
    return _is_any(name.rpartition("/")[2], GROWING)


def is_volatile(name: str) -> bool:
    """Return whether files of this name change so often that their uploads are limited in rate."""
    return _is_any(name.rpartition("/")[2], FREQUENTLY_REWRITTEN)


def stamp_of(found: os.stat_result) -> Stamp:
    """Return the stamp of a file with this status."""
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


def scan(folder: Path, prefix: str, *, without: str = "") -> dict[str, Stamp]:
    """Return every file below `folder` to upload, by its name relative to it.

    Left out are drafts, hidden names in `checkpoints/` among them, which programs rename once they are
    complete; what is `PRIVATE`; links to folders and to files outside, other files that are not regular,
    names that the bucket would not take below `prefix`, and the folder `without` in `folder`.
    """
    root = folder.resolve()
    found: dict[str, Stamp] = {}
    for parent, folders, files in os.walk(root):
        top = parent == os.fspath(root)
        hidden = (".*",) if Path(parent).is_relative_to(root / CHECKPOINTS) else PRIVATE
        left_out = (*DRAFTS, *hidden)
        folders[:] = [n for n in folders if not _is_any(n, left_out) and not (top and n == without)]
        for path in (Path(parent, file) for file in files if not _is_any(file, left_out)):
            try:
                if path.is_symlink() and not path.resolve(strict=True).is_relative_to(root):
                    continue
                status = path.stat()
            except (OSError, RuntimeError):  # removed meanwhile, a dangling link, a loop of links
                continue
            name = path.relative_to(root).as_posix()
            if not stat.S_ISREG(status.st_mode):
                continue
            try:
                checked_key(f"{prefix}/{name}" + "x" * _SUFFIX_CHARACTERS)
            except ValueError:
                log.debug("%r is not uploaded: the bucket takes no such name", name)
                continue
            found[name] = stamp_of(status)
    return found


def due_batches(
    present: Mapping[str, Stamp],
    before: Mapping[str, Stamp],
    safe: Mapping[str, Stamp],
    *,
    deferred: Set[str] = frozenset(),
    restless: Set[str] = frozenset(),
    final: bool = False,
) -> list[Batch]:
    """Return the settled units that differ from the bucket, those with the fewest bytes first.

    Units without files to send come last: a checkpoint must stay until its successor is uploaded.

    Args:
        safe: files as they are in the bucket.
        deferred: frequently rewritten files that were uploaded a short time ago.
        restless: units that change all the time, for which no other waits.
        final: no program writes any more, so that everything has settled.
    """
    units: dict[str, set[str]] = defaultdict(set)
    for name in (*present, *safe):
        units[unit_of(name)].add(name)
    moving = frozenset[str]() if final else moving_units(present, before)
    changed, written = dict[str, tuple[str, ...]](), dict[str, int]()
    for unit, names in units.items():
        differ = sorted(n for n in names if n in present and present[n] != safe.get(n) and n not in deferred)
        changed[unit], written[unit] = tuple(differ), max((present[n].mtime_ns for n in differ), default=0)
    folders = [unit for unit in units if unit.endswith("/") and changed[unit] and unit not in restless]
    batches = []
    for unit, names in units.items():
        removed = tuple(sorted(n for n in names if n not in present))
        inside = (u for u in folders if changed[unit] and u != unit and u.startswith(unit))
        after = frozenset(u for u in inside if written[u] < written[unit] + _NAMED_WITHIN_S * 10**9)
        if (changed[unit] or removed) and moving.isdisjoint({unit, *after}):
            batches.append(Batch(unit=unit, changed=changed[unit], removed=removed, after=after))
    return sorted(batches, key=lambda batch: (not batch.changed, sum(present[n].size for n in batch.changed)))


def moving_units(present: Mapping[str, Stamp], before: Mapping[str, Stamp]) -> frozenset[str]:
    """Return the units with a file that has changed, come or gone since the scan before."""
    names = present.keys() | before.keys()
    return frozenset(unit_of(n) for n in names if present.get(n) != before.get(n) and not is_growing(n))


def unit_of(name: str) -> str:
    """Return the unit of a file: its folder, at most two levels deep, or the file itself."""
    folders = name.split("/")[:-1]
    return name if not folders or is_growing(name) else "/".join(folders[:2]) + "/"


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
