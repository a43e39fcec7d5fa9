"""Copy of a sweep into another storage (`sweep copy`): between folders and buckets, in any direction.

`copying.json` in the target says whose copy is begun there; `sweep.json` comes last, once all was compared:
until then there is no sweep in the target. Called again after an interruption, it goes on, and sends nothing
again that is there. The source is only read. Leases are not copied, and versions are the target's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from sweeps.errors import AlreadyExists, Conflict, DamagedObject, EnvironmentFault, InputError, StoreConflict
from sweeps.experiment import REMOTE_EXPIRE_S, Experiment
from sweeps.operations.opening import sweeps_near
from sweeps.search.allocation import ASK_KEY
from sweeps.storage.base import NotFound, Store, put
from sweeps.storage.keys import COPYING_KEY, SWEEP_KEY
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket, Changed, Remote
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.manifest import MANIFEST, Digest, Stored
from sweeps.storage.run_files.opening import open_client
from sweeps.storage.run_files.scan import is_growing, scan, unit_of
from sweeps.storage.urls import is_remote, join, local_path, name_of, open_store, parent
from sweeps.text import json_reader
from sweeps.text.atomic_file import Draft, sync_folder
from sweeps.text.counted import counted
from sweeps.text.regular_file import NotRegular, open_regular
from sweeps.text.shorten import shown_bytes
from sweeps.trials import lifecycle, packs
from sweeps.trials import record as trial
from sweeps.upkeep import renaming
from sweeps.upkeep.removal import living, require_known, require_uploaded

_T = TypeVar("_T")

_RUN = re.compile(r"(runs/\d{6}/attempt-\d+)/.+")
_STAGE = re.compile(r"(stages/[0-9a-f]{64})/.+")
_OBJECTS = ("trials/", "amendments/", "actions/", "quarantine/")
"""Prefixes of what is read and written whole, as all that lies in no folder is; other folders have files."""
# What a pool of workers leaves beside their logs: by it, `sweep down` of the copy would end the original's
# workers, and their environment, which only its owner may read, would be in a bucket.
_POOL = r"logs/[^/]+/(pool\.json|workers\.wanted|launched\.json|leave-[^/]*|[^/]*\.(sh|yaml|pkl))"
_NEVER = re.compile(
    rf"{SWEEP_KEY}|{COPYING_KEY}|{ASK_KEY}|{renaming.KEY}|{packs.PREFIX}.*|probe-[0-9a-f]{{16}}|{_POOL}"
)
_AT_ONCE = 8
_BATCH = 500  # objects that are read at once
_COMMIT_S = 5.0  # least seconds between two versions of a manifest, of which GCS takes one a second
_NOTICE_S = 30.0
_TRIES = 3


@dataclass(kw_only=True)
class Copied:
    """Result of `copy`.

    Args:
        url: of the copy.
        objects: that were written, with their `size` in bytes.
        present: objects that were there already, by an earlier call.
        left_out: what was not copied, with the reason.
        released: trials that were running, and are pending in the copy.
    """

    url: str
    objects: int = 0
    size: int = 0
    present: int = 0
    left_out: list[str] = field(default_factory=list)
    released: list[int] = field(default_factory=list)


class _Folder(NamedTuple):
    """A prefix whose files are copied one by one: a run's, a stage's, or another one without a manifest."""

    prefix: str
    kind: str


def copy(source: str, target: str, *, live: bool, on_notice: Callable[[str], None]) -> Copied:
    """Copy the sweep at the URL `source` to the URL `target`, and verify the copy.

    Args:
        live: copy it though workers are at work; their trials are pending in the copy.
        on_notice: gets a line about what is to be done.

    Raises:
        InputError: `source` is no sweep, or workers hold leases in it; `target` holds something else, or
            cannot hold a sweep. Nothing was changed that was there.
        NewerObject: a later version wrote something in `source`. Nothing was changed.
        EnvironmentFault: it was interrupted; the next call goes on.
    """
    for url in (source, target):
        if not is_remote(url) and Path(local_path(url)).is_file():
            raise InputError(f"{url}: this is a file; give the folder or the bucket's URL of a sweep")
    here = _sweep_at(source)
    there = _target_at(here.store, target)
    try:
        if there.read(SWEEP_KEY)[0] != here.store.read(SWEEP_KEY)[0]:
            raise InputError(f"{target}: another sweep is here; choose another place")
        complete = True
    except NotFound:
        complete = False
    require_known(here)
    if (workers := living(here, wait=not live)) and not live:
        raise InputError(
            f"{source}: {counted(len(workers), 'worker')} still at work ({', '.join(workers[:3])}); copy it "
            "when they have left (`sweep down` or `sweep stop`), or with --live: their trials are pending in "
            "the copy"
        )
    if not live:
        require_uploaded(here, "copied")
    if is_remote(there.url) and here.space.lease.expire_s < REMOTE_EXPIRE_S:
        on_notice(
            f"lease.expire_s stays {here.space.lease.expire_s:g} in {there.url}, below the "
            f"{REMOTE_EXPIRE_S:g} of sweeps made in a bucket: a worker that is cut off for longer loses its "
            "trial"
        )
    work = _Copy(here, there, live=live)
    try:
        work.run(complete=complete, on_notice=on_notice)
    except StoreConflict as lost:
        raise InputError(
            f"{target}: somebody else writes {lost.key} here, such as another `sweep copy`; wait until that "
            "has ended, then run the same command again"
        ) from None
    return work.done


def _sweep_at(url: str) -> Experiment:
    store = open_store(url)
    try:
        found = store.read(SWEEP_KEY)
    except NotFound:
        raise InputError(f"{url}: no sweep here to copy; {sweeps_near(url) or 'see `sweep list`'}") from None
    with suppress(NotFound, ValueError, KeyError, TypeError):
        if json_reader.parse(store.read(renaming.KEY)[0])["sweep"] == found[1]:
            raise InputError(f"{url}: it is being renamed; `sweep rename` goes on with that, then copy it")
    return Experiment.open(store)


def _target_at(source: Store, url: str) -> Store:
    """Return the store at the URL, which holds nothing or a copy of the sweep. Raises `InputError`."""
    if is_remote(url):
        join(parent(url), name_of(url))  # raises for a whole bucket
    elif isinstance(source, LocalStore):
        old, new = Path(local_path(source.url)).resolve(), Path(local_path(url)).resolve()
        if old == new or old in new.parents or new in old.parents:
            raise InputError(f"{url}: a copy of {source.url} must lie outside of it; choose another place")
    store = open_store(url)
    if store.url == source.url:
        raise InputError(f"{url}: this is the sweep to copy itself; choose another place")
    keys = {entry.key for entry in store.list("")}
    if keys and not keys & {SWEEP_KEY, COPYING_KEY}:
        place = f"give a place of its own, such as {join(url, name_of(source.url))}"
        raise InputError(f"{url}: there is something here that is no copy of a sweep; {place}")
    return store


class _Copy:
    """One call of `copy`."""

    def __init__(self, source: Experiment, target: Store, *, live: bool) -> None:
        self._experiment, self._source, self._target, self._live = source, source.store, target, live
        self._deadline = Deadline(UploadConfig())
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}  # SHA-256 of each object, and of each file in a folder, by key
        self._sent: dict[str, Stored] = {}  # files in a bucket, by key
        self._links: set[str] = set()
        self._remote: dict[str, Remote] = {}  # all that is in the target's bucket, but objects
        self.done = Copied(url=target.url)

    def run(self, *, complete: bool, on_notice: Callable[[str], None]) -> None:
        """Copy and verify. With `complete` there is a `sweep.json` in the target: only compare objects."""
        if self._mark(complete=complete):
            return
        versions = {entry.key: entry.version for entry in self._source.list("")}
        objects, folders = _objects_and_folders(versions, in_bucket=isinstance(self._source, Bucket))
        before = {entry.key: entry.version for entry in self._target.list("")}
        if not complete and (there := sum(key in before for key in versions)):
            on_notice(f"{there} of {counted(len(versions), 'object')} are in {self._target.url} already")
        # Records are read before files: what a record calls stored was there when it was read. Of what a
        # worker removes meanwhile, trials compute the stage.
        contents = self._contents(objects)
        if not complete:
            if isinstance(self._target, Bucket):
                for top in {folder.prefix.partition("/")[0] for folder in folders}:
                    listed = open_client(self._target, top, self._deadline).listing()
                    self._remote |= {f"{top}/{name}": found for name, found in listed.items()}
            self._each(self._copy_folder, folders, on_notice)
            batches = [objects[i : i + _BATCH] for i in range(0, len(objects), _BATCH)]
            self._each(lambda keys: self._write(keys, contents, before), batches, on_notice)
            self._remove_others(before)
        self._verify(complete=complete)
        now = {entry.key: entry.version for entry in self._source.list("")}
        runs = [f"{folder.prefix}/{MANIFEST}" for folder in folders if folder.kind == "run"]
        fixed = [*objects, *(runs if isinstance(self._source, Bucket) else ())]
        if not self._live and (changed := sorted(key for key in fixed if now.get(key) != versions.get(key))):
            raise InputError(
                f"{self._source.location(changed[0])}: it changed during the copy; `sweep pause`, wait for "
                "the workers, then run the same command again"
            )
        if complete:
            self.done.present = len(versions)
            return
        try:
            self._target.create(SWEEP_KEY, self._source.read(SWEEP_KEY)[0])
        except AlreadyExists:
            raise InputError(f"{self._target.url}: somebody made a sweep here meanwhile") from None
        self.done.objects += 1
        self._target.delete(COPYING_KEY, self._target.read(COPYING_KEY)[1])

    def _mark(self, *, complete: bool) -> bool:
        """Note whose copy is begun here; return whether it is complete, but for the removal of this note."""
        url = self._source.url
        document = {
            "schema": 1,
            "from": str(Path(local_path(url)).resolve()) if isinstance(self._source, LocalStore) else url,
            "sweep": hashlib.sha256(self._source.read(SWEEP_KEY)[0]).hexdigest(),
        }
        try:
            if not complete:
                self._target.create(COPYING_KEY, json.dumps(document, indent=1).encode())
                return False
            found, version = self._target.read(COPYING_KEY)
        except NotFound:
            return False
        except AlreadyExists:
            found, version = self._target.read(COPYING_KEY)
        try:
            present = json_reader.parse(found)
            other = str(present.get("from")) if present != document else ""
        except (ValueError, AttributeError):
            other = "something else"
        if other:
            raise InputError(
                f"{self._target.url}: a copy of {other} was begun here; choose another place, or remove what "
                "is here"
            )
        if complete:
            self._target.delete(COPYING_KEY, version)
        return complete

    # ---- objects

    def _contents(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes to store under each key; a running trial is pending in the copy."""
        found: dict[str, bytes] = {}
        now, expire_s = self._source.now(), self._experiment.space.lease.expire_s
        for i in range(0, len(keys), _BATCH):
            batch = keys[i : i + _BATCH]
            try:
                contents = self._source.read_many(batch)
            except DamagedObject as error:
                raise InputError(f"{error}; `sweep doctor` says more") from None
            for key, content in zip(batch, contents, strict=True):
                if content is None:
                    continue
                found[key] = content[0]
                self._digests[key] = hashlib.sha256(content[0]).hexdigest()
                if not (self._live and key.startswith(trial.PREFIX)):
                    continue
                with suppress(ValueError):  # a damaged record is copied as it is
                    record = trial.decode(content[0])
                    leased = record.status == "running" and record.heartbeat is not None
                    if leased and not lifecycle.is_stale(record, now, expire_s):
                        gone = lifecycle.Release(
                            worker=record.worker or "", attempt=record.attempt, detail="copied while it ran"
                        )
                        found[key] = trial.encode(lifecycle.apply(record, gone, now), uuid.uuid4().hex)
                        self._digests[key] = hashlib.sha256(found[key]).hexdigest()
                        self.done.released.append(record.trial)
        return found

    def _write(self, keys: Sequence[str], contents: Mapping[str, bytes], before: Mapping[str, str]) -> None:
        """Store the objects that the target does not have as they are."""
        there = [key for key in keys if key in before]
        present = dict(zip(there, self._target.read_many(there), strict=True))
        for key in keys:
            if (data := contents.get(key)) is None:
                continue
            found = present.get(key)
            if found is not None and found[0] == data:
                with self._lock:
                    self.done.present += 1
                continue
            self._deadline.check()
            if found is None:
                self._target.create(key, data)
            else:
                self._target.replace(key, data, found[1])
            self._count(len(data))

    def _remove_others(self, before: Mapping[str, str]) -> None:
        """Remove what an earlier call copied and the source has lost since."""
        for key, version in before.items():
            copied = key in self._digests or key in self._sent or key in self._links
            if not copied and not _NEVER.fullmatch(key):
                with suppress(Conflict):
                    self._target.delete(key, version)

    # ---- files

    def _copy_folder(self, folder: _Folder) -> None:
        for tried in range(_TRIES):
            try:
                files = self._files(folder)
                if isinstance(self._target, Bucket):
                    self._into_bucket(self._target, folder, files, again=tried > 0)
                else:
                    self._into_folder(folder, files)
            except Changed:  # a worker still writes there, or the files are not as their manifest says
                continue
            return
        if isinstance(self._target, Bucket):
            with suppress(NotFound):  # one of a part of the files would pass for a whole stage
                key = f"{folder.prefix}/{MANIFEST}"
                self._target.delete(key, self._target.read(key)[1])
        self._leave_out(folder.prefix, "its files are not as its manifest says, or somebody writes them")

    def _files(self, folder: _Folder) -> dict[str, Stored]:
        """Return the files of a folder by name; without a manifest their checksums are not known yet."""
        if isinstance(self._source, Bucket) or folder.kind == "stage":
            try:
                return manifest.decode(self._source.read(f"{folder.prefix}/{MANIFEST}")[0])
            except (NotFound, ValueError):
                self._leave_out(folder.prefix, "no manifest names its files")
                return {}
        root = self._source.folder(folder.prefix)
        below = root.iterdir() if folder.kind == "other" else root.rglob("*")
        every = [path for path in sorted(below) if path.is_symlink() or not path.is_dir()]
        names = {path.relative_to(root).as_posix(): path for path in every}
        names = {
            name: path for name, path in names.items() if not _NEVER.fullmatch(f"{folder.prefix}/{name}")
        }
        if isinstance(self._target, Bucket):
            fit = scan(root, folder.prefix).keys() & names.keys()
            why = "a draft, may hold keys, or is a link out of its folder: a bucket holds none of these"
        else:
            fit = {name for name, path in names.items() if path.is_file() and not path.is_symlink()}
            why = "no regular file"
            for name in [name for name, path in names.items() if path.is_symlink()]:
                link, to = self._target.folder(folder.prefix) / name, names.pop(name).readlink()
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(to)
                self._links.add(f"{folder.prefix}/{name}")
                self._count(0)
        for name in names.keys() - fit:
            self._leave_out(f"{folder.prefix}/{name}", why)
        return {
            name: Stored(object=name, generation="0", size=0, sha256="", md5="", growing=is_growing(name))
            for name in sorted(fit)
        }

    @contextmanager
    def _open(self, folder: _Folder, name: str, stored: Stored) -> Iterator[tuple[IO[bytes], Digest]]:
        """Yield a file of the source with its digest. Raises `Changed` if it is not as its manifest says."""
        with ExitStack() as stack:
            if isinstance(self._source, Bucket):
                # The service sends one range after another; a file on this machine is read twice.
                file: IO[bytes] = stack.enter_context(
                    tempfile.TemporaryFile(dir=os.environ.get("SWEEP_SCRATCH") or None)
                )
                client = open_client(self._source, folder.prefix, self._deadline)
                generation = client.stat(stored.object).generation if stored.growing else stored.generation
                client.get(stored.object, generation, stored.size, file)
                file.flush()
                content = manifest.digest(file, stored.size)
            else:
                path = self._source.folder(folder.prefix) / (
                    stored.object if folder.kind == "stage" else name
                )
                try:
                    file = stack.enter_context(open_regular(path))
                    content = manifest.digest(file, os.fstat(file.fileno()).st_size)
                except (FileNotFoundError, NotRegular, IsADirectoryError, EOFError):
                    raise Changed(f"{path}: it is not there any more") from None
            if stored.sha256 not in ("", content.sha256):
                raise Changed(
                    f"{self._source.location(f'{folder.prefix}/{stored.object}')}: it has other bytes"
                )
            file.seek(0)
            yield file, content

    def _into_bucket(
        self, target: Bucket, folder: _Folder, files: Mapping[str, Stored], *, again: bool
    ) -> None:
        """Copy files into a bucket, with a manifest that names the target's generations."""
        client = open_client(target, folder.prefix, self._deadline)
        key, has_manifest = f"{folder.prefix}/{MANIFEST}", folder.kind != "other"
        version, written = None, {}
        if has_manifest and (again or key in self._remote):
            with suppress(NotFound):
                data, version = target.read(key)
                with suppress(ValueError):
                    written = manifest.decode(data)
        entries: dict[str, Stored] = {}
        last, committed = time.monotonic(), written

        def commit() -> None:
            nonlocal version, last, committed
            if has_manifest and entries and entries != committed:
                data = manifest.encode(entries)
                version = put(target, key, data, version)
                last, committed = time.monotonic(), dict(entries)

        for name, stored in files.items():
            object_ = stored.object
            if folder.kind == "run" and object_ == MANIFEST:  # a program's own file of this name
                object_ = f"{MANIFEST}.file"
            present = self._remote.get(f"{folder.prefix}/{object_}", Remote("0", 0, ""))
            known = Digest(size=stored.size, sha256=stored.sha256, md5=stored.md5) if stored.sha256 else None
            earlier = written.get(name)
            with ExitStack() as stack:
                file: IO[bytes] | None = None
                if known is None or not _has(present, earlier, object_, known):
                    file, known = stack.enter_context(self._open(folder, name, stored))
                if file is not None and not _has(present, earlier, object_, known):
                    present = client.put(
                        object_, file, known, replaces=present.generation, growing=stored.growing
                    )
                    self._count(known.size)
                else:
                    with self._lock:
                        self.done.present += 1
            if earlier is not None and _is_of(earlier, object_, present) and earlier.sha256 == known.sha256:
                entries[name] = earlier  # with the md5, which a manifest in a folder lacks
                continue
            entries[name] = Stored(
                object=object_,
                generation=present.generation,
                size=known.size,
                sha256=known.sha256,
                md5=known.md5,
                growing=stored.growing,
            )
            if time.monotonic() - last > _COMMIT_S:  # what was sent is not sent again by the next call
                commit()
        commit()
        self._sent |= {f"{folder.prefix}/{stored.object}": stored for stored in entries.values()}
        if has_manifest and entries:
            self._digests[key] = hashlib.sha256(manifest.encode(entries)).hexdigest()

    def _into_folder(self, folder: _Folder, files: Mapping[str, Stored]) -> None:
        """Copy files into a folder; only a stage has a manifest there."""
        root = self._target.folder(folder.prefix)
        torn: set[str] = set()
        written: dict[str, str] = {}
        for name, stored in files.items():
            path = root / (stored.object if folder.kind == "stage" else name)
            try:
                present = _digest(path)
                if stored.sha256 and present == stored.sha256:
                    written[path.relative_to(root).as_posix()] = present
                    with self._lock:
                        self.done.present += 1
                    continue
                with self._open(folder, name, stored) as (file, content):
                    if content.sha256 == present:
                        with self._lock:
                            self.done.present += 1
                    else:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        # Of one name for each file, so that the next copy removes what a killed one left.
                        hidden = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.draft"
                        with Draft(path, path.with_name(hidden)) as draft:
                            for block in manifest.blocks(file, content.size):
                                self._deadline.check()
                                draft.file.write(block)
                            draft.commit()
                        sync_folder(path.parent)
                        self._count(content.size)
                    written[path.relative_to(root).as_posix()] = content.sha256
            except Changed:
                if stored.sha256:
                    raise
                torn.add(unit_of(name))  # a program rotates its checkpoints meanwhile
                self._leave_out(f"{folder.prefix}/{name}", "it went during the copy")
            except OSError as error:
                raise EnvironmentFault(
                    f"{path}: cannot be copied: {(error.strerror or str(error)).lower()}; then run it again"
                ) from error
        for name in [name for name in written if unit_of(name) in torn]:
            (root / name).unlink(missing_ok=True)
            del written[name]
        self._digests |= {f"{folder.prefix}/{name}": digest for name, digest in written.items()}
        if folder.kind == "stage" and files:
            data = manifest.encode({name: replace(stored, generation="0") for name, stored in files.items()})
            key = f"{folder.prefix}/{MANIFEST}"
            try:
                self._target.create(key, data)
            except AlreadyExists:
                found, version = self._target.read(key)
                if found != data:
                    self._target.replace(key, data, version)
            self._digests[key] = hashlib.sha256(data).hexdigest()

    # ---- verification

    def _verify(self, *, complete: bool) -> None:
        """Compare what the target has now with what was read. Raises `InputError` or `EnvironmentFault`."""
        differs: list[str] = []
        in_folder = not isinstance(self._target, Bucket)
        files = [key for key in self._digests if in_folder and not _is_object(key)]
        root = Path(local_path(self._target.url)) if in_folder else Path()
        differs += [key for key in files if _digest(root / key) != self._digests[key]]
        objects = [key for key in self._digests if not in_folder or _is_object(key)]
        for i in range(0, len(objects), _BATCH):
            batch = objects[i : i + _BATCH]
            for key, content in zip(batch, self._target.read_many(batch), strict=True):
                if content is None or hashlib.sha256(content[0]).hexdigest() != self._digests[key]:
                    differs.append(key)
        if isinstance(self._target, Bucket):
            for top in {key.partition("/")[0] for key in self._sent}:
                listing = open_client(self._target, top, self._deadline).listing()
                self._remote |= {f"{top}/{name}": found for name, found in listing.items()}
            for key, stored in self._sent.items():
                remote = self._remote[key] if key in self._remote else Remote("0", 0, "")
                known = Digest(size=stored.size, sha256=stored.sha256, md5=stored.md5)
                if remote.generation != stored.generation or remote.contradicts(known):
                    differs.append(key)
        if differs:
            where = self._target.location(differs[0])
            if complete:
                raise InputError(
                    f"{where}: this sweep was copied here before, and one of the two has changed since; "
                    "choose another place"
                )
            raise EnvironmentFault(f"{where}: it is not as it was copied; run the same command again")

    # ---- bookkeeping

    def _count(self, size: int) -> None:
        with self._lock:
            self.done.objects += 1
            self.done.size += size

    def _leave_out(self, key: str, why: str) -> None:
        with self._lock:
            line = f"{self._source.location(key)}: {why}"
            self.done.left_out += [line] if line not in self.done.left_out else []

    def _each(
        self, work: Callable[[_T], None], items: Iterable[_T], on_notice: Callable[[str], None]
    ) -> None:
        """Call `work` for each item, several at once; the first error ends the others."""
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            left = {pool.submit(work, item) for item in items}
            while left:
                ended, left = wait(left, timeout=_NOTICE_S, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                if left:
                    on_notice(f"{counted(self.done.objects, 'object')}, {shown_bytes(self.done.size)} so far")
        except BaseException:
            self._deadline.set(time.monotonic())  # an upload of an hour ends, too
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _objects_and_folders(keys: Iterable[str], *, in_bucket: bool) -> tuple[list[str], list[_Folder]]:
    """Return the objects among the keys, and the folders that the other ones lie in.

    Only in a folder somebody may have put large files where we have none.
    """
    objects: list[str] = []
    folders: set[_Folder] = set()
    for key in keys:
        if _NEVER.fullmatch(key):
            continue
        if match := _RUN.fullmatch(key):
            folders.add(_Folder(match[1], "run"))
        elif match := _STAGE.fullmatch(key):
            folders.add(_Folder(match[1], "stage"))
        elif in_bucket or _is_object(key):
            objects.append(key)
        else:
            folders.add(_Folder(key.rpartition("/")[0], "other"))
    return sorted(objects), sorted(folders)


def _is_object(key: str) -> bool:
    return "/" not in key or key.startswith(_OBJECTS)


def _is_of(earlier: Stored, object_: str, present: Remote) -> bool:
    """Return whether an entry of a manifest is about this version of the object."""
    return (earlier.object, earlier.generation) == (object_, present.generation)


def _has(present: Remote, earlier: Stored | None, object_: str, content: Digest) -> bool:
    """Return whether an object of the target's bucket certainly holds these bytes."""
    if earlier is not None and _is_of(earlier, object_, present):
        return (earlier.size, earlier.sha256) == (content.size, content.sha256)
    return present.generation != "0" and present.holds(content)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; "" where there is none."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, NotRegular):
        return ""
