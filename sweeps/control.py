"""The switch of a sweep, `control.json`: running, paused (nothing is claimed) or stopped (workers leave).

`sweep pause`, `resume` and `stop` turn it, every worker looks before it claims. No object means running.
"""

from __future__ import annotations

import json
from typing import Literal, get_args

from sweeps import json_reader, storable
from sweeps.errors import AlreadyExists, Conflict, DamagedObject
from sweeps.redaction import redact
from sweeps.storage.base import NotFound, Store

KEY = "control.json"

State = Literal["running", "paused", "stopped"]


def read(store: Store) -> State:
    """The present state. Raises `DamagedObject`."""
    return _read(store)[0]


def write(store: Store, state: State, by: str) -> None:
    """Turn the switch. The last one to turn it wins, as with any switch."""
    document = {"schema": 1, "state": state, "by": redact(storable.line(by)), "at": store.now()}
    data = json.dumps(document).encode()
    if _state(data) != state:
        raise ValueError(f"{state!r} is none of {', '.join(get_args(State))}")
    while True:
        _, version = _read(store)
        try:
            if version is None:
                store.create(KEY, data)
            else:
                store.replace(KEY, data, version)
        except (AlreadyExists, Conflict):
            continue
        return


def _read(store: Store) -> tuple[State, str | None]:
    try:
        data, version = store.read(KEY)
    except NotFound:
        return "running", None
    state = _state(data)
    if state is None:
        raise DamagedObject(KEY, "state is none of " + ", ".join(get_args(State)), store.location(KEY))
    return state, version


def _state(data: bytes) -> State | None:
    """Return what the switch says; None for anything that is no switch."""
    try:
        written = json_reader.parse(data)["state"]
    except (ValueError, KeyError, TypeError):
        return None
    states: tuple[State, ...] = get_args(State)
    return next((state for state in states if state == written), None)
