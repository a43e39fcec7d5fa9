"""Client for large objects, through obstore, which sends them in parts and repeats those.

Small files and logs go in one request, which names the version that it replaces: a late duplicate is refused.
There is no conditional upload in parts: large files go to names that only this uploader writes.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.keys import checked_key
from sweeps.storage.objects.answers import is_missing_object, is_refusal
from sweeps.storage.objects.bucket import BucketStore
from sweeps.storage.retries import Transient, retry
from sweeps.storage.run_files.exchange import SLOWEST_BYTES_PER_S, Deadline, wait_for
from sweeps.storage.run_files.manifest import Digest, digest

_T = TypeVar("_T")

_MAX_CONFLICTS = 5
_AT_ONCE = 4
"""Parts on their way at the same time: each is in memory."""
_MOST_PARTS = 9_000  # the services take 10,000
_LARGEST_GROWING = 512 * 2**20
_MD5 = re.compile("[0-9a-f]{32}")


@runtime_checkable
class Bucket(Store, Protocol):
    """A store in a bucket: its local folders are not where bulk data is kept."""

    def sizes(self, prefix: str) -> Mapping[str, int]:
        """Return the bytes of all objects whose key starts with `prefix`."""

    def copy(self, key: str, target: str) -> None:
        """Copy an object, as it is stored, to the same key of the sweep at the URL `target`."""

    def clear(self, kept: Sequence[str]) -> None:
        """Remove what deleted objects leave behind, but of the keys `kept`; nobody may write meanwhile."""


class Remote(NamedTuple):
    """Metadata of an object; generation "0" stands for a missing one, md5 is in base64."""

    generation: str
    size: int
    md5: str

    def holds(self, content: Digest) -> bool:
        """Return whether the bytes are certainly these; a version of S3 may be their md5, too."""
        hexadecimal = base64.b64decode(content.md5).hex()
        return self.size == content.size and (self.md5 == content.md5 or self.generation == hexadecimal)

    def contradicts(self, content: Digest) -> bool:
        """Return whether the bytes certainly differ: not every service reports an md5."""
        return self.size != content.size or self.md5 not in (content.md5, "")


class Changed(EnvironmentFault):
    """A file or object that was written or removed during its transfer."""


class RunFilesClient:
    """Client for the objects below `prefix` of one bucket, for one thread at a time.

    Args:
        prefix: key prefix of the run folder.
        deadline: retries, and the time when to stop them.
    """

    def __init__(self, store: BucketStore, prefix: str, deadline: Deadline) -> None:
        self._store, self._prefix, self._deadline = store, checked_key(prefix), deadline
        self._chunk = deadline.config.chunk_bytes

    def listing(self) -> dict[str, Remote]:
        """Return every object below the prefix, by its name relative to it."""
        start = len(self._prefix) + 1
        found = self._store.objects(f"{self._prefix}/")
        return {each.key[start:]: Remote(each.version, each.size, each.md5) for each in found}

    def put(
        self, name: str, file: IO[bytes], content: Digest, *, replaces: str, growing: bool = False
    ) -> Remote:
        """Upload the first `content.size` bytes of a file.

        Args:
            name: name of the object below the prefix.
            content: digest of the bytes.
            replaces: generation to overwrite, "0" for a new object.
            growing: bytes may be appended to the file meanwhile.

        Raises:
            Changed: the file no longer has this content.
            StoreUnavailable: no success in time, or another program writes this object.
        """
        check = check_prefix(file, content) if growing else check_untouched(file)
        if content.size > (_LARGEST_GROWING if growing else self._chunk):
            return self._put_parts(name, file, content, check)
        data = os.pread(file.fileno(), content.size, 0)
        if len(data) != content.size:
            raise Changed("the file became shorter while it was uploaded")
        for _ in range(_MAX_CONFLICTS):
            try:
                version = self._send(name, partial(self._put, name, data, replaces), content.size, check)
                return Remote(version, content.size, "")
            except Exception as error:  # obstore's, by their names, as in `BucketStore`
                if not is_refusal(error):
                    raise
            # Our own earlier attempt, or another writer's object: only its content matters.
            present = self.stat(name)
            if present.holds(content):
                return present
            if present.generation == replaces:
                self._store.client.respell()
            replaces = present.generation
        raise StoreUnavailable(f"{self._url(name)}: another program writes this object; end it")

    def stat(self, name: str) -> Remote:
        """Return the object's metadata; generation "0" where there is no object."""
        import obstore

        async def send() -> Remote:
            found = await obstore.head_async(self._bulk, self._name(name))
            e_tag = (found["e_tag"] or "").strip('"')  # often the bytes' md5
            md5 = base64.b64encode(bytes.fromhex(e_tag)).decode() if _MD5.fullmatch(e_tag) else ""
            return Remote(self._version(found, name), found["size"], md5)

        try:
            return self._send(name, send)
        except FileNotFoundError:
            return Remote("0", 0, "")

    def get(self, name: str, generation: str, size: int, file: IO[bytes]) -> None:
        """Append the object's bytes to the file until it has `size` of them.

        Raises:
            Changed: the object no longer has this generation.
        """
        import obstore

        while (begin := file.tell()) < size:
            stop = min(begin + self._chunk, size)

            async def send(begin: int = begin, stop: int = stop) -> bytes:
                options: Any = {"range": (begin, stop), **self._store.client.condition(generation)}
                found = await obstore.get_async(self._bulk, self._name(name), options=options)
                return bytes(await found.bytes_async())

            try:
                part = self._send(name, send, stop - begin)
            except Exception as error:  # obstore's, by their names, as in `BucketStore`
                if not is_refusal(error):
                    raise
                raise Changed(f"{self._url(name)}: it is not there as its manifest says") from None
            if len(part) != stop - begin:
                raise Changed(f"{self._url(name)}: it is not there as its manifest says")
            file.write(part)

    def delete(self, name: str, generation: str) -> None:
        """Remove this generation of the object, if it exists: nobody writes this name again."""
        self._deadline.check()
        self._store.discard(f"{self._prefix}/{checked_key(name)}", generation)

    # ---- requests

    async def _put(self, name: str, data: bytes, expected: str) -> str:
        import obstore

        mode: Any = "create" if expected == "0" else self._store.client.expectation(expected)
        result = await obstore.put_async(
            self._bulk,
            self._name(name),
            data,
            mode=mode,
            attributes={"Cache-Control": "no-store"},
            use_multipart=False,
        )
        return self._version(result, name)

    def _put_parts(self, name: str, file: IO[bytes], content: Digest, check: Callable[[], None]) -> Remote:
        import obstore

        length = max(self._chunk, -(-content.size // _MOST_PARTS))

        def parts() -> Iterator[bytes]:
            for begin in range(0, content.size, length):
                part = os.pread(file.fileno(), min(length, content.size - begin), begin)
                if not part:
                    raise Changed("the file became shorter while it was uploaded")
                yield part
                self._deadline.note_progress()  # obstore asks for the next once one of its parts is stored

        async def send() -> Mapping[str, Any]:
            try:
                return await obstore.put_async(
                    self._bulk,
                    self._name(name),
                    parts(),
                    use_multipart=True,
                    chunk_size=length,
                    max_concurrency=_AT_ONCE,
                    attributes={"Cache-Control": "no-store"},
                )
            except FileNotFoundError as error:
                if not is_missing_object(error):
                    raise
                # obstore sent the end twice, as the first had no answer: the upload is not known any more.
                raise Transient("the service has forgotten this upload", in_doubt=True) from None

        patience_s = self._store.client.retries.total_s  # for retries of obstore's
        told = self._send(name, send, content.size, check, patience_s=patience_s)
        stored = self.stat(name)
        # Google promises no generation in this answer, and Ceph 16 leaves out the ETag.
        kept = {key: told[key] or stored.generation for key in ("e_tag", "version")}
        version = self._version(kept, name)
        if (stored.generation, stored.size) != (version, content.size):
            raise StoreUnavailable(f"{self._url(name)}: the storage service keeps other bytes than sent")
        return stored

    def _send(
        self,
        name: str,
        coroutine: Callable[[], Coroutine[Any, Any, _T]],
        size: int = 0,
        check: Callable[[], None] = lambda: None,
        *,
        patience_s: float = 0.0,
    ) -> _T:
        """Return what a request returns; a deadline abandons it. Raises what `ObjectClient.once` raises."""
        client, url = self._store.client, self._url(name)
        limit_s = (patience_s or client.retries.attempt_s) + size / SLOWEST_BYTES_PER_S

        def attempt() -> _T:
            self._deadline.check()
            try:
                return client.once(
                    coroutine,
                    url,
                    limit_s=limit_s,
                    wait_for=lambda future, limit_s: wait_for(future, limit_s, self._deadline),
                )
            except Transient:
                check()
                raise

        config = self._deadline.config
        return retry(
            attempt,
            url,
            limit_s=lambda: config.patience_s,
            first_wait_s=config.first_wait_s,
            longest_wait_s=config.longest_wait_s,
            wait=self._deadline.back_off,
        )

    def _version(self, about: Any, name: str) -> str:
        return self._store.client.version(about, self._url(name))

    @property
    def _bulk(self) -> Any:
        return self._store.client.store(bulk=True)

    def _name(self, name: str) -> str:
        return self._store.name(f"{self._prefix}/{checked_key(name)}")

    def _url(self, name: str) -> str:
        return self._store.location(f"{self._prefix}/{name}")


def check_untouched(file: IO[bytes]) -> Callable[[], None]:
    """Return a function that raises `Changed` once the file is written to."""
    written = os.fstat(file.fileno()).st_mtime_ns

    def check() -> None:
        if os.fstat(file.fileno()).st_mtime_ns != written:
            raise Changed("the file was written while it was uploaded")

    return check


def check_prefix(file: IO[bytes], content: Digest) -> Callable[[], None]:
    """Return a function that raises `Changed` once the file no longer begins with this content."""

    def check() -> None:
        try:
            same = digest(file, content.size) == content
        except EOFError:
            same = False
        if not same:
            raise Changed("the file was rewritten while it was uploaded")

    return check
