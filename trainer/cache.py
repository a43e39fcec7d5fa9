"""Artifacts that are built once per machine and shared by every process: corpora, tokenizers, teachers.

    <cache root>/<kind>/<key>/            a finished artifact and its manifest.json
    <cache root>/<kind>/.<key>.lock       held while a process builds it
    <cache root>/<kind>/.<key>.<…>.tmp/   the builder's working folder

The key is a hash of the artifact's inputs. An artifact appears by one atomic rename, after everything in it
is on the disk; so a folder without a dot is complete, or was damaged later. The lock only saves duplicate
work: readers do not take it. Used by `trainer.data` and `trainer.teachers`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic_core import from_json

from sweeps.text.atomic_file import sync
from sweeps.text.file_locks import require_locks
from sweeps.text.regular_file import open_regular, read_regular
from trainer.errors import TrainerError

ROOT_VARIABLE = "STAGESWEEP_CACHE"
MANIFEST = "manifest.json"
PATIENCE_S = 5.0  # a longer wait for another builder is logged

_log = logging.getLogger(__name__)
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class CacheError(TrainerError):
    """The cache folder cannot be used (read-only, full, not a folder)."""

    def __init__(self, reason: str, path: Path) -> None:
        self.reason, self.path = reason, path
        super().__init__(
            f"cannot use the cache at {path}: {reason}; make room there or make it writable, "
            f"or set {ROOT_VARIABLE} to another folder"
        )


def cache_root() -> Path:
    """Return the folder of all artifacts, which may not exist: $STAGESWEEP_CACHE or ~/.cache/stagesweep."""
    chosen = os.environ.get(ROOT_VARIABLE) or "~/.cache/stagesweep"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:  # no home directory
        raise CacheError("there is no home directory", Path(chosen)) from None


def artifact(kind: str, spec: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the folder of the artifact that `spec` describes; built now if it is not there.

    Of several processes one builds, and the others wait for it; on a file system without locks each builds,
    and the first that is done wins. A builder that raises or is killed leaves nothing that counts as
    finished. An artifact with a missing or truncated file is built anew.

    Args:
        kind: a folder name for artifacts of one kind, such as "corpora".
        spec: everything that determines the artifact's content, as JSON values.
        build: fills the empty folder that it is called with.

    Raises:
        CacheError: the cache folder cannot be read or written.
    """
    canonical = _canonical(spec)
    key = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    parent = cache_root() / kind
    final = parent / key
    if _is_intact(final, canonical):
        return final
    with _cache_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        if _has_locks(parent):
            with locked(parent / f".{key}.lock"):
                if not _is_intact(final, canonical):  # no other process was faster
                    _remove_leftovers(parent, key)
                    _build(final, canonical, build)
        else:  # what builders that died have left stays: whose is it?
            _build(final, canonical, build)
    return final


def _has_locks(folder: Path) -> bool:
    # Without them, a lock of `filelock` is a file that stays where a machine dies: all others would wait.
    try:
        require_locks(folder)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _canonical(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _is_intact(folder: Path, canonical: str) -> bool:
    """Return whether the artifact is there and every file has its length: one stat per file."""
    try:
        manifest = from_json(read_regular(folder / MANIFEST))
        return _canonical(manifest["spec"]) == canonical and all(
            (folder / name).stat().st_size == entry["size"] for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False  # absent, or damaged: it is built anew


def _build(final: Path, canonical: str, build: Callable[[Path], None]) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent))
    try:
        build(work)
        _seal(work, from_json(canonical))
        if _is_intact(final, canonical):  # without locks, another process was faster
            return
        damaged = work.with_suffix(".damaged.tmp")
        try:
            final.rename(damaged)
        except FileNotFoundError:
            pass  # nothing was damaged
        else:
            if _is_intact(damaged, canonical):  # without locks, another process was faster after all
                with suppress(OSError):
                    damaged.rename(final)
            else:
                _log.warning("rebuilding the damaged artifact %s", final)
        try:
            work.rename(final)
        except OSError:
            if not _is_intact(final, canonical):
                raise
        sync(final.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(work.with_suffix(".damaged.tmp"), ignore_errors=True)


def _seal(work: Path, spec: Any) -> None:
    """Write the manifest, and flush everything to the disk before the rename makes it visible."""
    work.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from other users
    files = sorted(path for path in work.rglob("*") if path.is_file())
    manifest = {
        "spec": spec,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": {
            path.relative_to(work).as_posix(): {"size": path.stat().st_size, "sha256": file_digest(path)}
            for path in files
        },
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    folders = [path for path in work.rglob("*") if path.is_dir()]
    for path in (*files, work / MANIFEST, *folders, work):
        sync(path)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file between processes; log a warning if waiting for it takes long."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE_S)
    except Timeout:
        _log.warning("another process is building what this one needs; waiting for %s", path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(parent: Path, own_key: str) -> None:
    """Delete the working folders of builders that died: their lock is ours, or free."""
    for work in parent.glob(".*.tmp"):
        key = work.name.split(".")[1]
        if key == own_key:
            shutil.rmtree(work, ignore_errors=True)
            continue
        lock = FileLock(parent / f".{key}.lock")
        try:
            with lock.acquire(timeout=0):
                shutil.rmtree(work, ignore_errors=True)
        except Timeout:
            continue  # its builder is alive


@contextmanager
def _cache_errors(parent: Path) -> Iterator[None]:
    """Raise CacheError for a cache folder that cannot be used; pass on all other errors of a build."""
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str | os.PathLike) else None
        within = named is not None and Path(named).is_relative_to(parent)
        above = named is not None and parent.is_relative_to(named)  # what mkdir(parents=True) could not make
        if within or error.errno in _DISK_FAULTS or above:
            raise CacheError(error.strerror or str(error), parent) from error
        raise
    except Exception as error:
        # Libraries in Rust (safetensors, tokenizers) report a full disk as text only.
        if os.strerror(errno.ENOSPC) in str(error):
            raise CacheError(str(error), parent) from error
        raise
