"""A lease on one object of the store: who generates candidates holds `ask.lock`.

A lease is a hint that saves work, never a fence: its holder may stall and lose it without noticing. What must
not happen twice is guarded where it happens (`create` of a trial's record). Times are the store's.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sweeps.errors import StoreConflict, StoreUnavailable
from sweeps.storage.base import NotFound, Store

log = logging.getLogger(__name__)


class ObjectLease:
    """The lease in the object `key`, wanted by `holder`; free for anybody `expire_s` after its last renewal.

    Args:
        heartbeat_s: seconds between renewals while it is held.
        expire_s: seconds by the store's clock.
    """

    def __init__(self, store: Store, key: str, *, holder: str, heartbeat_s: float, expire_s: float) -> None:
        self._store, self._key, self._holder = store, key, holder
        self._heartbeat_s, self._expire_s = heartbeat_s, expire_s
        self._version: str | None = None

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Try once to take the lease; True inside the block if it is ours, renewed until the block ends."""
        if not self._acquire():
            yield False
            return
        done = threading.Event()
        renewer = threading.Thread(
            target=self._renew_until, args=(done,), name=f"lease-{self._key}", daemon=True
        )
        renewer.start()
        try:
            yield True
        finally:
            done.set()
            renewer.join()
            self._release()

    def _acquire(self) -> bool:
        try:
            data, version = self._store.read(self._key)
        except NotFound:
            return self._write(None)
        if (
            abs(self._store.now() - _renewed_at(data)) <= self._expire_s
        ):  # the future is no sign of life either
            return False
        log.info("taking over %s: its holder has been silent for over %g s", self._key, self._expire_s)
        return self._write(version)

    def _write(self, expected: str | None) -> bool:
        data = json.dumps({"schema": 1, "holder": self._holder, "renewed": self._store.now()}).encode()
        try:
            if expected is None:
                self._version = self._store.create(self._key, data)
            else:
                self._version = self._store.replace(self._key, data, expected)
        except StoreConflict:
            return False
        return True

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(self._heartbeat_s):
            try:
                if self._version is None or not self._write(self._version):
                    self._version = None  # taken over: the new holder's lease is not ours to touch
                    return
            except StoreUnavailable as error:
                log.warning("%s could not be renewed: %s", self._key, error)

    def _release(self) -> None:
        if self._version is None:
            return
        try:
            self._store.delete(self._key, self._version)
        except StoreConflict:
            log.info("%s was taken over while it was held", self._key)
        except StoreUnavailable as error:
            log.warning("%s was not given back, it will expire: %s", self._key, error)
        finally:
            self._version = None


def _renewed_at(data: bytes) -> float:
    """When the lease was last renewed; 0 for anything unreadable, which makes it free to take."""
    try:
        return float(json.loads(data)["renewed"])
    except (ValueError, KeyError, TypeError):
        return 0.0
