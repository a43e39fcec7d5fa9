"""Files of an attempt's run, read by exact names from the store's listing: no name leads anywhere else."""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from pathlib import Path

from sweeps.dashboard.readonly import folder_of
from sweeps.errors import DamagedObject, SweepError
from sweeps.programs.process import end_of
from sweeps.storage.base import NotFound, Part, Store
from sweeps.trials.record import Trial, run_prefix
from sweeps.trials.redaction import redact

FRESH_S = 5.0
"""Seconds for which a listing of an attempt's files is used again."""
_REMEMBERED = 256
_MOST = 500


class RunFiles:
    """Files of the attempts of one sweep, for one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = folder_of(store)
        self._listed: OrderedDict[str, tuple[float, frozenset[str]]] = OrderedDict()

    def names(self, record: Trial) -> list[str]:
        """Return the names of the present or last attempt's files; at most 500."""
        prefix = run_prefix(record.trial, record.attempt)
        return sorted(self._names(prefix))[:_MOST] if record.attempt else []

    def _names(self, prefix: str) -> frozenset[str]:
        when, found = self._listed.get(prefix, (float("-inf"), frozenset[str]()))
        if time.monotonic() - when > FRESH_S:
            found, folder = frozenset(), self._folder
            # Only files that lie in the folder itself: a program may have made links to anywhere.
            if folder is None or _is_own(folder, prefix):
                found = frozenset(
                    entry.key.removeprefix(f"{prefix}/")
                    for entry in self._store.list(f"{prefix}/")  # which follows no link to a folder
                    if folder is None or not folder.joinpath(*entry.key.split("/")).is_symlink()
                )
            self._listed[prefix] = (time.monotonic(), found)
            self._listed.move_to_end(prefix)
            while len(self._listed) > _REMEMBERED:
                self._listed.popitem(last=False)
        return found

    def content(
        self, record: Trial, name: str, *, most: int, attempt: int | None = None, start: int = 0
    ) -> Part | None:
        """Return a part of a file; None if the attempt has no regular file of that very name.

        Of a folder its `version` is the file's identity: a file that only grows keeps it.

        Args:
            name: as `names` has it.
            most: bytes to return at most.
            attempt: None for the present or last one.
            start: first byte; a negative number counts from the end.
        """
        attempt = record.attempt if attempt is None else attempt
        prefix = run_prefix(record.trial, attempt)
        if not attempt or name not in self._names(prefix):
            return None
        key = f"{prefix}/{name}"
        if self._folder is not None:
            return _read_local(self._folder, key, start, most)
        try:
            return self._store.read_part(key, start, most)
        except (NotFound, DamagedObject, ValueError):
            return None

    def tail(self, record: Trial, name: str, lines: int) -> str:
        """Return the last lines of a text file, without secrets; "" if there is none."""
        most = 400 * lines
        try:
            found = self.content(record, name, start=-most, most=most)
        except SweepError:
            return ""
        return "" if found is None else redact(end_of(found.data, lines, is_cut=found.size > most))


def _read_local(folder: Path, key: str, start: int, most: int) -> Part | None:
    """Return bytes of a file that lies in the folder itself: a link of a program's may lead to any file."""
    path = folder.joinpath(*key.split("/"))
    try:
        if not _is_own(folder, key):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            return None
        file.seek(start if start >= 0 else max(0, about.st_size + start))
        return Part(file.read(most), about.st_size, f"{about.st_dev}.{about.st_ino}")


def _is_own(folder: Path, key: str) -> bool:
    """Return whether a key of a store in a folder is no link, and lies behind none."""
    parts = key.split("/")
    return os.path.realpath(folder.joinpath(*parts)) == os.path.join(os.path.realpath(folder), *parts)  # noqa: PTH118
