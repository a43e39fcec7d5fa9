"""Observed state of a pool of TPU VMs, as the service reports it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["queued", "node"]

# Progress of a holding; higher is better. States in none of these tables are transient: they are waited for.
_QUEUED_RANK = {"CREATING": 1, "ACCEPTED": 1, "WAITING_FOR_RESOURCES": 1, "PROVISIONING": 2, "ACTIVE": 3}
QUEUED_DEAD = frozenset({"SUSPENDED", "FAILED"})
_NODE_RANK = {
    "CREATING": 3,
    "REIMAGING": 3,
    "STARTING": 3,
    "UNHIDING": 3,
    "REPAIRING": 4,
    "RESTARTING": 4,
    "READY": 5,
}
NODE_DEAD = frozenset({"PREEMPTED", "TERMINATED", "STOPPED", "HIDDEN", "UNKNOWN"})
LEAVING = frozenset({"DELETING", "SUSPENDING", "STOPPING", "HIDING"})
# Only what has been READY comes into one of these. A node may be DELETING that could not be made.
_HAS_BEEN_READY = {
    "queued": frozenset({"ACTIVE", "SUSPENDING", "SUSPENDED"}),
    "node": (frozenset(_NODE_RANK) | NODE_DEAD | LEAVING) - {"CREATING", "UNKNOWN", "DELETING"},
}


@dataclass(frozen=True, kw_only=True)
class Resource:
    """Queued resource or node of the pool.

    Args:
        worker: number of the worker that it belongs to, from 1.
        uid: distinguishes a node from a later one of the same name.
        ended: exit status of its worker's supervisor, or the step that failed; "" while it works.
        code: google.rpc.Code of a queued resource that FAILED.
        has_begun: its request said that the worker has had a VM at work before.
    """

    kind: Kind
    zone: str
    worker: int
    id: str
    state: str
    uid: str = ""
    ended: str = ""
    code: int = 0
    problem: str = ""
    has_begun: bool = False

    @property
    def shows_begun(self) -> bool:
        """Return True where its worker has had a READY VM: this one, or by its label an earlier one."""
        return self.has_begun or self.state in _HAS_BEEN_READY[self.kind]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Observed state of a pool.

    Args:
        pending: workers with a creation that has not finished yet.
    """

    resources: tuple[Resource, ...] = ()
    unreachable: frozenset[str] = frozenset()
    pending: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Resources of a worker under one name in one zone.

    Args:
        top: the resource whose deletion deletes all: the queued resource, or a node without one.
    """

    top: Resource
    node: Resource | None = None

    @property
    def zone(self) -> str:
        """Return the zone."""
        return self.top.zone

    @property
    def key(self) -> tuple[str, str]:
        """Return the zone and the name."""
        return self.top.zone, self.top.id

    @property
    def leaving(self) -> bool:
        """Return True where it is being removed already."""
        return self.top.state in LEAVING

    @property
    def removed(self) -> bool:
        """Return True where somebody is deleting it; what the service takes away is SUSPENDING."""
        return self.top.state == "DELETING"

    @property
    def established(self) -> bool:
        """Return True where only a person would delete it; the service deletes nodes that it cannot make."""
        return self.top.kind == "queued" or self.top.state == "READY"

    @property
    def dead(self) -> str:
        """Return why it is of no use any more, else ""."""
        if self.top.kind == "queued" and self.top.state in QUEUED_DEAD:
            return f"{self.top.state} {self.top.problem}".strip()
        if self.node is None:
            return "without its node" if self.top.state == "ACTIVE" else ""
        if self.node.state in NODE_DEAD:
            return self.node.state
        return f"its worker ended with {self.node.ended}" if self.node.ended else ""

    @property
    def rank(self) -> int:
        """Return its progress; higher is better."""
        queued = _QUEUED_RANK.get(self.top.state, 0) if self.top.kind == "queued" else 0
        return max(queued, _NODE_RANK.get(self.node.state, 0) if self.node else 0)


def holdings(resources: Sequence[Resource]) -> list[Holding]:
    """Return the resources grouped by zone and name, in this order."""
    nodes = {(each.zone, each.id): each for each in resources if each.kind == "node"}
    tops = nodes | {(each.zone, each.id): each for each in resources if each.kind == "queued"}
    return [Holding(top=tops[key], node=nodes.get(key)) for key in sorted(tops)]
