"""Store in a local (or network-mounted) folder: files, an advisory lock per key, atomic renames.

Writers of one key exclude one another with `filelock`; the kernel drops the lock of a process that dies. The
version is the file's modification time in nanoseconds, which writers under the lock keep strictly increasing:
no two contents of a key share one, and a listing costs one `stat` per object.

A client of NFS remembers for up to a minute which names a folder has, and which files they are. What must not
be decided by that is asked of the server: opening a folder does so, the status of an open file shows whether
it was replaced, and `link` refuses a name that is taken. `make test-nfs` runs two clients.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import NoReturn, TypeVar

from sweeps.errors import AlreadyExists, Busy, Conflict, DamagedObject, StoreUnavailable, WriteRefused
from sweeps.storage.base import Entry, NotFound, Part
from sweeps.storage.keys import checked_key, checked_prefix
from sweeps.text.atomic_file import Draft, steady_times, sync_folder
from sweeps.text.file_locks import require_locks
from sweeps.text.regular_file import MAX_BYTES, kind_of

LOCK_TIMEOUT_S = 5.0
"""Writes take milliseconds: a process that holds a lock for longer is stopped, or its disk hangs."""
_LOCKS = ".locks"
_TRIES = 8
"""Of 4,000 reads of a file that eight processes kept replacing over NFS, one failed after five tries."""
T = TypeVar("T")
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_PERMANENT = (
    *_FORBIDDEN,
    *(errno.EFBIG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENOSYS),
)
"""Errors that retrying cannot mend: no permission, a file where a folder belongs, the reverse, no locks."""


class LocalStore:
    """`Store` in the folder `root`, which the first write creates.

    Args:
        lock_timeout_s: seconds to wait for another writer's lock before `Busy` is raised.
    """

    is_remote = False
    write_interval_s = 0.0

    def __init__(self, root: str | os.PathLike[str], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.url = os.fspath(root)
        self._root = Path(root).absolute()
        self._base = str(self._root)
        self._lock_timeout_s = lock_timeout_s
        self._has_locks = False  # as far as is known
        self._device: int | None = None
        with suppress(OSError):  # whoever uses the folder will say why it cannot
            self._device = self._root.stat().st_dev

    def location(self, key: str) -> str:
        return os.path.join(self.url, key)  # noqa: PTH118 - keeps the `./` that the user typed

    def read(self, key: str) -> tuple[bytes, str]:
        return self._use(key, _content)

    def read_part(self, key: str, start: int, most: int) -> Part:
        def part(fd: int, present: os.stat_result) -> Part | None:
            if not stat.S_ISREG(present.st_mode):
                return None
            size = present.st_size
            # `pread` allocates what it is asked for.
            data = os.pread(fd, min(most, size), start if start >= 0 else max(0, size + start))
            return Part(data, size, _version(present))

        return self._use(key, part)

    def _use(self, key: str, use: Callable[[int, os.stat_result], T | None]) -> T:
        """Return what `use` makes of an object's descriptor and status. Raises as `read`, also for None."""
        # This runs for every record: plain system calls take half of the time of a file object and a `Path`.
        path = f"{self._base}/{checked_key(key)}"
        try:
            try:
                if (found := self._open(path, use)) is not None:
                    return found
            except FileNotFoundError:
                self._require_mounted()
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ELOOP):  # a socket, links in a circle
                self._unavailable("read", Path(path), error)
        if (reason := self.oddity(key)) is None:
            raise NotFound(key, self.location(key))
        raise DamagedObject(key, reason, self.location(key))

    def oddity(self, key: str) -> str | None:
        """Return why the key's file can never be read (a pipe, a dangling link, gigabytes), or None."""
        path = self._path(key)
        try:
            if (kind := kind_of(path)) is not None:
                return f"{kind}, not a regular file"
            present = self._stat(path)
        except OSError as error:
            self._unavailable("read", path, error)
        too_large = present is not None and present.st_size > MAX_BYTES
        return f"larger than {MAX_BYTES // 1024**2} MiB" if too_large else None

    def set_aside(self, key: str, aside: str) -> None:
        """Rename a file for which `oddity` has a reason to the key `aside`.

        Raises:
            Conflict: the key has no such file any more.
        """
        with self._key_lock(key) as path:
            if self.oddity(key) is None:
                raise Conflict(key)
            target = self._path(aside)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        found: list[tuple[bytes, str] | None] = []
        for key in keys:
            try:
                found.append(self.read(key))
            except NotFound:
                found.append(None)
        return found

    def create(self, key: str, data: bytes) -> str:
        with self._key_lock(key) as path:
            try:
                if os.path.lexists(path):  # what NFS does not know of yet, the draft's link will meet
                    raise FileExistsError
                version = self._write(path, data, above=self._last_deleted(key), new=True)
            except FileExistsError:
                if (reason := self.oddity(key)) is not None:
                    raise DamagedObject(key, reason, self.location(key)) from None
                raise AlreadyExists(key) from None
        sync_folder(path.parent)  # without the lock: a writer that is stopped here must not block others
        return version

    def replace(self, key: str, data: bytes, expected: str) -> str:
        with self._key_lock(key) as path:
            present = self._check(key, path, expected)
            version = self._write(path, data, above=present.st_mtime_ns, new=False)
        sync_folder(path.parent)  # without it 5 % more cycles a second, and results that a power cut takes
        return version

    def delete(self, key: str, expected: str) -> None:
        with self._key_lock(key) as path:
            present = self._check(key, path, expected)
            self._deleted_file(key).write_text(str(present.st_mtime_ns), encoding="ascii")
            path.unlink()

    def versions(self, keys: Sequence[str]) -> list[str | None]:
        """Return the present version of each of some objects in one folder, or None where there is none.

        A listing takes a `stat` for each object of the folder, this takes one for each key.
        """
        folder = self._path(keys[0]).parent
        self._refresh(folder)
        try:
            found = [_present(self._path(key)) for key in keys]
            if None in found:
                self._require_mounted()
        except OSError as error:
            self._unavailable("list", folder, error)
        return [None if each is None or stat.S_ISDIR(each.st_mode) else _version(each) for each in found]

    def list(self, prefix: str) -> list[Entry]:
        return sorted(self._below(prefix, _entry))

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that `list` returns, in any order; that takes no `stat` for each."""
        return self._below(
            prefix, lambda key, child: None if child.is_symlink() and not _entry(key, child) else key
        )

    def _below(self, prefix: str, make: Callable[[str, os.DirEntry[str]], T | None]) -> Sequence[T]:
        """Return what `make` makes of each key and file, without None."""
        base = checked_prefix(prefix).rpartition("/")[0]
        folder = f"{self._base}/{base}"
        self._refresh(Path(folder))
        try:
            found = (
                make(*each)
                for each in _walk(folder, f"{base}/" if base else "")
                if each[0].startswith(prefix)
            )
            if not (kept := [each for each in found if each is not None]):
                self._require_mounted()
        except OSError as error:
            self._unavailable("list", Path(folder), error)
        return kept

    def now(self) -> float:
        """Return the file system's time in seconds since the epoch: a network mount has its server's."""
        probe = os.path.join(self._root, f".clock-{os.getuid()}")  # noqa: PTH118 - as above
        try:
            try:
                os.utime(probe)  # stamped by the server
            except FileNotFoundError:
                self._require_mounted()
                self._root.mkdir(parents=True, exist_ok=True)
                open(probe, "ab", opener=steady_times).close()
            return os.stat(probe).st_mtime  # noqa: PTH116 - as above
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
                return time.time()  # good enough for a process that cannot write and only reads ages
            self._unavailable("write", Path(probe), error)

    def folder(self, prefix: str) -> Path:
        folder = self._path(prefix)
        try:
            if not folder.is_dir():
                self._require_mounted()
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._unavailable("make", folder, error)
        return folder

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*checked_key(key).split("/"))

    def _lock_file(self, key: str) -> Path:
        return self._root / _LOCKS / (key.replace("/", "__") + ".lock")

    def _deleted_file(self, key: str) -> Path:
        """Return the path of a file with the key's version that was deleted last.

        The next one must be higher, but clocks of file systems tick every few milliseconds only.
        """
        return self._lock_file(key).with_suffix(".deleted")

    def _last_deleted(self, key: str) -> int:
        """Return the version of the key that was deleted last, in nanoseconds; 0 if there was none."""
        try:
            found = self._open(str(self._deleted_file(key)), _content)
        except FileNotFoundError:
            return 0
        return int(found[0]) if found is not None and found[0].isdigit() else 0

    @contextmanager
    def _key_lock(self, key: str) -> Iterator[Path]:
        """Hold the key's lock and yield its path. Folders that a failed write leaves empty are removed."""
        import filelock  # which commands that only read need not

        path = self._path(key)
        lock = self._lock_file(key)
        missing: list[Path] = []
        try:
            for folder in (path.parent, lock.parent):
                self._refresh(folder)
                missing += takewhile(lambda each: not each.exists(), (folder, *folder.parents))
                if not folder.is_dir():
                    self._require_mounted()
                    folder.mkdir(parents=True, exist_ok=True)
            if not self._has_locks:
                require_locks(lock.parent)
                self._has_locks = True
            with filelock.FileLock(lock, timeout=self._lock_timeout_s):
                try:
                    yield path
                except OSError:
                    if missing:
                        lock.unlink(missing_ok=True)  # a process that waits for it will fail, too
                    raise
        except filelock.Timeout:
            raise Busy(
                key,
                f"{lock}: held by another process for over {self._lock_timeout_s:g} s; "
                "if that process is stuck, end it",
            ) from None
        except OSError as error:
            for folder in sorted(missing, key=lambda folder: len(folder.parts), reverse=True):
                with suppress(OSError):  # in use by another process meanwhile
                    folder.rmdir()
            self._unavailable("write", path, error)

    def _open(self, path: str, use: Callable[[int, os.stat_result], T]) -> T:
        """Open a file and return what `use` makes of its descriptor and status."""
        for tries_left in range(_TRIES - 1, -1, -1):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    present = os.fstat(fd)
                    # NFS opens a file that another machine has replaced, if anybody reads it still.
                    if present.st_nlink or not tries_left:
                        return use(fd, present)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                if tries_left < _TRIES - 1:
                    raise
            except OSError as error:
                if error.errno != errno.ESTALE or not tries_left:  # replaced, and nobody reads it
                    raise
            self._refresh(Path(path).parent)
            if tries_left < _TRIES - 2:
                time.sleep(0.01)  # others replace it all the time
        raise AssertionError("the last try returns or raises")

    def _refresh(self, folder: Path) -> None:
        """Make a client of NFS ask the server for the names in a folder, and in those above it."""
        inner = folder.relative_to(self._root).parts
        for each in (self._root.parent, *(self._root.joinpath(*inner[:n]) for n in range(len(inner) + 1))):
            with suppress(OSError):  # whoever uses the folder will say why it cannot be opened
                os.close(os.open(each, os.O_RDONLY | os.O_DIRECTORY))

    def _require_mounted(self) -> None:
        """Check, where something is missing, that the folder's file system has not been unmounted.

        A worker would take the sweep for deleted, and end; or write a second one below the mount point.

        Raises:
            OSError: it has been, since this store was opened.
        """
        for folder in (self._root, *self._root.parents):
            try:
                device = folder.stat().st_dev
            except (FileNotFoundError, NotADirectoryError):
                continue
            if self._device in (device, None):
                return
            if folder == self._root and any(folder.iterdir()):  # mounted again, with another number
                self._device = device
                return
            raise OSError(errno.ENODEV, "its file system is not mounted any more")

    def _check(self, key: str, path: Path, expected: str) -> os.stat_result:
        """Return the status of the version `expected`; raise `Conflict` if another one is present."""
        self._refresh(path.parent)
        try:
            present = self._open(str(path), lambda fd, found: found)
        except FileNotFoundError:
            raise Conflict(key) from None
        if _version(present) != expected:
            raise Conflict(key)
        return present

    def _write(self, path: Path, data: bytes, above: int, *, new: bool) -> str:
        """Write a file and return its version, a modification time greater than `above`.

        Raises:
            FileExistsError: `new`, and the file exists.
        """
        # One draft per key is enough under its lock: a killed writer leaves one file at most.
        with Draft(path, path.with_name(f".{path.name}.draft")) as draft:
            draft.file.write(data)
            draft.file.flush()
            fd = draft.file.fileno()
            # Whatever the mount's resolution.
            for step in (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000):
                if os.fstat(fd).st_mtime_ns > above:
                    break
                os.utime(fd, ns=(above + step, above + step))
            if os.fstat(fd).st_mtime_ns <= above:
                raise OSError(errno.ENOTSUP, "this file system keeps no usable modification times")
            return _version(draft.commit(new=new))

    def _stat(self, path: Path) -> os.stat_result | None:
        try:
            return path.stat()
        except FileNotFoundError:
            return None

    def _unavailable(self, verb: str, path: Path, error: OSError) -> NoReturn:
        what = error.strerror or type(error).__name__
        kind = WriteRefused if error.errno in _PERMANENT else StoreUnavailable
        raise kind(f"{path}: cannot {verb}: {what.lower()}; {_advice(error, verb)}") from error


def _content(fd: int, present: os.stat_result) -> tuple[bytes, str] | None:
    """Return bytes and version of an open file; None if it is no regular file, or too large."""
    if not stat.S_ISREG(present.st_mode) or present.st_size > MAX_BYTES:
        return None
    return _read_all(fd, present.st_size), _version(present)


def _read_all(fd: int, size: int) -> bytes:
    """Return the bytes of an open file, whose size was `size` when it was opened."""
    data = os.read(fd, size + 1)
    if len(data) != size:  # somebody edits it in place, or a call ended early
        while more := os.read(fd, 2**16):
            data += more
    return data


def _advice(error: OSError, verb: str) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "free some space; nothing was half-written"
        case code if code in _FORBIDDEN and verb in ("read", "list"):
            return "ask for permission to read it, or give a copy that you may read"
        case code if code in _FORBIDDEN:
            return "choose a folder that you may write to with --storage"
        case errno.EFBIG:
            return "this process may not write files of that size; lift the limit (ulimit -f)"
        case errno.EISDIR:
            return f"expected a file, found a folder ({error.filename}); move it away"
        case errno.ELOOP:
            return f"links lead round in a loop ({error.filename}); move them away"
        case errno.ENOSYS:
            return "mount it with -o flock, or use a bucket"
        case errno.ENOTDIR | errno.EEXIST:
            return "expected a folder, found a file; choose another --storage"
        case _:
            return "check the disk or the mount"


def _version(present: os.stat_result) -> str:
    return str(present.st_mtime_ns)


def _walk(folder: str, base: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield key and entry of everything below the folder that is none; hidden names are not objects.

    This runs for every trial: strings and `scandir` take a fifth of the time of `Path.rglob`.
    """
    try:
        with os.scandir(folder) as found:
            children = [child for child in found if not child.name.startswith(".")]
    except FileNotFoundError:
        return
    for child in children:
        if child.is_dir(follow_symlinks=False):
            yield from _walk(child.path, f"{base}{child.name}/")
        else:
            yield base + child.name, child


def _entry(key: str, child: os.DirEntry[str]) -> Entry | None:
    """Return the object in a listing; None if it is gone, or a link to a folder."""
    present = _present(child)
    if present is None or stat.S_ISDIR(present.st_mode):
        return None
    return Entry(key, _version(present), present.st_mtime)


def _present(child: os.DirEntry[str] | Path) -> os.stat_result | None:
    """Return the status of a link's target, of a dangling link itself (`read` explains it), None if gone."""
    try:
        return child.stat()
    except OSError as error:
        if child.is_symlink() and error.errno in (errno.ENOENT, errno.ELOOP):
            with suppress(FileNotFoundError):
                return child.stat(follow_symlinks=False)
            return None
        if error.errno == errno.ENOENT:
            return None
        raise
