"""Checks of this machine's access to the sweep's store: reading, writing, and the clocks."""

from __future__ import annotations

import time

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
    findings: list[Finding] = []
    for _ in range(_TRIES):  # write and remove a probe; another `sweep doctor` may win a race for it
        try:
            try:
                _, version = store.read(PROBE_KEY)  # left by an interrupted `sweep doctor`
            except NotFound:
                version = store.create(PROBE_KEY, b"probe")
            store.delete(PROBE_KEY, version)
        except StoreConflict:
            continue  # this machine's writes reached the store
        except EnvironmentFault as error:
            finding = Finding(
                kind="store",
                what=f"it can be read but not written: {error}",
                where=store.url,
                remedy="ask for the right to create, overwrite and delete objects; workers need it",
            )
            findings.append(finding)
        break
    offset_s = clock_offset(store)
    if abs(offset_s) >= _OFFSET_NOTED_S:
        side = "behind" if offset_s > 0 else "ahead of"
        finding = Finding(
            kind="clock",
            level="problem" if abs(offset_s) >= _OFFSET_HARMFUL_S else "note",
            what=f"this machine's clock is {abs(offset_s):.0f} s {side} the store's",
            where=store.url,
            remedy="let it follow a time server; leases go by the store's clock, but credentials do not",
        )
        findings.append(finding)
    clock = f"the store's is {abs(offset_s):.1f} s {'ahead' if offset_s >= 0 else 'behind'}"
    return {"store": store.url, "clock": clock}, findings


def clock_offset(store: Store) -> float:
    """Return the store's time minus this machine's, in seconds."""
    before = time.time()
    there = store.now()
    return there - (before + time.time()) / 2
