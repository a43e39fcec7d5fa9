"""Policy for a pool of TPU VMs: a pure function from the observed and the wanted state to actions.

One worker has one VM. It is requested as a queued resource (`queued`), which makes a node of the same name,
or as a node alone. The resources of a worker in one zone are a *holding*: a queued resource, a node, or both.

    no holding anywhere                         create, in the worker's next zone
    being created, or at work                   leave it
    PREEMPTED, SUSPENDED, FAILED, STOPPED …     delete with force; when it is gone, the first line applies
    its worker crashed too often on it          delete, and so on another VM, `restarts` times
    two holdings                                keep the one with more progress, delete the other
    its worker has ended, or is not wanted      delete
    no work is left, and it never had a VM      its worker has ended
    DELETING, and we did not request that       its worker has ended: somebody took it down, or the VM itself

Nothing is created for a worker while a zone does not answer, or while one of its creations is pending: there
may be a VM that was not observed. So a lost answer costs time, and never a second VM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from runners.tpu_vm.observed import LEAVING, NODE_DEAD, QUEUED_DEAD, Holding, Kind, Observed
from runners.tpu_vm.observed import holdings as holdings_of
from runners.workers.restarts import POISON, End

Ended = End | Literal["removed"]
Outcome = Literal["accepted", "exists", "stockout", "refused", "unknown"]

# A secret that this VM may not read, the next one may not read either.
_POISON = (*map(str, POISON), "secret")
# google.rpc.Code of a request that is wrong in this zone at any time: INVALID_ARGUMENT, NOT_FOUND,
# PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED. Others mean a lack of capacity.
_WRONG = frozenset({3, 5, 7, 9, 12, 16})


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Wanted state of a pool.

    Args:
        restarts: crashes that are answered by another VM.
        share: a worker that ends well has only done its share; else no work is left for any worker.
    """

    workers: int
    zones: tuple[str, ...]
    restarts: int = 5
    share: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Supervisor's state besides what it observes. Losing it costs time, and never a second VM.

    Who has begun is observed, too, but for a worker whose VM is gone and not requested again yet.

    Args:
        turn: by worker: the position of the zone to try next.
        refused: by zone: why the request itself is wrong there.
        begun: workers that have had a READY VM, and so perhaps a trial.
        ended: workers that are not started again.
        crashes: by worker: how often its VM ended badly.
        counted: uids of the nodes whose end was counted.
        useful: zone and name of a worker's resources that existed and that we did not delete.
    """

    turn: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    begun: frozenset[int] = frozenset()
    ended: Mapping[int, Ended] = field(default_factory=dict)
    crashes: Mapping[int, int] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    useful: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Create:
    """Request of a VM for a worker; `has_begun` is a label of it, for a later supervisor."""

    worker: int
    zone: str
    has_begun: bool = False


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Deletion with force: a queued resource takes its node along."""

    worker: int
    kind: Kind
    zone: str
    id: str
    why: str


Action = Create | Delete


def decide(observed: Observed, wanted: Wanted, memory: Memory) -> tuple[tuple[Action, ...], Memory]:
    """Return the actions to take now, and what to remember; repeated, it converges on the wanted state."""
    memory = _notice_removals(_learn(observed, wanted, memory), observed, wanted)
    actions: list[Action] = []
    for worker in sorted({each.worker for each in observed.resources} | set(range(1, wanted.workers + 1))):
        holdings = holdings_of([each for each in observed.resources if each.worker == worker])
        unwanted = "its worker has ended" if worker in memory.ended else ""
        if worker > wanted.workers:
            unwanted = "not wanted"
        if unwanted:
            actions += [_delete(each, unwanted) for each in holdings if not each.leaving]
        elif holdings:
            actions += _delete_all_but_best(holdings, wanted.zones)
        elif not observed.unreachable and worker not in observed.pending:
            start = memory.turn.get(worker, 0) % len(wanted.zones)
            zones = (*wanted.zones[start:], *wanted.zones[:start])  # the first that has not refused
            zone = next((zone for zone in zones if zone not in memory.refused), zones[0])
            actions.append(Create(worker=worker, zone=zone, has_begun=worker in memory.begun))
    deleted = {(each.zone, each.id) for each in actions if isinstance(each, Delete)}
    existing = {each.key for each in holdings_of(observed.resources) if each.established and not each.leaving}
    unreachable = {key for key in memory.useful if key[0] in observed.unreachable}
    return tuple(actions), replace(memory, useful=frozenset(unreachable | (existing - deleted)))


def after(memory: Memory, create: Create, wanted: Wanted, outcome: Outcome, problem: str = "") -> Memory:
    """Return the memory after a creation's outcome; only a definite refusal moves on to the next zone."""
    if outcome == "refused":
        return replace(memory, refused={**memory.refused, create.zone: problem})
    if outcome == "stockout":
        return _move_on(memory, create.worker, create.zone, wanted)
    return memory


def _delete_all_but_best(holdings: list[Holding], zones: tuple[str, ...]) -> list[Action]:
    useful = [each for each in holdings if not each.leaving and not each.dead]
    order = {zone: position for position, zone in enumerate(zones)}
    # A VM in a zone that is no longer in the list works as well as another.
    best = max(
        useful, key=lambda each: (each.rank, -order.get(each.zone, len(zones)), each.zone), default=None
    )
    return [
        _delete(each, each.dead or "a duplicate")
        for each in holdings
        if not each.leaving and each is not best
    ]


def _learn(observed: Observed, wanted: Wanted, memory: Memory) -> Memory:
    """Remember failed requests, ended workers, and workers for which no work or no zone is left."""
    for each in observed.resources:
        if each.kind == "queued" and each.state == "FAILED" and each.zone in wanted.zones:
            if each.code in _WRONG:
                memory = replace(memory, refused={**memory.refused, each.zone: each.problem})
            else:
                memory = _move_on(memory, each.worker, each.zone, wanted)
        elif each.ended and each.uid not in memory.counted:
            memory = replace(memory, counted=memory.counted | {each.uid})
            crashes = memory.crashes.get(each.worker, 0)
            end: End | None = None
            if each.ended == "0":
                end = "done"
            elif each.ended in _POISON:
                end = "poison"
            elif crashes >= wanted.restarts:
                end = "given up"
            if end is not None:
                memory = replace(memory, ended={**memory.ended, each.worker: end})
            else:
                memory = replace(memory, crashes={**memory.crashes, each.worker: crashes + 1})
    begun = {each.worker for each in observed.resources if each.shows_begun}
    memory = replace(memory, begun=memory.begun | begun)
    everyone = set(range(1, wanted.workers + 1))
    if not wanted.share and "done" in memory.ended.values():
        # A worker finds no work while another one trains the last trial, whose VM may be preempted then.
        memory = _end(memory, everyone - memory.begun, "done")
    if wanted.workers and all(zone in memory.refused for zone in wanted.zones):
        gone = QUEUED_DEAD | NODE_DEAD | LEAVING
        held = {each.worker for each in observed.resources if each.state not in gone}
        memory = _end(memory, everyone - held - observed.pending, "poison")
    return memory


def _notice_removals(memory: Memory, observed: Observed, wanted: Wanted) -> Memory:
    """End workers whose VM somebody else deletes; end all, where that happens to every VM there was."""
    removed = {each.key for each in holdings_of(observed.resources) if each.removed} & memory.useful
    if not removed:
        return memory
    if removed == memory.useful:
        return _end(memory, set(range(1, wanted.workers + 1)), "removed")
    workers = {each.worker for each in observed.resources if (each.zone, each.id) in removed}
    return _end(memory, workers, "removed")


def _end(memory: Memory, workers: set[int], end: Ended) -> Memory:
    """Remember the end of those workers that have not ended before."""
    return replace(memory, ended={**memory.ended, **dict.fromkeys(workers - set(memory.ended), end)})


def _move_on(memory: Memory, worker: int, zone: str, wanted: Wanted) -> Memory:
    position = wanted.zones.index(zone) if zone in wanted.zones else -1
    return replace(memory, turn={**memory.turn, worker: (position + 1) % len(wanted.zones)})


def _delete(holding: Holding, why: str) -> Delete:
    top = holding.top
    return Delete(worker=top.worker, kind=top.kind, zone=top.zone, id=top.id, why=why)
