"""Injected faults: which requests fail, in which way, how often."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Action = Literal["lose_response", "lose_request", "hang", "status", "delay", "damage"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Injected fault; a request suffers from the first that matches it.

    Args:
        action: `lose_response` does what was asked, then breaks the connection; `lose_request` breaks it before;
            `hang` never answers; `status` answers `status` and does nothing; `delay` waits `delay_s` and goes on;
            `damage` flips a bit of the data that is sent back.
        operation: as the journal names it (`insert`, `get`, `list`, `delete`, …); None for all.
        name: pattern of the object's name (`*` and `?`); listings match by their prefix.
        door: of this door only; None for all.
        times: how many requests suffer; None for all, until the fault is removed.
        chance: share of the fitting requests that suffer, drawn with the server's seed.
    """

    action: Action
    operation: str | None = None
    name: str = "*"
    door: str | None = None
    times: int | None = 1
    status: int = 503
    delay_s: float = 0.0
    chance: float = 1.0

    def fits(self, operation: str, name: str, door: str) -> bool:
        return (
            self.operation in (None, operation) and self.door in (None, door) and fnmatchcase(name, self.name)
        )


class Faults:
    """Active faults. Thread-safe."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._orders: dict[int, tuple[Fault, int | None]] = {}
        self._next = 0

    def add(self, fault: Fault) -> int:
        """Activate the fault and return a number for `remove`."""
        with self._lock:
            self._next += 1
            self._orders[self._next] = (fault, fault.times)
            return self._next

    def remove(self, number: int) -> None:
        with self._lock:
            self._orders.pop(number, None)

    def clear(self) -> None:
        with self._lock:
            self._orders.clear()

    def draw(self, operation: str, name: str, door: str) -> Fault | None:
        """Return the fault of this request, and count it."""
        with self._lock:
            for number, (fault, left) in self._orders.items():
                if not fault.fits(operation, name, door) or self._random.random() >= fault.chance:
                    continue
                if left is not None and left <= 1:
                    del self._orders[number]
                else:
                    self._orders[number] = (fault, None if left is None else left - 1)
                return fault
        return None
