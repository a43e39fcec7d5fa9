"""Journal of the requests to the fake, and Google's bill for them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal, NamedTuple

Billing = Literal["A", "B", "free"]

# List prices in dollars for a thousand, standard storage in one region.
USD_PER_THOUSAND = {"A": 0.005, "B": 0.0004}
CLASSES: dict[str, Billing] = {
    "insert": "A",
    "list": "A",
    "rewrite": "A",
    "patch": "A",
    "compose": "A",
    "make_bucket": "A",
    "list_buckets": "A",
    "get": "B",
    "stat": "B",
    "get_bucket": "B",
    "delete": "free",
    "upload_part": "A",
    "complete": "A",
    "abort": "free",
    "other": "free",
}


class Entry(NamedTuple):
    """A request; status 0 where the connection was broken instead of a response, `sent` the bytes of its body."""

    door: str
    operation: str
    name: str
    status: int
    fault: str
    sent: int = 0


class Journal:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        with self._lock:
            self._entries.append(entry)

    def entries(self, operation: str | None = None) -> list[Entry]:
        with self._lock:
            return [entry for entry in self._entries if operation in (None, entry.operation)]

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def bill(self) -> dict[str, float]:
        """Return the number of requests by class and their dollars; refused ones (429, 5xx) are free."""
        counts = Counter(
            CLASSES[entry.operation] for entry in self.entries() if entry.status != 429 and entry.status < 500
        )
        usd = counts["A"] / 1000 * USD_PER_THOUSAND["A"] + counts["B"] / 1000 * USD_PER_THOUSAND["B"]
        return {"A": counts["A"], "B": counts["B"], "free": counts["free"], "usd": usd}
