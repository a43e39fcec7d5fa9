"""Client for large objects in a bucket of S3, through obstore, which sends them in parts and repeats those.

Small files and logs go in one request, which names the version that it replaces: a late duplicate is refused.
obstore has no conditional upload in parts: large files go to names that only this uploader writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import IO, Any, TypeVar

from sweeps.errors import InputError, StoreUnavailable
from sweeps.storage.gcs.classification import Transient
from sweeps.storage.keys import checked_key
from sweeps.storage.objects.client import start
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.run_files.client import (
    MAX_CONFLICTS,
    Changed,
    Remote,
    check_prefix,
    check_untouched,
)
from sweeps.storage.run_files.exchange import SLOWEST_BYTES_PER_S, Deadline, Retrier, wait_for
from sweeps.storage.run_files.manifest import Digest

_T = TypeVar("_T")

_AT_ONCE = 4
"""Parts on their way at the same time: each is in memory."""
_MOST_PARTS = 9_000  # the service takes 10,000
_LARGEST_GROWING = 512 * 2**20


class ObjectFilesClient:
    """Client for the objects below `prefix` of one bucket, for one thread at a time: see `RunFilesClient`."""

    repeats_names = False

    def __init__(self, store: ObjectStore, prefix: str, deadline: Deadline) -> None:
        self._store, self._prefix, self._deadline = store, checked_key(prefix), deadline
        self._chunk = deadline.config.chunk_bytes

    def listing(self) -> dict[str, Remote]:
        start = len(self._prefix) + 1
        found = self._store.objects(f"{self._prefix}/")
        return {each.key[start:]: Remote(each.version, each.size, "") for each in found}

    def put(
        self, name: str, file: IO[bytes], content: Digest, *, replaces: str, growing: bool = False
    ) -> Remote:
        check = check_prefix(file, content) if growing else check_untouched(file)
        if content.size > (_LARGEST_GROWING if growing else self._chunk):
            return self._put_parts(name, file, content, check)
        data = os.pread(file.fileno(), content.size, 0)
        if len(data) != content.size:
            raise Changed("the file became shorter while it was uploaded")
        for _ in range(MAX_CONFLICTS):
            try:
                version = self._retried(name, partial(self._send, name, data, replaces), content.size, check)
                return Remote(version, content.size, "")
            except Exception as error:
                if not _is_refusal(error):
                    raise
            # Our own earlier attempt, or another writer's object: only its content matters.
            present = self.stat(name)
            if present.holds(content):
                return present
            replaces = present.generation
        raise StoreUnavailable(f"{self._url(name)}: another program writes this object; end it")

    def stat(self, name: str) -> Remote:
        import obstore

        async def send() -> Remote:
            found = await obstore.head_async(self._bulk, self._name(name))
            return Remote((found["e_tag"] or "").strip('"'), found["size"], "")

        try:
            return self._retried(name, send)
        except FileNotFoundError:
            return Remote("0", 0, "")

    def get(self, name: str, generation: str, size: int, file: IO[bytes]) -> None:
        import obstore

        while (begin := file.tell()) < size:
            stop = min(begin + self._chunk, size)

            async def send(begin: int = begin, stop: int = stop) -> bytes:
                options: Any = {"range": (begin, stop), "if_match": f'"{generation}"'}
                found = await obstore.get_async(self._bulk, self._name(name), options=options)
                return bytes(await found.bytes_async())

            try:
                part = self._retried(name, send, stop - begin)
            except Exception as error:
                if not _is_refusal(error):
                    raise
                raise Changed(f"{self._url(name)}: it is not there as its manifest says") from None
            if len(part) != stop - begin:
                raise Changed(f"{self._url(name)}: it is not there as its manifest says")
            file.write(part)

    def delete(self, name: str, generation: str) -> None:
        """Remove the object, if it exists: nobody writes this name again."""
        self._deadline.check()
        self._store.remove(f"{self._prefix}/{name}")

    # ---- requests

    async def _send(self, name: str, data: bytes, expected: str) -> str:
        import obstore

        result = await obstore.put_async(
            self._store.client.store(),
            self._name(name),
            data,
            mode="create" if expected == "0" else {"e_tag": f'"{expected}"'},
            use_multipart=False,
        )
        return (result["e_tag"] or "").strip('"')

    def _put_parts(self, name: str, file: IO[bytes], content: Digest, check: Callable[[], None]) -> Remote:
        import obstore

        length = max(self._chunk, -(-content.size // _MOST_PARTS))

        def parts() -> Iterator[bytes]:
            for begin in range(0, content.size, length):
                part = os.pread(file.fileno(), min(length, content.size - begin), begin)
                if not part:
                    raise Changed("the file became shorter while it was uploaded")
                yield part

        async def send() -> str:
            result = await obstore.put_async(
                self._bulk,
                self._name(name),
                parts(),
                use_multipart=True,
                chunk_size=length,
                max_concurrency=_AT_ONCE,
            )
            return (result["e_tag"] or "").strip('"')

        version = self._retried(name, send, content.size, check)
        stored = self.stat(name)
        if (stored.generation, stored.size) != (version, content.size):
            raise StoreUnavailable(f"{self._url(name)}: the storage service keeps other bytes than sent")
        return stored

    def _retried(
        self,
        name: str,
        coroutine: Callable[[], Coroutine[Any, Any, _T]],
        size: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> _T:
        """Return what a request returns; a deadline abandons it. Raises what `ObjectClient.once` raises."""
        client, url = self._store.client, self._url(name)
        limit_s = client.retries.total_s + size / SLOWEST_BYTES_PER_S

        def attempt() -> _T:
            future = start(coroutine)
            try:
                result = wait_for(future, limit_s, self._deadline)
            except Transient:
                check()
                raise
            except (StoreUnavailable, InputError, Changed):
                raise
            except Exception as error:  # noqa: BLE001 - `raised` says what it is
                check()
                raise client.raised(error, url) from None
            finally:
                future.cancel()
            client.answered = True
            return result

        return Retrier(self._deadline, url).call(attempt)

    @property
    def _bulk(self) -> Any:
        return self._store.client.store(bulk=True)

    def _name(self, name: str) -> str:
        return self._store.name(f"{self._prefix}/{checked_key(name)}")

    def _url(self, name: str) -> str:
        return self._store.location(f"{self._prefix}/{name}")


def _is_refusal(error: Exception) -> bool:
    """Return whether the object has another version, or there is none."""
    return isinstance(error, FileNotFoundError) or type(error).__name__ in (
        "AlreadyExistsError",
        "PreconditionError",
    )
