"""What to do about a pool of TPU VMs: pure, from what is seen and what is wanted. `watch` does what it says.

One worker has one VM. It is asked for as a queued resource (`queued`), which makes a node of the same name,
or as a node alone. What a worker has in one zone is a *holding*: its request, its node, or both.

    nothing, everywhere                         create, in the zone whose turn it is
    being made, or at work                      leave it
    PREEMPTED, SUSPENDED, FAILED, STOPPED …     delete with force; when it is gone, the first line applies
    its worker crashed too often on it          delete, and so on another VM, `restarts` times
    two holdings                                keep the better one, delete the other
    its worker has ended, or is not wanted      delete
    no work is left, and its VM is not READY    its worker has ended
    DELETING, and we did not ask for that       its worker has ended: somebody took it down, or the VM itself

Nothing is created for a worker while a zone does not answer, or while one of its creations is on its way:
there may be a VM that is not seen. So a lost answer costs time, and never a second VM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from runners.tpu_vm.observed import GOING, NODE_DEAD, QUEUED_DEAD, Holding, Kind, Observed, Resource
from runners.tpu_vm.observed import holdings as holdings_of
from runners.workers.restarts import POISON, End

Ended = End | Literal["removed"]
Outcome = Literal["accepted", "exists", "stockout", "refused", "unknown"]

# A secret that the VM may not read, it may not read on the next VM either.
_POISON = (*map(str, POISON), "secret")
# google.rpc.Code of a request that is wrong in this zone, whenever it is asked: INVALID_ARGUMENT, NOT_FOUND,
# PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED. Anything else is a lack of capacity.
_WRONG = frozenset({3, 5, 7, 9, 12, 16})


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What shall be there.

    Args:
        workers: how many.
        zones: where; the first is tried first.
        restarts: crashes after which a worker is given up.
        share: whether a worker that ends well has only done its share; else no work is left for anybody.
    """

    workers: int
    zones: tuple[str, ...]
    restarts: int = 5
    share: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the keeper knows beside what it sees. Losing it costs time, and never a second VM.

    Args:
        turn: the position of the zone that a worker is tried in next.
        refused: zones where the request itself is wrong, and why.
        ended: workers that are not started again.
        crashes: how often a worker's VM ended badly.
        counted: nodes whose end was counted.
        useful: zone and name of what was there for a worker, and not deleted by us.
    """

    turn: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    ended: Mapping[int, Ended] = field(default_factory=dict)
    crashes: Mapping[int, int] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    useful: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Create:
    """Ask for a VM for this worker."""

    worker: int
    zone: str


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Delete with force: a queued resource takes its node along."""

    worker: int
    kind: Kind
    zone: str
    id: str
    why: str


Action = Create | Delete


def decide(seen: Observed, wanted: Wanted, memory: Memory) -> tuple[tuple[Action, ...], Memory]:
    """What to do now, and what to remember. Asked again and again, it brings what is seen to what is
    wanted."""
    memory = _taken_down(_learn(seen, wanted, memory), seen, wanted)
    actions: list[Action] = []
    for worker in sorted({thing.worker for thing in seen.things} | set(range(1, wanted.workers + 1))):
        holdings = holdings_of([thing for thing in seen.things if thing.worker == worker])
        unwanted = "its worker has ended" if worker in memory.ended else ""
        if worker > wanted.workers:
            unwanted = "not wanted"
        if unwanted:
            actions += [_delete(each, unwanted) for each in holdings if not each.going]
        elif holdings:
            actions += _sort_out(holdings, wanted.zones)
        elif not seen.blind and worker not in seen.pending:
            actions.append(Create(worker=worker, zone=wanted.zones[_turn(worker, wanted, memory)]))
    deleted = {(each.zone, each.id) for each in actions if isinstance(each, Delete)}
    there = {each.place for each in holdings_of(seen.things) if each.settled and not each.going}
    blind = {place for place in memory.useful if place[0] in seen.blind}
    return tuple(actions), replace(memory, useful=frozenset(blind | (there - deleted)))


def after(memory: Memory, create: Create, wanted: Wanted, outcome: Outcome, problem: str = "") -> Memory:
    """What to remember of a creation's outcome. Only a definite no moves a worker on to the next zone."""
    if outcome == "refused":
        return replace(memory, refused={**memory.refused, create.zone: problem})
    if outcome == "stockout":
        return _move_on(memory, create.worker, create.zone, wanted)
    return memory


def _sort_out(holdings: list[Holding], zones: tuple[str, ...]) -> list[Action]:
    useful = [each for each in holdings if not each.going and not each.dead]
    order = {zone: position for position, zone in enumerate(zones)}
    # A VM in a zone that is no longer in the list does its work as well as another.
    best = max(
        useful, key=lambda each: (each.rank, -order.get(each.zone, len(zones)), each.zone), default=None
    )
    return [
        _delete(each, each.dead or "a second one") for each in holdings if not each.going and each is not best
    ]


def _learn(seen: Observed, wanted: Wanted, memory: Memory) -> Memory:
    for thing in seen.things:
        if thing.kind == "queued" and thing.state == "FAILED" and thing.zone in wanted.zones:
            if thing.code in _WRONG:
                memory = replace(memory, refused={**memory.refused, thing.zone: thing.problem})
            else:
                memory = _move_on(memory, thing.worker, thing.zone, wanted)
        elif thing.ended and thing.uid not in memory.counted:
            memory = _count(memory, thing, wanted)
    if not wanted.share and "done" in memory.ended.values():
        at_work = {thing.worker for thing in seen.things if thing.kind == "node" and thing.state == "READY"}
        idle = set(range(1, wanted.workers + 1)) - at_work - set(memory.ended)
        memory = replace(memory, ended={**memory.ended, **dict.fromkeys(idle, "done")})
    if wanted.workers and all(zone in memory.refused for zone in wanted.zones):
        held = {thing.worker for thing in seen.things if thing.state not in QUEUED_DEAD | NODE_DEAD | GOING}
        lost = set(range(1, wanted.workers + 1)) - held - seen.pending - set(memory.ended)
        memory = replace(memory, ended={**memory.ended, **dict.fromkeys(lost, "poison")})
    return memory


def _taken_down(memory: Memory, seen: Observed, wanted: Wanted) -> Memory:
    """Workers whose VM somebody else deletes have ended; all have, where that is done to every VM there
    was."""
    removed = {each.place for each in holdings_of(seen.things) if each.removed} & memory.useful
    if not removed:
        return memory
    if removed == memory.useful:
        workers = set(range(1, wanted.workers + 1))
    else:
        workers = {thing.worker for thing in seen.things if (thing.zone, thing.id) in removed}
    lost = workers - set(memory.ended)
    return replace(memory, ended={**memory.ended, **dict.fromkeys(lost, "removed")})


def _count(memory: Memory, node: Resource, wanted: Wanted) -> Memory:
    worker = node.worker
    memory = replace(memory, counted=memory.counted | {node.uid})
    end: End | None = None
    if node.ended == "0":
        end = "done"
    elif node.ended in _POISON:
        end = "poison"
    elif memory.crashes.get(worker, 0) >= wanted.restarts:
        end = "given up"
    if end is not None:
        return replace(memory, ended={**memory.ended, worker: end})
    return replace(memory, crashes={**memory.crashes, worker: memory.crashes.get(worker, 0) + 1})


def _move_on(memory: Memory, worker: int, zone: str, wanted: Wanted) -> Memory:
    position = wanted.zones.index(zone) if zone in wanted.zones else -1
    return replace(memory, turn={**memory.turn, worker: (position + 1) % len(wanted.zones)})


def _turn(worker: int, wanted: Wanted, memory: Memory) -> int:
    """The position of the next zone where the request is not wrong."""
    count, start = len(wanted.zones), memory.turn.get(worker, 0)
    turns = [(start + step) % count for step in range(count)]
    return next((turn for turn in turns if wanted.zones[turn] not in memory.refused), start % count)


def _delete(holding: Holding, why: str) -> Delete:
    top = holding.top
    return Delete(worker=top.worker, kind=top.kind, zone=top.zone, id=top.id, why=why)
