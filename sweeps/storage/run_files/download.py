"""Download of a run folder from a bucket, as its last manifest describes it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Set
from pathlib import Path
from typing import IO

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.storage.base import NotFound
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket, Changed, Remote
from sweeps.storage.run_files.exchange import Deadline
from sweeps.storage.run_files.manifest import MANIFEST, Stored
from sweeps.storage.run_files.opening import open_client
from sweeps.text.atomic_file import Draft
from sweeps.text.regular_file import open_regular

log = logging.getLogger(__name__)

_ATTEMPTS = 3  # bytes may be damaged in transit, and a growing file may be rewritten meanwhile


class FolderDownload:
    """Download of the files below `prefix` whose names begin with `below`, into `folder`."""

    def __init__(
        self, store: Bucket, prefix: str, folder: Path, deadline: Deadline, *, below: str = ""
    ) -> None:
        self._store, self._prefix, self._folder = store, prefix, folder
        self._client = open_client(store, prefix, deadline)
        self._below = below
        self._written: set[str] = set()

    def run(self, *, level: int = logging.WARNING) -> tuple[str, ...] | None:
        """Return the names of the files that are in the folder now, or None without a complete upload.

        Args:
            level: of the line in the log that says so.
        """
        key = f"{self._prefix}/{MANIFEST}"
        for _ in range(_ATTEMPTS):
            try:
                files = manifest.decode(self._store.read(key)[0])
            except NotFound:
                break
            except ValueError as error:
                where = self._store.location(key)
                log.warning("%s: not a manifest (%s); the upload is ignored", where, error)
                break
            files = {name: stored for name, stored in files.items() if name.startswith(self._below)}
            try:
                objects = self._client.listing()
                present = {name for name, stored in files.items() if _is_present(stored, objects)}
                for name, stored in files.items():
                    if name not in present and not stored.growing:
                        where = self._store.location(f"{self._prefix}/{stored.object}")
                        raise Changed(f"{where}: it is not there as its manifest says")
                self._remove_written(files.keys())
                return tuple(sorted(n for n in files if n in present and self._fetch(n, files[n])))
            except Changed as changed:  # a worker still uploads, or an object was removed
                log.info("%s", changed)
        else:
            log.log(level, "%s: an incomplete upload is ignored", self._store.location(self._prefix))
        self._remove_written(frozenset())
        return None

    def _remove_written(self, kept: Set[str]) -> None:
        """Remove what was written for an earlier manifest, except for `kept`."""
        for name in self._written - kept:
            (self._folder / name).unlink(missing_ok=True)
        self._written &= kept

    def _fetch(self, name: str, stored: Stored) -> bool:
        """Write the complete file into the folder; return False for a growing file that was rewritten."""
        target = self._folder / name
        try:
            if target.is_file() and not target.is_symlink() and target.stat().st_size == stored.size:
                with open_regular(target) as file:
                    if manifest.digest(file, stored.size).sha256 == stored.sha256:
                        return True  # written by an interrupted download
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(self._folder.resolve()):
                raise EnvironmentFault(f"{target.parent}: this link leads out of {self._folder}; remove it")
            with Draft(target, target.with_name(f".{uuid.uuid4().hex}.draft")) as draft:
                if not self._receive(name, stored, draft.file):
                    return False
                draft.commit()
            self._written.add(name)
        except OSError as error:
            raise EnvironmentFault(
                f"{target}: cannot be written: {(error.strerror or str(error)).lower()}; free some space, or "
                "let SWEEP_SCRATCH name a folder that you may write to"
            ) from error
        return True

    def _receive(self, name: str, stored: Stored, file: IO[bytes]) -> bool:
        generation = stored.generation
        for _ in range(_ATTEMPTS):
            file.seek(0)
            file.truncate()
            try:
                if stored.growing:
                    generation = self._client.stat(stored.object).generation
                self._client.get(stored.object, generation, stored.size, file)
            except Changed:
                if not stored.growing:
                    raise
                continue
            if manifest.digest(file, stored.size).sha256 == stored.sha256:
                return True
        if stored.growing:
            log.warning("%s: left out, it was rewritten since its manifest", self._store.location(name))
            return False
        raise StoreUnavailable(
            f"{self._store.location(f'{self._prefix}/{stored.object}')}: its bytes arrive damaged; try again"
        )


def _is_present(stored: Stored, objects: Mapping[str, Remote]) -> bool:
    found = objects.get(stored.object)
    if found is None:
        return False
    if stored.growing:
        return found.size >= stored.size
    # Not every service reports an md5; a generation has one content, too.
    same = (found.generation, found.size) == (stored.generation, stored.size)
    return same and found.md5 in (stored.md5, "")
