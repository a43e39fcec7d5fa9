"""Zones, queued resources and nodes, by the rules that the package's docstring assumes. `server` adds gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

INVALID, NOT_FOUND, EXISTS, DENIED, EXHAUSTED, PRECONDITION = 3, 5, 6, 7, 8, 9


class Refused(Exception):
    """Refusal by the service, with a google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


@dataclass
class Node:
    zone: str
    id: str
    number: int
    spec: Any
    state: str = "CREATING"
    request: str = ""
    ended: str = ""


@dataclass
class Request:
    zone: str
    id: str
    spec: Any
    spot: bool
    state: str = "WAITING_FOR_RESOURCES"
    code: int = 0
    problem: str = ""
    ticks_left: int = 5


@dataclass
class Operation:
    name: str
    zone: str
    gives: str
    node: str = ""
    done: bool = False
    error: Refused | None = None


@dataclass
class Cloud:
    """Fake service.

    Args:
        capacity: by zone: the number of nodes left; unlimited in other zones.
        wrong: by zone: the code with which the request itself is refused.
    """

    capacity: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    requests: dict[tuple[str, str], Request] = field(default_factory=dict)
    nodes: dict[tuple[str, str], Node] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    journal: list[tuple[str, str, str]] = field(default_factory=list)
    made: int = 0

    def create_request(self, zone: str, id_: str, spec: Any, *, node_id: str, spot: bool) -> Operation:
        self._admit(zone)
        if (zone, id_) in self.requests:
            raise Refused(EXISTS, f"{id_} exists")
        assert node_id == id_
        self.journal.append(("create", zone, id_))
        self.requests[zone, id_] = Request(zone, id_, spec, spot)
        return self._operation(zone, "QueuedResource", done=True)

    def create_node(self, zone: str, id_: str, spec: Any) -> Operation:
        self._admit(zone)
        if (zone, id_) in self.nodes:
            raise Refused(EXISTS, f"{id_} exists")
        self.journal.append(("create", zone, id_))
        self._node(zone, id_, spec)
        return self._operation(zone, "Node", node=id_)

    def delete_request(self, zone: str, id_: str, *, force: bool) -> Operation:
        request = self._find(self.requests, zone, id_)
        node = self.nodes.get((zone, id_))
        if node is not None and not force and request.state not in ("ACCEPTED", "FAILED", "SUSPENDED"):
            raise Refused(PRECONDITION, f"{id_} has a node; use force")
        self.journal.append(("delete", zone, id_))
        request.state = "DELETING"
        if node is not None:
            node.state = "DELETING"
        return self._operation(zone, "Empty", done=True)

    def delete_node(self, zone: str, id_: str) -> Operation:
        node = self._find(self.nodes, zone, id_)
        if node.request and (zone, node.request) in self.requests:
            raise Refused(PRECONDITION, f"{id_} belongs to a queued resource")
        self.journal.append(("delete", zone, id_))
        node.state = "DELETING"
        return self._operation(zone, "Empty", done=True)

    def preempt(self, zone: str, id_: str) -> bool:
        """Preempt a node if it exists; return True if so."""
        node = self.nodes.get((zone, id_))
        if node is None or node.state not in ("READY", "CREATING"):
            return False
        node.state = "PREEMPTED"
        self._free(zone)
        request = self.requests.get((zone, id_))
        if request is not None and request.state != "DELETING":
            request.state = "SUSPENDING"
        return True

    def tick(self) -> None:
        """Advance every transition by one step."""
        for key, request in list(self.requests.items()):
            self._step_request(key, request)
        for key, node in list(self.nodes.items()):
            if node.state == "DELETING":
                del self.nodes[key]
                self._free(node.zone)
            elif node.state == "CREATING" and not node.request:
                if self._take(node.zone):
                    node.state = "READY"
                    self._end(node, None)
                else:
                    del self.nodes[key]
                    self._end(
                        node, Refused(EXHAUSTED, f'There is no more capacity in the zone "{node.zone}"')
                    )

    def alive(self) -> Iterator[Node]:
        """Return the nodes that cost money."""
        return (node for node in self.nodes.values() if node.state in ("CREATING", "READY"))

    def _step_request(self, key: tuple[str, str], request: Request) -> None:
        node = self.nodes.get(key)
        if request.state == "DELETING" and node is None:
            del self.requests[key]
        elif request.state == "SUSPENDING":
            request.state = "SUSPENDED"
        elif request.state == "PROVISIONING" and node is not None and node.state == "CREATING":
            node.state, request.state = "READY", "ACTIVE"
        elif request.state == "WAITING_FOR_RESOURCES":
            request.ticks_left -= 1
            if self._take(request.zone):
                request.state = "PROVISIONING"
                self._node(request.zone, request.id, request.spec, request=request.id)
            elif request.ticks_left <= 0:
                request.state, request.code, request.problem = "FAILED", 4, "the valid until time has passed"

    def _node(self, zone: str, id_: str, spec: Any, request: str = "") -> None:
        self.made += 1
        self.nodes[zone, id_] = Node(zone, id_, self.made, spec, request=request)

    def _admit(self, zone: str) -> None:
        if zone in self.wrong:
            raise Refused(self.wrong[zone], f"{zone} refuses")

    def _take(self, zone: str) -> bool:
        if self.capacity.get(zone, 1) < 1:
            return False
        if zone in self.capacity:
            self.capacity[zone] -= 1
        return True

    def _free(self, zone: str) -> None:
        if zone in self.capacity:
            self.capacity[zone] += 1

    def _end(self, node: Node, error: Refused | None) -> None:
        for operation in self.operations.values():
            if operation.node == node.id and operation.zone == node.zone and not operation.done:
                operation.done, operation.error = True, error

    def _operation(self, zone: str, gives: str, *, node: str = "", done: bool = False) -> Operation:
        name = f"projects/p/locations/{zone}/operations/{len(self.operations) + 1}"
        self.operations[name] = Operation(name, zone, gives, node, done)
        return self.operations[name]

    @staticmethod
    def _find(items: dict[tuple[str, str], Any], zone: str, id_: str) -> Any:
        if (zone, id_) not in items:
            raise Refused(NOT_FOUND, f"{id_} is not there")
        return items[zone, id_]
