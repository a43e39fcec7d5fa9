"""Lease on an object of the store: the worker that generates candidates holds `ask.lock`.

The lease saves work but is no fence: its holder may stall and lose it unnoticed. What must not happen twice
is guarded elsewhere (`create` of a trial's record). Times are the store's.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sweeps.errors import Busy, StoreConflict, StoreUnavailable, SweepError
from sweeps.storage.base import NotFound, Store, put
from sweeps.text import json_reader
from sweeps.text.counted import counted
from sweeps.trials import lifecycle, storable
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""Limit of a wait for the ask lease, in seconds: a fit to a thousand trials takes less than a minute."""

_LATE_S = 15.0
"""Seconds by which a live worker's heartbeat may be late."""
_POLL_S = (0.05, 0.25)


class ObjectLease:
    """Lease in the object `key`, which expires `expire_s` after its last renewal.

    Args:
        heartbeat_s: seconds between renewals while it is held.
        expire_s: seconds by the store's clock.

    Attributes:
        rival: holder that the last attempt to acquire the lease found, or "".
    """

    def __init__(self, store: Store, key: str, *, heartbeat_s: float, expire_s: float) -> None:
        self._store, self._key = store, key
        self._heartbeat_s, self._expire_s = heartbeat_s, expire_s
        self._slow = store.write_interval_s > 0
        self._version: str | None = None
        self._written = 0.0
        self._renewer: threading.Thread | None = None
        self.rival = ""

    @contextmanager
    def held(self, holder: str) -> Iterator[bool]:
        """Try once to acquire the lease; yield whether it is held, and renewed, until the block ends.

        It is released then. A store that limits the rate of changes would refuse that for a moment: there,
        the renewing thread releases it, and only the next `held` (and the end of the process) waits for that.
        """
        self.settle()
        if not self._acquire(holder):
            yield False
            return
        done = threading.Event()
        self._renewer = threading.Thread(
            target=self._renew, args=(holder, done), name=f"lease-{self._key}", daemon=False
        )
        self._renewer.start()
        try:
            yield True
        finally:
            done.set()
            if not self._slow:
                self.settle()
                self._release()

    @contextmanager
    def hold_in_turn(self, holder: str, *, patience_s: float, then: str) -> Iterator[None]:
        """Wait for the lease, then hold it until the block ends.

        Args:
            then: what the user should do after that, as one clause.

        Raises:
            StoreUnavailable: others held it all the time.
        """
        deadline = time.monotonic() + patience_s
        while True:
            with self.held(holder) as mine:
                if mine:
                    yield
                    return
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self._store.location(self._key)}: held by others for {patience_s:.0f} s; {then}"
                )
            time.sleep(random.uniform(*_POLL_S))  # noqa: S311 - spreads waiters out, guards nothing

    def settle(self) -> None:
        """Wait until the renewing thread has ended."""
        if self._renewer is not None:
            self._renewer.join()
            self._renewer = None

    def _acquire(self, holder: str) -> bool:
        self.rival = ""
        try:
            data, version = self._store.read(self._key)
        except NotFound:
            return self._take(holder, None)
        lock = parse(data)
        # A renewal from the future is stale, too: some clock was wrong.
        if abs(self._store.now() - lock.renewed) <= self._expire_s:
            self.rival = lock.holder
            return False
        log.info("taking over %s: its holder has been silent for over %g s", self._key, self._expire_s)
        return self._take(holder, version)

    def _take(self, holder: str, expected: str | None) -> bool:
        try:
            return self._write(holder, expected)
        except Busy as error:
            log.warning("%s cannot be acquired: %s", self._key, error)
            return False

    def _write(self, holder: str, expected: str | None) -> bool:
        document = {"schema": 1, "holder": storable.line(holder), "renewed": self._store.now()}
        data = json.dumps(document, allow_nan=False).encode()
        try:
            self._version = put(self._store, self._key, data, expected)
        except StoreConflict:
            return False
        self._written = time.monotonic()
        return True

    def _renew(self, holder: str, done: threading.Event) -> None:
        """Renew the lease until `done` is set. Log an error once, not at every attempt."""
        warned = ""
        while not done.wait(self._heartbeat_s):
            try:
                if not self._write(holder, self._version):
                    self._version = None  # taken over: the lease is the new holder's
                    return
            except Exception as error:  # noqa: BLE001 - no error may end the renewals of a held lease
                message = str(error) if isinstance(error, SweepError) else storable.error_text(error)
                if warned != (warned := message):
                    log.warning("%s could not be renewed, trying again: %s", self._key, warned)
        if self._slow:
            time.sleep(max(0.0, self._written + self._store.write_interval_s - time.monotonic()))
            self._release()

    def _release(self) -> None:
        if self._version is None:
            return
        try:
            self._store.delete(self._key, self._version)
        except StoreConflict:
            log.info("%s was taken over while it was held", self._key)
        except SweepError as error:
            log.warning("%s could not be released, it will expire: %s", self._key, error)
        finally:
            self._version = None


class Lock(NamedTuple):
    """Content of the lease's object, as its holder last wrote it."""

    holder: str
    renewed: float


def parse(data: bytes) -> Lock:
    """Return the lease's content; anything unreadable counts as renewed at 0, which is expired."""
    try:
        document = json_reader.parse(data)
        return Lock(storable.line(str(document.get("holder", ""))), float(document["renewed"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return Lock("", 0.0)


class Silence:
    """Monitor of the heartbeats of one sweep, for one process: finds lost workers, whatever the clock does.

    An old heartbeat is no sign of death in three cases, in which each running trial would be taken from a
    live worker. A folder's clock is a machine's: set back by an hour, every heartbeat lies in the future, and
    set forward, or after the machine slept, an hour back. And after an outage of the store nobody's heartbeat
    is young, until it gets through again. Then a process waits for the next one by its own monotonic clock.

    Args:
        expire_s: seconds without a heartbeat after which a worker is lost.
        steady: monotonic clock, in seconds; None: the system's.
    """

    def __init__(self, expire_s: float, steady: Callable[[], float] | None = None) -> None:
        self._expire_s, self._steady = expire_s, steady or time.monotonic
        self._watched: dict[int, tuple[int, float, float]] = {}  # index -> attempt, heartbeat, since when
        self._is_cut_off = False
        self._doubted = float("-inf")  # when the store was back, or its clock was set, by the monotonic clock
        self._offset: float | None = None  # of the store's clock to the monotonic one
        self._awaited: set[Hashable] = set()

    @contextmanager
    def contact(self) -> Iterator[None]:
        """Learn from requests to the store in the block whether it was out of reach, for others as well."""
        began = self._steady()
        try:
            yield
        except StoreUnavailable as error:
            self._is_cut_off = self._is_cut_off or not isinstance(error, Busy)
            raise
        self.note_answer(began)

    def note_answer(self, since: float) -> None:
        """Learn that the store has done what it was first asked for at `since`, by the monotonic clock."""
        here = self._steady()
        if self._is_cut_off or here - since > self._expire_s / 3:  # it was asked again until it answered
            self._is_cut_off, self._doubted = False, here

    def observe(self, now: float) -> None:
        """Learn the store's time; call it before `is_stale`."""
        here = self._steady()
        offset = now - here
        if self._offset is not None and offset - self._offset > self._expire_s / 3:
            self._doubted = here
        self._offset = offset

    def is_stale(self, record: Trial, now: float) -> bool:
        """Return whether the trial's worker has sent no heartbeat for `expire_s`."""
        if record.heartbeat is None or not lifecycle.is_stale(record, now, self._expire_s):
            self._watched.pop(record.trial, None)
            return False
        here = self._steady()
        is_in_doubt = self._is_cut_off or here - self._doubted <= self._expire_s
        if record.heartbeat < now and not is_in_doubt:
            return True
        watched = self._watched.get(record.trial)
        if watched is None or watched[:2] != (record.attempt, record.heartbeat):
            watched = self._watched[record.trial] = (record.attempt, record.heartbeat, here)
        return here - watched[2] > self._expire_s

    def wait_for_heartbeats(self, old: Collection[Hashable], heartbeat_s: float) -> bool:
        """Wait until each live worker has sent a heartbeat, for a command that has just begun to watch them.

        Args:
            old: heartbeats that are the last of dead workers, or from before an outage or a sleep.
            heartbeat_s: seconds between two of them.

        Returns:
            Whether it waited: it does not for those of earlier calls alone.
        """
        if self._awaited.issuperset(old):
            return False
        wait_s = heartbeat_s + _LATE_S
        log.warning(
            "%s without a heartbeat for long; waiting %g s for one", counted(len(old), "worker"), wait_s
        )
        time.sleep(wait_s)
        self._awaited.update(old)
        return True
