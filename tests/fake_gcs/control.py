"""A fake that runs in another process: the endpoint it answers, and the client that a test holds.

POST   /_control/faults    a Fault as JSON         → {"number": 3}
DELETE /_control/faults    {"number": 3} or {}     → {}           one fault, or all
POST   /_control/settings  {"latency_s", "clock_skew_s", "one_write_per_second"}: any of them → {}
POST   /_control/doors     {"name": "worker-1"}    → {"url": …}
POST   /_control/buckets   {"name": "b"}           → {}
GET    /_control/journal                           → {"bill": {…}, "entries": [[door, operation, name, status, fault, sent], …]}
DELETE /_control/journal                           → {}
"""

from __future__ import annotations

import dataclasses
import json
import urllib.request
from typing import TYPE_CHECKING, Any

from fake_gcs.faults import Fault
from fake_gcs.journal import Entry

if TYPE_CHECKING:
    from fake_gcs.server import FakeGcs


def answer(server: FakeGcs, path: str, method: str, body: bytes) -> dict[str, Any]:
    """Handle a request to the control endpoint, in a thread of its own."""
    order: dict[str, Any] = json.loads(body) if body else {}
    match method, path.removeprefix("/_control/"):
        case "POST", "faults":
            return {"number": server.faults.add(Fault(**order))}
        case "DELETE", "faults":
            server.faults.remove(order["number"]) if order else server.faults.clear()
        case "POST", "settings":
            server.latency_s = order.get("latency_s", server.latency_s)
            server.objects.clock_skew_s = order.get("clock_skew_s", server.objects.clock_skew_s)
            limited = order.get("one_write_per_second", server.objects.one_write_per_second)
            server.objects.one_write_per_second = limited
        case "POST", "doors":
            return {"url": server.door(order["name"])}
        case "POST", "buckets":
            server.objects.make_bucket(order["name"])
        case "GET", "journal":
            return {"bill": server.journal.bill(), "entries": server.journal.entries()}
        case "DELETE", "journal":
            server.journal.clear()
        case _:
            raise ValueError(f"the fake has no {method} {path}")
    return {}


class Remote:
    """Client of a fake in another process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def add(self, fault: Fault) -> int:
        return int(self._call("POST", "faults", dataclasses.asdict(fault))["number"])

    def remove(self, number: int) -> None:
        self._call("DELETE", "faults", {"number": number})

    def clear(self) -> None:
        self._call("DELETE", "faults")

    def set(self, **settings: float | bool) -> None:
        """Set `latency_s`, `clock_skew_s` or `one_write_per_second`."""
        self._call("POST", "settings", settings)

    def door(self, name: str) -> str:
        return str(self._call("POST", "doors", {"name": name})["url"])

    def make_bucket(self, name: str) -> None:
        self._call("POST", "buckets", {"name": name})

    def bill(self) -> dict[str, float]:
        return dict(self._call("GET", "journal")["bill"])

    def entries(self) -> list[Entry]:
        return [Entry(*entry) for entry in self._call("GET", "journal")["entries"]]

    def clear_journal(self) -> None:
        self._call("DELETE", "journal")

    def _call(self, method: str, what: str, order: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if order is None else json.dumps(order).encode()
        request = urllib.request.Request(f"{self.url}/_control/{what}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return dict(json.load(response))
