"""The switch of a sweep, `control.json`: running, paused (nothing is claimed) or stopped (workers leave).

`sweep pause`, `resume` and `stop` turn it, every worker looks before it claims. No object means running.
"""

from __future__ import annotations

import json
from typing import Literal, get_args

from sweeps.errors import AlreadyExists, Conflict, DamagedObject
from sweeps.storage.base import NotFound, Store

KEY = "control.json"

State = Literal["running", "paused", "stopped"]


def read(store: Store) -> State:
    """The present state. Raises `DamagedObject`."""
    return _read(store)[0]


def write(store: Store, state: State, by: str) -> None:
    """Turn the switch. The last one to turn it wins, as with any switch."""
    data = json.dumps({"schema": 1, "state": state, "by": by, "at": store.now()}).encode()
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
    states: tuple[State, ...] = get_args(State)
    try:
        written = json.loads(data)["state"]
    except (ValueError, KeyError, TypeError):
        written = None
    for state in states:
        if written == state:
            return state, version
    raise DamagedObject(KEY, "state is none of " + ", ".join(states), store.location(KEY))
