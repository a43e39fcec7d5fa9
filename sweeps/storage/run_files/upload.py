"""Upload of one run folder in rounds, without a thread.

An object is never overwritten while the manifest names it: new content goes to another object, the manifest
is replaced, and only then the old object is removed. So the files of the last manifest are complete, wherever
this program is killed. Only growing files are overwritten, with content that begins with the old one.

The next attempt goes on from the newest attempt whose manifest names a checkpoint, and looks at no other. So
a manifest names none until all that this attempt was given are in the bucket, too.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sweeps.errors import StoreConflict, StoreUnavailable
from sweeps.storage.base import NotFound, put
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket, Changed, Remote
from sweeps.storage.run_files.exchange import Deadline
from sweeps.storage.run_files.manifest import MANIFEST, Stored
from sweeps.storage.run_files.opening import open_client
from sweeps.storage.run_files.scan import (
    CHECKPOINTS,
    Batch,
    Stamp,
    due_batches,
    is_growing,
    is_volatile,
    moving_units,
    scan,
    stamp_of,
    unit_of,
)
from sweeps.text.regular_file import open_regular

log = logging.getLogger(__name__)

UPLOAD_S = 900.0
"""Limit for what a trial that has ended still stores: its stages, and each part of its last files."""

_REST, _LONGEST_REST_S = 20, 900.0
"""Times of its last upload after which a log is sent again, whole, as checkpoints wait meanwhile; and the
most seconds: an outage of five minutes, which an upload outlasts, would hide the log for a hundred."""


_RESTLESS = 12
"""Scans in a row, a minute of them, in which a unit has changed, after which no other waits for it: what a
program writes all the time is never sent, and would hide what it writes beside that."""


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A batch whose files are in the bucket, as they were then."""

    batch: Batch
    stored: Mapping[str, Stored]
    stamps: Mapping[str, Stamp]


class FolderUpload:
    """Upload of the files of `folder`, except for its folder `without`, to objects below `prefix`.

    For one thread.

    Args:
        timed: called after each batch with the name of its file or folder, its bytes, and its seconds.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        store: Bucket,
        folder: Path,
        prefix: str,
        deadline: Deadline,
        *,
        without: str = "",
        timed: Callable[[str, int, float], None] = lambda name, size, seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timed, self._clock = timed, clock
        self._store, self._folder, self._prefix, self._without = store, folder, prefix, without
        self._key = f"{prefix}/{MANIFEST}"
        self._deadline = deadline
        self._client = open_client(store, prefix, deadline)
        self._opened = False
        self._says_uploading = False  # the manifest in the bucket
        self._before: dict[str, Stamp] = {}  # the last scan
        self._safe: dict[str, Stamp] = {}  # local files as the manifest in the bucket has them
        self._sent: dict[str, Stamp] = {}  # the same for the manifest that is not written yet
        self._due: dict[str, float] = {}  # volatile file → the monotonic time until when it is not sent again
        self._version: str | None = None
        self._committed: dict[str, Stored] = {}
        self._next: dict[str, Stored] = {}
        self._objects: dict[str, Remote] = {}  # all known objects
        self._inherited: frozenset[str] = frozenset()  # files of checkpoints that are not all sent yet
        self._restless: dict[str, int] = {}  # unit → in how many scans in a row it has changed
        self._hidden: dict[str, Stored] = {}  # what is sent, and kept out of the manifest until they are
        self._retired: set[str] = set()  # deleted objects
        self._superseded: dict[str, str] = {}  # objects that no manifest names any more

    def inherit(self) -> None:
        """Note which checkpoints an earlier attempt has left, before a program writes its own."""
        present = scan(self._folder, self._prefix, without=self._without)
        self._inherited = frozenset(filter(_is_of_checkpoint, present))

    def round(self, *, final: bool = False) -> None:
        """Upload what has settled; with `final`, everything.

        Raises:
            StoreUnavailable: some files are missing; the next round resumes.
        """
        if not self._folder.is_dir():
            return  # removed by a user, who may still want the files in the bucket
        if not self._opened:
            self._open()
        present = scan(self._folder, self._prefix, without=self._without)
        before, self._before = self._before, present
        moving = frozenset[str]() if final else moving_units(present, before)
        self._restless = {unit: self._restless.get(unit, 0) + 1 for unit in moving}
        restless = {unit for unit, scans in self._restless.items() if scans >= _RESTLESS}
        awaited = {name for name in self._inherited if name in present and unit_of(name) not in restless}
        now = time.monotonic()
        deferred = frozenset(name for name, due in self._due.items() if now < due and not final)
        torn = False
        accepted: set[str] = set()
        waiting: list[_Sent] = []
        for batch in due_batches(
            present, before, self._sent, deferred=deferred, restless=restless, final=final
        ):
            if torn and not batch.changed:
                continue  # the failed batch may be the successor of what was removed here
            if sum(present[name].size for name in batch.changed) > self._deadline.config.chunk_bytes:
                self._commit(awaited)  # finished uploads do not wait for a large file
            try:
                waiting.append(self._send(batch, present))
            except (Changed, FileNotFoundError) as changed:
                torn = True
                log.debug("%s: not uploaded this time: %s", self._folder, changed)
            for sent in sorted(waiting, key=lambda sent: len(sent.batch.after)):
                if sent.batch.after <= accepted:
                    self._accept(sent)
                    accepted.add(sent.batch.unit)
                    waiting.remove(sent)
        self._commit(awaited, complete=final and not self._left(present, self._sent))
        for name, generation in list(self._superseded.items()):
            self._retired.add(name)
            self._client.delete(name, generation)
            del self._superseded[name]

    def missing(self) -> tuple[str, ...]:
        """Return the files of the folder whose current content is in no manifest in the bucket."""
        present = scan(self._folder, self._prefix, without=self._without)
        return tuple(self._left(present, self._safe))

    @staticmethod
    def _left(present: Mapping[str, Stamp], stored: Mapping[str, Stamp]) -> list[str]:
        return sorted(name for name, stamp in present.items() if stored.get(name) != stamp)

    def _open(self) -> None:
        """Read what an earlier uploader has sent: those files are not sent again."""
        self._committed, self._version, self._says_uploading = {}, None, False
        try:
            data, self._version = self._store.read(self._key)
            self._committed = manifest.decode(data)
            self._says_uploading = manifest.is_uploading(data)
        except NotFound:
            pass
        except ValueError as error:
            where = self._store.location(self._key)
            log.warning("%s: not a manifest (%s); a new one is written", where, error)
        self._next = dict(self._committed)
        self._objects = self._client.listing()
        self._objects.pop(MANIFEST, None)
        self._opened = True

    # ---- files

    def _send(self, batch: Batch, present: Mapping[str, Stamp]) -> _Sent:
        """Upload the batch completely. Nothing of it becomes visible before it is accepted."""
        began = self._clock()
        with ExitStack() as stack:
            # All are opened first: a program that rotates its checkpoints cannot remove some meanwhile.
            files = {name: stack.enter_context(open_regular(self._folder / name)) for name in batch.changed}
            stamps = {name: stamp_of(os.fstat(file.fileno())) for name, file in files.items()}
            for name, stamp in stamps.items():
                if stamp != present[name] and not is_growing(name):
                    raise Changed(f"{name} has been written since the scan")
            stored = {name: self._store_file(name, file, stamps[name].size) for name, file in files.items()}
            for name, file in files.items():
                if not is_growing(name) and stamp_of(os.fstat(file.fileno())) != stamps[name]:
                    raise Changed(f"{name} has been written while it was uploaded")
        if stamps:
            size, name = sum(stamp.size for stamp in stamps.values()), os.path.commonpath(stamps)
            self._timed(name, size, self._clock() - began)
        return _Sent(batch=batch, stored=stored, stamps=stamps)

    def _accept(self, sent: _Sent) -> None:
        """Let the next manifest name the files of a batch."""
        for name in sent.batch.removed:
            self._next.pop(name, None)
            self._sent.pop(name, None)
        self._next |= sent.stored
        self._sent |= sent.stamps

    def _store_file(self, name: str, file: IO[bytes], size: int) -> Stored:
        growing, began = is_growing(name), time.monotonic()
        try:
            content = manifest.digest(file, size)
        except EOFError:
            raise Changed(f"{name} has become shorter") from None
        known = self._next.get(name)
        if known is not None and (known.size, known.sha256) == (content.size, content.sha256):
            remote = self._objects.get(known.object)
            if remote is not None and remote.generation == known.generation:
                return known
        named = (*self._committed.values(), *self._next.values())
        taken = any(other.object == name and not other.growing for other in named)
        target = manifest.object_name(name, content, taken)
        if not growing:  # an upload in parts names no version, and not every delete does
            while target in self._retired or target in self._superseded:
                target = f"{name}.{secrets.token_hex(6)}"
        remote = self._objects.get(target, Remote("0", 0, ""))
        if not remote.holds(content):
            remote = self._client.put(target, file, content, replaces=remote.generation, growing=growing)
            self._deadline.note_progress()
            self._objects[target] = remote
        self._superseded.pop(target, None)
        if is_volatile(name):
            now = time.monotonic()
            rest = min(_REST * (now - began), _LONGEST_REST_S)
            self._due[name] = now + max(self._deadline.config.growing_s, rest)
        return manifest.entry(content, target, remote.generation, growing=growing)

    # ---- the manifest

    def _commit(self, awaited: Set[str], *, complete: bool = False) -> None:
        """Make what was sent visible to readers; nothing is to follow what is `complete`.

        Args:
            awaited: inherited files without which no checkpoint becomes visible.
        """
        if awaited <= self._sent.keys():
            self._inherited = frozenset()
        held = frozenset(filter(_is_of_checkpoint, self._next)) if self._inherited else frozenset[str]()
        shown = {name: stored for name, stored in self._next.items() if name not in held}
        earlier = (*self._committed.values(), *self._hidden.values())
        if shown != self._committed or (complete and self._says_uploading):
            self._deadline.check()
            data = manifest.encode(shown, uploading=not complete)
            try:
                self._version = put(self._store, self._key, data, self._version)
            except StoreConflict:
                self._opened = False  # start again from what the other program has written
                self._sent, self._safe, self._superseded, self._hidden = {}, {}, {}, {}
                raise StoreUnavailable(
                    f"{self._store.location(self._key)}: another program uploads to this folder; end it"
                ) from None
            self._says_uploading = not complete
            self._committed = shown
        kept = {stored.object for stored in self._next.values()}
        for stored in earlier:
            if stored.object not in kept and stored.object in self._objects:
                self._superseded[stored.object] = self._objects.pop(stored.object).generation
        self._hidden = {name: self._next[name] for name in held}
        self._safe = {name: stamp for name, stamp in self._sent.items() if name not in held}


def _is_of_checkpoint(name: str) -> bool:
    return name.startswith(f"{CHECKPOINTS}/")
