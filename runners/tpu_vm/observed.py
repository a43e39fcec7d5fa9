"""What there is of a pool of TPU VMs, as the service tells of it, and what a worker has in one place. Pure.

`client` makes these values, `decide` thinks about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["queued", "node"]

# How far a holding is; the higher, the better. States that are in none of these tables are waited for.
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
GOING = frozenset({"DELETING", "SUSPENDING", "STOPPING", "HIDING"})


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A queued resource or a node of the pool, as the service tells of it.

    Args:
        worker: whose it is, from 1.
        id: its name in the zone.
        uid: tells this node from the next one of the same name.
        state: the service's word for it.
        ended: what its worker's launcher ended with, where it told so: an exit status or a word. "" while it
            works.
        code: why a queued resource FAILED, as google.rpc.Code.
        problem: the same in words.
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


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All that there is of a pool.

    Args:
        blind: zones that did not answer.
        pending: workers with a creation whose end is not known yet.
    """

    things: tuple[Resource, ...] = ()
    blind: frozenset[str] = frozenset()
    pending: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What a worker has under one name in one zone.

    Args:
        top: what to delete, for all of it to go: the queued resource, or the node that has none.
        node: the node, if there is one.
    """

    top: Resource
    node: Resource | None = None

    @property
    def zone(self) -> str:
        """Where it is."""
        return self.top.zone

    @property
    def place(self) -> tuple[str, str]:
        """Its zone and its name."""
        return self.top.zone, self.top.id

    @property
    def going(self) -> bool:
        """On its way out; nothing more is to be done about it."""
        return self.top.state in GOING

    @property
    def removed(self) -> bool:
        """On its way out because somebody deletes it; what the service takes away is SUSPENDING."""
        return self.top.state == "DELETING"

    @property
    def settled(self) -> bool:
        """Whether only a person ends it without a word: the service cleans up a node that it cannot make."""
        return self.top.kind == "queued" or self.top.state == "READY"

    @property
    def dead(self) -> str:
        """Why it is of no use any more, else ""."""
        if self.top.kind == "queued" and self.top.state in QUEUED_DEAD:
            return f"{self.top.state} {self.top.problem}".strip()
        if self.node is None:
            return "without its node" if self.top.state == "ACTIVE" else ""
        if self.node.state in NODE_DEAD:
            return self.node.state
        return f"its worker ended with {self.node.ended}" if self.node.ended else ""

    @property
    def rank(self) -> int:
        """How far it is."""
        queued = _QUEUED_RANK.get(self.top.state, 0) if self.top.kind == "queued" else 0
        return max(queued, _NODE_RANK.get(self.node.state, 0) if self.node else 0)


def holdings(things: Sequence[Resource]) -> list[Holding]:
    """Requests and nodes of one name and zone together, in the order of these."""
    nodes = {(thing.zone, thing.id): thing for thing in things if thing.kind == "node"}
    tops = nodes | {(thing.zone, thing.id): thing for thing in things if thing.kind == "queued"}
    return [Holding(top=tops[place], node=nodes.get(place)) for place in sorted(tops)]
