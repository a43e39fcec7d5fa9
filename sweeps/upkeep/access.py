"""Whether this machine can read and write the sweep's store, and whether the two agree on the time.

`doctor` calls `examine`. The probe object is removed again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sweeps.errors import EnvironmentFault, StoreConflict
from sweeps.storage.base import NotFound, Store
from sweeps.upkeep.finding import Finding

PROBE_KEY = ".doctor"
_TRIES = 5
_OFFSET_TOLD_S = 5.0
"""The service tells the time in whole seconds: less than this may be rounding and a slow network."""
_OFFSET_HARMFUL_S = 300.0
"""Credentials are refused when the clocks are further apart than five minutes."""


def examine(store: Store) -> tuple[dict[str, str], list[Finding]]:
    """Facts about the store, by name, and what is wrong with it. Raises `StoreUnavailable`."""
    facts = {"store": store.url}
    findings = list(_writable(store))
    offset_s = clock_offset(store)
    facts["clock"] = f"the store's is {abs(offset_s):.1f} s {'ahead' if offset_s >= 0 else 'behind'}"
    findings += _clock(store, offset_s)
    return facts, findings


def clock_offset(store: Store) -> float:
    """The store's time minus this machine's, in seconds."""
    before = time.time()
    there = store.now()
    return there - (before + time.time()) / 2


def _writable(store: Store) -> Iterator[Finding]:
    try:
        for _ in range(_TRIES):
            if _probe(store):
                return
    except EnvironmentFault as error:
        yield Finding(
            kind="store",
            what=f"it can be read but not written: {error}",
            where=store.url,
            remedy="ask for the right to create, overwrite and delete objects; workers need it",
        )
    # Another doctor was faster every time: somebody can write, and our own writes reached the store.


def _probe(store: Store) -> bool:
    """Write and remove the probe; False if another doctor was faster."""
    try:
        try:
            _, version = store.read(PROBE_KEY)  # of a doctor that was interrupted
        except NotFound:
            version = store.create(PROBE_KEY, b"probe")
        store.delete(PROBE_KEY, version)
    except StoreConflict:
        return False
    return True


def _clock(store: Store, offset_s: float) -> Iterator[Finding]:
    if abs(offset_s) < _OFFSET_TOLD_S:
        return
    side = "behind" if offset_s > 0 else "ahead of"
    yield Finding(
        kind="clock",
        level="problem" if abs(offset_s) >= _OFFSET_HARMFUL_S else "note",
        what=f"this machine's clock is {abs(offset_s):.0f} s {side} the store's",
        where=store.url,
        remedy="let it follow a time server; leases go by the store's clock, but credentials do not",
    )
