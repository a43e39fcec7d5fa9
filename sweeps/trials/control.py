"""Switch of a sweep, `control.json`: running, paused (nothing is claimed) or stopped (workers leave).

`sweep pause`, `resume`, `stop` and the brake write it, every worker reads it before a claim. Without the
object the sweep runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sweeps.errors import StoreConflict, unreadable
from sweeps.storage.base import NotFound, Store, put
from sweeps.text import json_reader
from sweeps.trials import storable
from sweeps.trials.redaction import redacted_line

KEY = "control.json"

State = Literal["running", "paused", "stopped"]

BRAKE = "brake"
"""Value of `Switch.by` where no user paused the sweep."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """State of a sweep and its last change.

    Args:
        by: who changed it last; `BRAKE` where the sweep paused itself.
        at: the store's time of that change, in seconds since the epoch; 0 without one.
    """

    state: State = "running"
    by: str = ""
    at: float = 0.0
    why: str = ""
    version: str | None = None

    @property
    def braked(self) -> bool:
        """Return whether the sweep has paused itself."""
        return self.state == "paused" and self.by == BRAKE


def read(store: Store) -> State:
    """Return the current state. Raises `DamagedObject`."""
    return switch(store).state


def brake(store: Store, observed: Switch, why: str) -> None:
    """Pause the sweep for this reason, unless the switch has changed since it was `observed`."""
    document = {"state": "paused", "by": BRAKE, "at": store.now(), "why": redacted_line(why)}
    _put(store, document, observed.version)


def write(store: Store, state: State, by: str) -> None:
    """Change the state, whatever it is now: the last writer wins."""
    if state not in get_args(State):
        raise ValueError(f"{state!r} is none of {', '.join(get_args(State))}")
    document = {"state": state, "by": redacted_line(by), "at": store.now()}
    while not _put(store, document, switch(store).version):
        pass


def switch(store: Store) -> Switch:
    """Return the state with who changed it, when and why. Raises `DamagedObject`."""
    try:
        data, version = store.read(KEY)
    except NotFound:
        return Switch()
    try:
        document = json_reader.parse(data)
        # A person may have left the schema out.
        json_reader.require_schema({"schema": 1, **document}, 1)
        if (state := document["state"]) not in get_args(State):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        reason = "state is none of " + ", ".join(get_args(State))
        raise unreadable(KEY, error, store.location(KEY), reason) from None
    by, at, why = (document.get(name) for name in ("by", "at", "why"))  # missing, or edited badly: defaults
    return Switch(
        state=state,
        by=by if isinstance(by, str) else "",
        at=storable.seconds(at),
        why=why if isinstance(why, str) else "",
        version=version,
    )


def _put(store: Store, document: dict[str, Any], version: str | None) -> bool:
    """Write the switch over this version; return False if another writer was faster."""
    try:
        put(store, KEY, json.dumps({"schema": 1, **document}).encode(), version)
    except StoreConflict:
        return False
    return True
