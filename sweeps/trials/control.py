"""The switch of a sweep, `control.json`: running, paused (nothing is claimed) or stopped (workers leave).

`sweep pause`, `resume` and `stop` turn it, and so does the `brake`; every worker looks before it claims. No
object means running.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sweeps.errors import AlreadyExists, Conflict, DamagedObject
from sweeps.storage.base import NotFound, Store
from sweeps.text import json_reader
from sweeps.trials import storable
from sweeps.trials.redaction import redact

KEY = "control.json"

State = Literal["running", "paused", "stopped"]


_LATEST = 1e15  # seconds; whatever is more is no time

BRAKE = "brake"
"""Who turned the switch, where no person did."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """The switch as it was found.

    Args:
        by: who turned it last; `BRAKE` where the sweep paused itself.
        at: when, by the store's clock; 0 where nobody has.
        why: the reason, where one was given.
        version: of the object; None where there is none.
    """

    state: State = "running"
    by: str = ""
    at: float = 0.0
    why: str = ""
    version: str | None = None

    @property
    def braked(self) -> bool:
        """Whether the sweep has paused itself."""
        return self.state == "paused" and self.by == BRAKE


def read(store: Store) -> State:
    """The present state. Raises `DamagedObject`."""
    return switch(store).state


def brake(store: Store, seen: Switch, why: str) -> None:
    """Pause the sweep for this reason, unless somebody has turned the switch since it was `seen`."""
    document = {
        "schema": 1,
        "state": "paused",
        "by": BRAKE,
        "at": store.now(),
        "why": redact(storable.line(why)),
    }
    data = json.dumps(document).encode()
    try:
        if seen.version is None:
            store.create(KEY, data)
        else:
            store.replace(KEY, data, seen.version)
    except (AlreadyExists, Conflict):
        return


def write(store: Store, state: State, by: str) -> None:
    """Turn the switch. The last one to turn it wins, as with any switch."""
    document = {"schema": 1, "state": state, "by": redact(storable.line(by)), "at": store.now()}
    data = json.dumps(document).encode()
    if _state(data) != state:
        raise ValueError(f"{state!r} is none of {', '.join(get_args(State))}")
    while True:
        version = switch(store).version
        try:
            if version is None:
                store.create(KEY, data)
            else:
                store.replace(KEY, data, version)
        except (AlreadyExists, Conflict):
            continue
        return


def switch(store: Store) -> Switch:
    """The switch with who turned it, when and why. Raises `DamagedObject`."""
    try:
        data, version = store.read(KEY)
    except NotFound:
        return Switch()
    state = _state(data)
    if state is None:
        raise DamagedObject(KEY, "state is none of " + ", ".join(get_args(State)), store.location(KEY))
    return _switch(state, json_reader.parse(data), version)


def _state(data: bytes) -> State | None:
    """Return what the switch says; None for anything that is no switch."""
    try:
        written = json_reader.parse(data)["state"]
    except (ValueError, KeyError, TypeError):
        return None
    states: tuple[State, ...] = get_args(State)
    return next((state for state in states if state == written), None)


def _switch(state: State, document: dict[str, Any], version: str) -> Switch:
    """Earlier versions gave no reason; nothing that a person wrote into the others may stop a worker."""
    by, at, why = (document.get(name) for name in ("by", "at", "why"))
    return Switch(
        state=state,
        by=by if isinstance(by, str) else "",
        at=float(at) if isinstance(at, int | float) and abs(at) < _LATEST else 0.0,
        why=why if isinstance(why, str) else "",
        version=version,
    )
