"""Checkpoints as they are stored: a listing of all of them, what is wrong with each, and its removal.

`copying` publishes and fetches them: `stages/KEY/manifest.json` names the files of one publisher, which lie
in `stages/KEY/000012-1/` (trial and attempt). It is written last and removed first: what a killed publisher
or removal leaves is in no manifest, and nobody starts from it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sweeps.errors import Conflict, DamagedObject, NewerFormat, StoreUnavailable
from sweeps.storage.base import Entry, NotFound, Store
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.manifest import MANIFEST, Stored
from sweeps.storage.run_files.opening import open_client
from sweeps.storage.urls import local_path
from sweeps.text.regular_file import open_regular

STAGES = "stages/"
_OBJECT = re.compile(rf"{STAGES}([0-9a-f]{{64}})/(.+)")
_KEY = re.compile(r"[0-9a-f]{64}")


class StoredFile(NamedTuple):
    """A file of a checkpoint as it is stored; `md5` is in base64, "" where the store knows none."""

    size: int
    version: str
    updated: float
    md5: str = ""


class Manifest(NamedTuple):
    """A checkpoint's manifest: what it names (None if it cannot be read, or is missing) and why not ("")."""

    files: Mapping[str, Stored] | None = None
    version: str | None = None
    problem: str = ""
    is_newer: bool = False


@dataclass(frozen=True, kw_only=True)
class StoredStage:
    """Everything stored under one key.

    Args:
        parts: the files but the manifest, by their names below `stages/KEY/`.
        updated: the store's time of the last change, in seconds since the epoch.
    """

    key: str
    parts: Mapping[str, StoredFile]
    manifest: Manifest
    updated: float

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(part.size for part in self.parts.values())

    @property
    def publisher(self) -> str:
        """Return the folder of the publisher that the manifest names, such as `000012-1`, or ""."""
        return next((publisher(stored.object) for stored in (self.manifest.files or {}).values()), "")

    def leftovers(self) -> dict[str, StoredFile]:
        """Return the files that the manifest does not name: all, if there is none."""
        named = {stored.object for stored in (self.manifest.files or {}).values()}
        return {name: part for name, part in self.parts.items() if name not in named}

    def problem(self) -> str:
        """Return why no trial can start from it, as far as sizes and the store's checksums show, or ""."""
        if self.manifest.files is None:
            return self.manifest.problem or "it has no manifest"
        for name, stored in self.manifest.files.items():
            part = self.parts.get(stored.object)
            if part is None:
                return f"{name} is missing"
            if part.size != stored.size:
                return f"{name} has {part.size} bytes, its manifest says {stored.size}"
            # S3 lists no md5, but nobody writes a file of a checkpoint twice.
            replaced = stored.generation not in ("0", part.version)
            if part.md5 != stored.md5 if part.md5 else replaced:
                return f"{name} has other bytes than its manifest says"
        return ""


def publisher(name: str) -> str:
    """Return the first folder of a file's name below `stages/KEY/`, which is its publisher's."""
    return name.partition("/")[0]


def prefix(key: str) -> str:
    """Return the key prefix of a checkpoint's files: `stages/KEY`."""
    return f"{STAGES}{key}"


def stored_stages(store: Store, *, only: str | None = None) -> list[StoredStage]:
    """Return what is stored of every checkpoint, or of one key. Raises `StoreUnavailable`."""
    entries = store.list(STAGES if only is None else f"{prefix(only)}/")
    keys = {match[1] for entry in entries if (match := _OBJECT.fullmatch(entry.key))}
    if not isinstance(store, Bucket):  # a listing shows no folder with nothing but hidden drafts
        local = isinstance(store, LocalStore)
        base = Path(local_path(store.url), STAGES) if local else store.folder(STAGES.rstrip("/"))
        with suppress(FileNotFoundError, NotADirectoryError):
            folders = {path.name for path in base.iterdir() if _KEY.fullmatch(path.name) and path.is_dir()}
            keys |= {key for key in folders if only in (None, key)}
    # Before the files, which are written first: what is published meanwhile must not look damaged.
    manifests = read_manifests(store, sorted(keys))
    in_bucket: dict[str, dict[str, StoredFile]] = {}
    if isinstance(store, Bucket) and keys:
        updated_at = {entry.key: entry.updated for entry in entries}  # what was listed since is new
        root = STAGES.rstrip("/") if only is None else prefix(only)
        for name, remote in open_client(store, root, Deadline(UploadConfig())).listing().items():
            if match := _OBJECT.fullmatch(object_ := f"{root}/{name}"):
                age = updated_at.get(object_, math.inf)
                part = StoredFile(remote.size, remote.generation, age, remote.md5)
                in_bucket.setdefault(match[1], {})[match[2]] = part
    found = []
    for key, present in manifests.items():
        parts = in_bucket.get(key, {}) if isinstance(store, Bucket) else _files(store.folder(prefix(key)))
        if present.version is not None:
            parts.pop(MANIFEST, None)
        if parts or present.version is not None:  # else an empty folder, or removed meanwhile
            updated = max((part.updated for part in parts.values()), default=0.0)
            found.append(StoredStage(key=key, parts=parts, manifest=present, updated=updated))
    return found


def foreign(entries: Iterable[Entry]) -> list[str]:
    """Return those keys below `stages/` that no version of this program writes."""
    return [entry.key for entry in entries if not _OBJECT.fullmatch(entry.key)]


def read_manifests(store: Store, keys: Iterable[str]) -> dict[str, Manifest]:
    """Return the manifest of each checkpoint by its key; a missing one has no version."""
    names = {key: f"{prefix(key)}/{MANIFEST}" for key in keys}
    if isinstance(store, Bucket):
        found = zip(names, store.read_many(list(names.values())), strict=True)
        return {key: _manifest(content) for key, content in found}
    manifests = {}
    for key, name in names.items():
        try:
            manifests[key] = _manifest(store.read(name))
        except NotFound:
            manifests[key] = Manifest()
        except DamagedObject as error:  # a pipe, a loop of links
            manifests[key] = Manifest(problem=f"its manifest cannot be read: {error.reason}")
    return manifests


def sizes(store: Store, keys: Iterable[str]) -> dict[str, int]:
    """Return the bytes of checkpoints by their manifests, without those that have none."""
    return {
        key: sum(stored.size for stored in found.files.values())
        for key, found in read_manifests(store, keys).items()
        if found.files is not None
    }


def damaged_bytes(store: Store, stage: StoredStage) -> str:
    """Read a folder's files and return what does not have its checksum, or "".

    In a bucket nothing is read: its own checksums are compared by `StoredStage.problem`.
    """
    if isinstance(store, Bucket) or stage.manifest.files is None:
        return ""
    folder = store.folder(prefix(stage.key))
    for name, stored in stage.manifest.files.items():
        try:
            with open_regular(folder / stored.object) as file:
                if manifest.digest(file, stored.size).sha256 != stored.sha256:
                    return f"{name} has other bytes than its manifest says"
        except (OSError, EOFError) as error:
            return f"{name} cannot be read: {getattr(error, 'strerror', None) or error}"
    return ""


def remove(store: Store, stage: StoredStage) -> None:
    """Remove a checkpoint as it was listed, its manifest first; what was written since then stays.

    Raises:
        Conflict: it was published anew since then; nothing was removed.
        StoreUnavailable: some files are left, without a manifest.
    """
    key = f"{prefix(stage.key)}/{MANIFEST}"
    if stage.manifest.version is not None:
        try:
            store.delete(key, stage.manifest.version)
        except Conflict:
            if read_manifests(store, [stage.key])[stage.key].version is not None:
                raise
    remove_files(store, stage.key, stage.parts)


def remove_files(store: Store, key: str, parts: Mapping[str, StoredFile]) -> None:
    """Remove files of a checkpoint as they were listed. Raises `StoreUnavailable`."""
    if isinstance(store, Bucket):
        for name, part in parts.items():
            with suppress(Conflict):  # removed by another program, or written anew
                store.delete(f"{prefix(key)}/{name}", part.version)
        return
    folder = store.folder(prefix(key))
    try:
        for name, part in parts.items():
            with suppress(FileNotFoundError):
                if _version((folder / name).lstat()) == part.version:
                    (folder / name).unlink()
    except OSError as error:
        raise StoreUnavailable(f"{folder}: cannot be removed: {error.strerror or error}") from error
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # something was written there since
            Path(parent).rmdir()


# ---- manifests


def _manifest(content: tuple[bytes, str] | None) -> Manifest:
    if content is None:
        return Manifest()
    data, version = content
    try:
        return Manifest(files=manifest.decode(data), version=version)
    except ValueError as error:
        problem = f"its manifest cannot be read: {error}"
        return Manifest(version=version, problem=problem, is_newer=isinstance(error, NewerFormat))


# ---- files


def _files(folder: Path) -> dict[str, StoredFile]:
    """Return every file below the folder, hidden drafts included."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # removed meanwhile
                status = path.lstat()
                # A file that was moved or linked here keeps its time of modification.
                updated = max(status.st_mtime, status.st_ctime)
                found[path.relative_to(folder).as_posix()] = StoredFile(
                    status.st_size, _version(status), updated
                )
    return found


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
