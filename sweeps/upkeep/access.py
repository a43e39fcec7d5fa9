"""Checks of this machine's access to the sweep's store: reading, writing, and the clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sweeps.errors import EnvironmentFault, StoreConflict
from sweeps.storage.base import NotFound, Store
from sweeps.upkeep.finding import Finding

PROBE_KEY = ".doctor"
_TRIES = 5
_OFFSET_NOTED_S = 5.0
"""The service reports its time in whole seconds: less than this may be rounding and a slow network."""
_OFFSET_HARMFUL_S = 300.0
"""Credentials are refused when the clocks are further apart than five minutes."""


def examine(store: Store) -> tuple[dict[str, str], list[Finding]]:
    """Return facts about the store by name, and findings. Raises `StoreUnavailable`."""
    facts = {"store": store.url}
    findings = list(_writable(store))
    offset_s = clock_offset(store)
    facts["clock"] = f"the store's is {abs(offset_s):.1f} s {'ahead' if offset_s >= 0 else 'behind'}"
    findings += _clock(store, offset_s)
    return facts, findings


def clock_offset(store: Store) -> float:
    """Return the store's time minus this machine's, in seconds."""
    before = time.time()
    there = store.now()
    return there - (before + time.time()) / 2


def _writable(store: Store) -> Iterator[Finding]:
    """Write and remove a probe; another `sweep doctor` may win a race for it, up to `_TRIES` times."""
    for _ in range(_TRIES):
        try:
            try:
                _, version = store.read(PROBE_KEY)  # left by an interrupted `sweep doctor`
            except NotFound:
                version = store.create(PROBE_KEY, b"probe")
            store.delete(PROBE_KEY, version)
        except StoreConflict:
            continue  # this machine's writes reached the store
        except EnvironmentFault as error:
            yield Finding(
                kind="store",
                what=f"it can be read but not written: {error}",
                where=store.url,
                remedy="ask for the right to create, overwrite and delete objects; workers need it",
            )
        return


def _clock(store: Store, offset_s: float) -> Iterator[Finding]:
    if abs(offset_s) < _OFFSET_NOTED_S:
        return
    side = "behind" if offset_s > 0 else "ahead of"
    yield Finding(
        kind="clock",
        level="problem" if abs(offset_s) >= _OFFSET_HARMFUL_S else "note",
        what=f"this machine's clock is {abs(offset_s):.0f} s {side} the store's",
        where=store.url,
        remedy="let it follow a time server; leases go by the store's clock, but credentials do not",
    )
