"""Copies of checkpoints to and from the store: each is published once, by the first, and fetched whole.

    stages/KEY/manifest.json          created last, and once: the files with their sizes and checksums
    stages/KEY/000012-1/model.bin     the files of one publisher, in a folder of its own

So no publisher of a key touches the files of another, and files left by a killed one do no harm: no manifest
names them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sweeps.errors import AlreadyExists, EnvironmentFault, StoreConflict, StoreUnavailable
from sweeps.stages.checkpoint import Unfit
from sweeps.storage.base import NotFound, Store
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket, Changed, Remote
from sweeps.storage.run_files.download import FolderDownload
from sweeps.storage.run_files.exchange import Deadline
from sweeps.storage.run_files.manifest import MANIFEST, Digest, Files
from sweeps.storage.run_files.opening import open_client
from sweeps.storage.run_files.scan import Stamp, scan
from sweeps.text.atomic_file import sync_folder
from sweeps.text.regular_file import NotRegular, copy_regular, open_regular


class Damaged(EnvironmentFault):
    """A checkpoint in the store that is not as its manifest says; the message is one clause."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A checkpoint in the store, by its manifest.

    Args:
        by: its publisher's folder; "" if the manifest cannot be read.
        files: by name; none if the manifest cannot be read.
    """

    by: str
    version: str
    files: Files

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(stored.size for stored in self.files.values())


def published(store: Store, prefix: str) -> Published | None:
    """Return the checkpoint below `prefix`, not yet verified, or None. Raises StoreUnavailable."""
    try:
        data, version = store.read(f"{prefix}/{MANIFEST}")
    except NotFound:
        return None
    try:
        files = manifest.decode(data)
    except ValueError:
        files = {}
    folders = {stored.object.partition("/")[0] for stored in files.values()}
    if len(folders) != 1:  # never written by `publish`
        return Published(by="", version=version, files={})
    return Published(by=folders.pop(), version=version, files=files)


def publish(
    store: Store,
    prefix: str,
    folder: Path,
    by: str,
    *,
    link: bool,
    deadline: Deadline,
    replaces: str | None = None,
) -> Published | None:
    """Store a folder as the checkpoint below `prefix`, unless there is one.

    Args:
        prefix: `stages/KEY`.
        folder: the files; nobody may write there any more.
        by: name of a folder that no other publisher of this checkpoint has.
        link: whether a store in a folder may share the files' disk space, so that a later change of one is a
            change of the other.
        replaces: version of a manifest that is known to be of a damaged checkpoint, which is removed.

    Returns:
        What is published now; None if it was removed at once.

    Raises:
        Unfit: something in the folder cannot be published, or it is empty.
        Changed: the folder was changed meanwhile.
        StoreUnavailable, OSError: the store cannot be written; in a bucket another call resumes the upload.
    """
    present = published(store, prefix)
    if present is not None and present.version != replaces:
        return present
    stamps = scan(folder, f"{prefix}/{by}")
    for path in folder.rglob("*"):  # rather than leave one out: half a stage helps nobody
        name = path.relative_to(folder).as_posix()
        if name not in stamps and (path.is_symlink() or not path.is_dir()):
            raise Unfit(
                f"{name} cannot be published: it is a draft (*.tmp), a link, no regular file, or its "
                "name is too long"
            )
    if not stamps:
        raise Unfit("it has no files")
    if present is not None:
        # It is damaged. Its manifest goes first; if somebody has replaced that, their files stay.
        try:
            store.delete(f"{prefix}/{MANIFEST}", present.version)
        except StoreConflict:
            pass
        else:
            if present.by:
                _discard(store, prefix, present.by, deadline)
    try:
        if isinstance(store, Bucket):
            files = _upload(store, prefix, folder, by, stamps, deadline)
        else:
            files = _copy(store.folder(f"{prefix}/{by}"), folder, by, stamps, deadline, link=link)
        if scan(folder, f"{prefix}/{by}") != stamps:
            raise Changed(f"{folder}: it was changed while it was published")
        deadline.check()
        version = store.create(f"{prefix}/{MANIFEST}", manifest.encode(files))
    except AlreadyExists:
        first = published(store, prefix)
        if first is None or first.by != by:
            _discard(store, prefix, by, deadline)
        return first
    except (EnvironmentFault, OSError) as error:
        resumable = isinstance(store, Bucket) and isinstance(error, StoreUnavailable)
        if not resumable:
            _discard(store, prefix, by, deadline)
        raise
    return Published(by=by, version=version, files=files)


def fetch(store: Store, prefix: str, found: Published, into: Path, *, link: bool, deadline: Deadline) -> None:
    """Copy a checkpoint into a new folder, verified.

    Args:
        prefix: `stages/KEY`.
        into: the folder, which an interruption leaves incomplete.

    Raises:
        Damaged: it is not as its manifest says.
        OutOfTime: the deadline has passed; within a folder only between two files.
        StoreUnavailable, EnvironmentFault, OSError: the store cannot be read, or the folder not be written.
    """
    if not found.files:
        raise Damaged("its manifest cannot be read")
    if isinstance(store, Bucket):
        if FolderDownload(store, prefix, into, deadline).run(level=logging.INFO) is None:
            raise Damaged("it is not in the bucket as its manifest says")
        return
    source = store.folder(prefix)
    for name, stored in found.files.items():
        deadline.check()
        try:
            _place(source / stored.object, into / name, link=link)
            content = _digest(into / name)
        except FileNotFoundError:
            raise Damaged(f"{name} is missing") from None
        except (NotRegular, IsADirectoryError) as error:
            raise Damaged(f"{name} is {error.strerror}") from None
        if content.size != stored.size:
            raise Damaged(f"{name} has {content.size} bytes, not {stored.size}")
        if content.sha256 != stored.sha256:
            raise Damaged(f"{name} has another checksum")


# ---- publishing


def _upload(
    store: Bucket, prefix: str, folder: Path, by: str, names: Mapping[str, Stamp], deadline: Deadline
) -> Files:
    client = open_client(store, prefix, deadline)
    present = client.listing()
    files = {}
    for name, stamp in names.items():
        target = f"{by}/{name}"
        with open_regular(folder / name) as file:
            try:
                content = manifest.digest(file, stamp.size)
            except EOFError:
                raise Changed(f"{folder}: {name} has become shorter") from None
            remote = present.get(target, Remote("0", 0, ""))
            if not remote.holds(content):  # else an earlier try has sent it
                remote = client.put(target, file, content, replaces=remote.generation)
        files[name] = manifest.entry(content, target, remote.generation)
    return files


def _copy(
    base: Path, folder: Path, by: str, names: Mapping[str, Stamp], deadline: Deadline, *, link: bool
) -> Files:
    files = {}
    for name in names:
        deadline.check()
        target = base / name
        _place(folder / name, target, link=link)
        with open_regular(target) as file:
            os.fsync(file.fileno())  # before the manifest, which must not outlast it in a power cut
        files[name] = manifest.entry(_digest(target), f"{by}/{name}", "0")
    for parent in {(base / name).parent for name in names} | {base, base.parent}:
        sync_folder(parent)
    return files


def _discard(store: Store, prefix: str, by: str, deadline: Deadline) -> None:
    """Remove a publisher's files as far as possible; no manifest names them."""
    with suppress(EnvironmentFault):
        if not isinstance(store, Bucket):
            shutil.rmtree(store.folder(f"{prefix}/{by}"), ignore_errors=True)
            return
        client = open_client(store, prefix, deadline)
        for name, remote in client.listing().items():
            if name.startswith(f"{by}/"):
                client.delete(name, remote.generation)


# ---- files of a local store


def _place(source: Path, target: Path, *, link: bool) -> None:
    """Link or copy one file; a file system without links gets a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # it may be a link to the source, which a copy would empty
    if link:
        with suppress(OSError):
            os.link(os.path.realpath(source), target)
            return
    copy_regular(source, target)


def _digest(path: Path) -> Digest:
    """Return size and SHA-256 of a file, without the md5 that only buckets need."""
    with open_regular(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return Digest(size=file.tell(), sha256=sha256, md5="")
