"""One run folder on its way into the bucket: what of it is there, and what to send next. No thread.

`bulk.Uploader` calls `round` again and again. A file's object is never overwritten while the manifest names
it: new content goes beside it, the manifest is swapped, and only then the old object is removed. So whatever
the last manifest names is there, whole, wherever this program is killed. Growing files alone are overwritten,
with a content that begins with what the manifest knows of them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from sweeps.errors import StoreConflict, StoreUnavailable
from sweeps.storage.base import NotFound
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket, BulkWire, Changed, Remote
from sweeps.storage.run_files.exchange import Deadline
from sweeps.storage.run_files.manifest import MANIFEST, Stored
from sweeps.storage.run_files.scan import Batch, Stamp, is_growing, is_restless, scan, settled, stamp_of

log = logging.getLogger(__name__)


class FolderUpload:
    """The files of `folder` and their objects below `prefix`, for one thread."""

    def __init__(self, store: Bucket, folder: Path, prefix: str, deadline: Deadline) -> None:
        self._store, self._folder, self._prefix = store, folder, prefix
        self._key = f"{prefix}/{MANIFEST}"
        self._deadline = deadline
        self._client = BulkWire(store, prefix, deadline)
        self._opened = False
        self._before: dict[str, Stamp] = {}  # the last scan
        self._safe: dict[str, Stamp] = {}  # local files as the manifest in the bucket has them
        self._sent: dict[str, Stamp] = {}  # the same for the manifest that is not written yet
        self._sent_at: dict[str, float] = {}  # restless files
        self._version = "0"
        self._committed: dict[str, Stored] = {}
        self._next: dict[str, Stored] = {}
        self._objects: dict[str, Remote] = {}  # every object that is known to be there
        self._litter: dict[str, str] = {}  # objects that no manifest names any more

    def round(self, *, final: bool = False) -> None:
        """Bring what has settled into the bucket; with `final`, everything.

        Raises:
            StoreUnavailable: not all of it; the next round goes on.
        """
        if not self._folder.is_dir():
            return  # somebody cleaned up here; that is no reason to empty the bucket, too
        if not self._opened:
            self._open()
        present = scan(self._folder, self._prefix)
        before, self._before = self._before, present
        resting = frozenset() if final else self._resting()
        torn = False
        for batch in settled(present, before, self._sent, resting=resting, final=final):
            if torn and not batch.changed:
                continue  # what is gone here may be what that one was to follow
            if sum(present[name].size for name in batch.changed) > self._deadline.pace.chunk_bytes:
                self._commit()  # what is there already shall not wait for something large
            try:
                self._send(batch, present)
            except (Changed, FileNotFoundError) as changed:
                torn = True
                log.debug("%s: not uploaded this time: %s", self._folder, changed)
        self._commit()
        self._sweep_up()

    def missing(self) -> tuple[str, ...]:
        """The files in the folder whose present content is not in the bucket with a manifest."""
        present = scan(self._folder, self._prefix)
        return tuple(sorted(name for name, stamp in present.items() if self._safe.get(name) != stamp))

    def _open(self) -> None:
        """Learn what an earlier uploader has left: files that are there are not sent again."""
        self._committed, self._version = self._read_manifest()
        self._next = dict(self._committed)
        self._objects = self._client.listing()
        self._objects.pop(MANIFEST, None)
        self._opened = True

    def _read_manifest(self) -> tuple[dict[str, Stored], str]:
        try:
            data, version = self._store.read(self._key)
        except NotFound:
            return {}, "0"
        try:
            return manifest.decode(data), version
        except ValueError as error:
            log.warning(
                "%s: not a manifest (%s); a new one is written", self._store.location(self._key), error
            )
            return {}, version

    def _resting(self) -> frozenset[str]:
        since = time.monotonic() - self._deadline.pace.growing_s
        return frozenset(name for name, at in self._sent_at.items() if at > since)

    # ---- files

    def _send(self, batch: Batch, present: Mapping[str, Stamp]) -> None:
        """Upload the batch, or nothing of it becomes visible."""
        with ExitStack() as stack:
            # All are opened first: a program that rotates its checkpoints cannot take one away halfway.
            files = {name: stack.enter_context((self._folder / name).open("rb")) for name in batch.changed}
            stamps = {name: stamp_of(os.fstat(file.fileno())) for name, file in files.items()}
            for name, stamp in stamps.items():
                if stamp != present[name] and not is_growing(name):
                    raise Changed(f"{name} has been written since it was looked at")
            stored = {name: self._store_file(name, file, stamps[name].size) for name, file in files.items()}
            for name, file in files.items():
                if not is_growing(name) and stamp_of(os.fstat(file.fileno())) != stamps[name]:
                    raise Changed(f"{name} has been written while it was uploaded")
        for name in batch.gone:
            self._next.pop(name, None)
            self._sent.pop(name, None)
        self._next |= stored
        self._sent |= stamps

    def _store_file(self, name: str, file: IO[bytes], size: int) -> Stored:
        growing = is_growing(name)
        try:
            content = manifest.digest(file, size)
        except EOFError:
            raise Changed(f"{name} has become shorter") from None
        known = self._next.get(name)
        if known is not None and (known.size, known.sha256) == (content.size, content.sha256):
            there = self._objects.get(known.object)
            if there is not None and there.generation == known.generation:
                return known
        named = (*self._committed.values(), *self._next.values())
        taken = any(other.object == name and not other.growing for other in named)
        target = manifest.object_name(name, content, taken)
        there = self._objects.get(target, Remote("0", 0, ""))
        if not there.holds(content):
            there = self._client.put(target, file, content, replaces=there.generation, growing=growing)
            self._objects[target] = there
        self._litter.pop(target, None)
        if is_restless(name):
            self._sent_at[name] = time.monotonic()
        return Stored(
            object=target,
            generation=there.generation,
            size=content.size,
            sha256=content.sha256,
            md5=content.md5,
            growing=growing,
        )

    # ---- the manifest

    def _commit(self) -> None:
        """Make what was sent visible."""
        if self._next != self._committed:
            self._deadline.check()
            self._write_manifest()
            kept = {stored.object for stored in self._next.values()}
            for stored in self._committed.values():
                if stored.object not in kept and stored.object in self._objects:
                    self._litter[stored.object] = self._objects.pop(stored.object).generation
            self._committed = dict(self._next)
        self._safe = dict(self._sent)

    def _write_manifest(self) -> None:
        data = manifest.encode(self._next)
        try:
            if self._version == "0":
                self._version = self._store.create(self._key, data)
            else:
                self._version = self._store.replace(self._key, data, self._version)
        except StoreConflict:
            self._opened = False  # begin anew from what the other one has written
            self._sent, self._safe, self._litter = {}, {}, {}
            raise StoreUnavailable(
                f"{self._store.location(self._key)}: another program uploads to this folder; end it"
            ) from None

    def _sweep_up(self) -> None:
        for name, generation in list(self._litter.items()):
            self._client.delete(name, generation)
            del self._litter[name]
