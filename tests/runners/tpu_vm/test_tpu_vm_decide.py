"""Policy for TPU VMs: a table of single cases, properties of any observed state, and a simulated life."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from fake_tpu.cloud import Cloud
from fake_tpu.direct import Direct
from hypothesis import given
from hypothesis import strategies as st

from runners.tpu_vm.decide import Create, Delete, Memory, Wanted, after, decide
from runners.tpu_vm.observed import Observed, Resource
from runners.tpu_vm.watch import step

ZONES = ("a", "b", "c")
ONE = Wanted(workers=1, zones=ZONES)


def queued(state: str, zone: str = "a", worker: int = 1, **more: object) -> Resource:
    return Resource(kind="queued", zone=zone, worker=worker, id=f"w{worker}", state=state, **more)  # type: ignore[arg-type]


def node(state: str, zone: str = "a", worker: int = 1, **more: object) -> Resource:
    return Resource(kind="node", zone=zone, worker=worker, id=f"w{worker}", state=state, **more)  # type: ignore[arg-type]


CASES = {
    "nothing": ((), ["create a"]),
    "waiting": ((queued("WAITING_FOR_RESOURCES"),), []),
    "at work": ((queued("ACTIVE"), node("READY")), []),
    "preempted, still ACTIVE": ((queued("ACTIVE"), node("PREEMPTED")), ["delete queued a"]),
    "suspending": ((queued("SUSPENDING"), node("PREEMPTED")), []),
    "suspended": ((queued("SUSPENDED"),), ["delete queued a"]),
    "suspended, its node remains": ((queued("SUSPENDED"), node("PREEMPTED")), ["delete queued a"]),
    "active, node deleted by hand": ((queued("ACTIVE"),), ["delete queued a"]),
    "node alone, preempted": ((node("PREEMPTED"),), ["delete node a"]),
    "node alone, terminated": ((node("TERMINATED"),), ["delete node a"]),
    "node alone, under repair": ((node("REPAIRING"),), []),
    "on its way out": ((queued("DELETING"), node("READY")), []),
    "a state of next year": ((queued("PONDERING"),), []),
    "two at work": ((queued("ACTIVE"), node("READY"), node("READY", "b")), ["delete node b"]),
    "the better of two": ((queued("WAITING_FOR_RESOURCES"), node("READY", "b")), ["delete queued a"]),
    "in a zone of earlier": ((queued("ACTIVE", "z"), node("READY", "z")), []),
    "too many workers": ((node("READY"), node("READY", "b", worker=2)), ["delete node b"]),
    "no work left": ((queued("ACTIVE"), node("READY", ended="0", uid="7")), ["delete queued a"]),
    "no work left, and gone": ((), ["create a"]),
}


def shown(action: Create | Delete) -> str:
    return f"create {action.zone}" if isinstance(action, Create) else f"delete {action.kind} {action.zone}"


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_answer(case):
    resources, expected = CASES[case]
    assert [shown(action) for action in decide(Observed(resources=resources), ONE, Memory())[0]] == expected


def test_nothing_is_created_while_one_may_be_unseen():
    assert decide(Observed(unreachable=frozenset("c")), ONE, Memory())[0] == ()
    assert decide(Observed(pending=frozenset({1})), ONE, Memory())[0] == ()


def test_only_a_definite_no_moves_on_and_the_list_goes_round():
    memory, zones = Memory(), []
    for outcome in ("unknown", "exists", "stockout", "stockout", "stockout"):
        ((create,), memory) = decide(Observed(), ONE, memory)
        zones.append(create.zone)
        memory = after(memory, create, ONE, outcome)
    assert zones == ["a", "a", "a", "b", "c"]
    assert decide(Observed(), ONE, memory)[0] == (Create(worker=1, zone="a"),)


def test_expired_request_moves_to_the_next_zone():
    actions, memory = decide(Observed(resources=(queued("FAILED", code=4),)), ONE, Memory())
    assert [shown(action) for action in actions] == ["delete queued a"]
    again, memory = decide(
        Observed(resources=(queued("FAILED", code=4),)), ONE, memory
    )  # the deletion was lost
    assert again == actions
    assert decide(Observed(), ONE, memory)[0] == (Create(worker=1, zone="b"),)


def test_refusing_zones_are_left_out():
    memory = after(Memory(), Create(worker=1, zone="a"), ONE, "refused", "no such accelerator")
    _, memory = decide(Observed(resources=(queued("FAILED", "b", code=7, problem="denied"),)), ONE, memory)
    ((create,), memory) = decide(Observed(), ONE, memory)
    assert create.zone == "c"
    actions, memory = decide(Observed(), ONE, after(memory, create, ONE, "refused", "no"))
    assert (actions, memory.ended) == ((), {1: "poison"})
    assert memory.refused == {"a": "no such accelerator", "b": "denied", "c": "no"}


@pytest.mark.parametrize(
    ("ended", "end"), [("0", "done"), ("2", "poison"), ("42", "poison"), ("secret", "poison")]
)
def test_a_worker_that_ended_for_good_is_not_given_another_vm(ended, end):
    _, memory = decide(Observed(resources=(node("READY", ended=ended, uid="1"),)), ONE, Memory())
    assert memory.ended == {1: end}
    assert decide(Observed(), ONE, memory)[0] == ()


def test_when_no_work_is_left_nobody_waits_for_a_vm_any_more():
    resources = (
        node("READY", ended="0", uid="1"),
        node("READY", "b", worker=2),
        queued("ACCEPTED", "c", worker=3),
    )
    want = Wanted(workers=4, zones=ZONES)
    actions, memory = decide(Observed(resources=resources), want, Memory())
    assert memory.ended == {1: "done", 3: "done", 4: "done"}  # the second tells itself when it is done
    assert [shown(action) for action in actions] == ["delete node a", "delete queued c"]
    _, memory = decide(Observed(resources=resources), replace(want, share=True), Memory())
    assert memory.ended == {1: "done"}


def test_preempted_worker_is_replaced_after_another_is_done():
    want, memory = Wanted(workers=2, zones=ZONES), Memory()
    at_work = (queued("ACTIVE", worker=2), node("READY", worker=2))
    for first in ((node("READY"),), (node("READY", ended="0", uid="1"),), ()):
        _, memory = decide(Observed(resources=(*first, *at_work)), want, memory)
    assert memory.ended == {1: "done"}
    for state in ("REPAIRING", "RESTARTING"):
        back_soon = Observed(resources=(at_work[0], node(state, worker=2)))
        assert decide(back_soon, want, memory) == ((), memory)
    preempted = Observed(resources=(queued("SUSPENDED", worker=2), node("PREEMPTED", worker=2)))
    actions, memory = decide(preempted, want, memory)
    assert [shown(action) for action in actions] == ["delete queued a"]
    assert decide(Observed(), want, memory)[0] == (Create(worker=2, zone="a", has_begun=True),)


@pytest.mark.parametrize(
    "seen",
    [
        (queued("SUSPENDED", worker=2), node("PREEMPTED", worker=2)),
        (queued("SUSPENDING", worker=2),),
        (queued("ACTIVE", worker=2), node("REPAIRING", worker=2)),
        (node("STOPPED", worker=2),),
        (node("READY", worker=2, ended="1", uid="2"),),
        (queued("WAITING_FOR_RESOURCES", worker=2, has_begun=True),),
        (queued("FAILED", worker=2, code=4, has_begun=True),),
        (node("CREATING", worker=2, has_begun=True),),
    ],
)
def test_restarted_supervisor_sees_who_has_begun(seen):
    want = Wanted(workers=3, zones=ZONES)
    observed = Observed(resources=(node("READY", ended="0", uid="1"), *seen))
    _, memory = decide(observed, want, Memory())
    assert memory.ended == {1: "done", 3: "done"}


def test_restarted_supervisor_reads_who_has_begun_from_labels():
    cloud = Cloud()
    vms, want, memory = Direct(cloud, ZONES, queued=True), Wanted(workers=2, zones=ZONES), Memory()
    for count in range(12):
        if count == 6:
            cloud.capacity = dict.fromkeys(ZONES, -9)
            assert cloud.preempt("a", "2")
        _, memory = step(vms, want, memory, lambda line: None, {})
        cloud.tick()
    assert {id_: request.state for (_, id_), request in cloud.requests.items()} == {
        "1": "ACTIVE",
        "2": "WAITING_FOR_RESOURCES",
    }
    cloud.nodes["a", "1"].ended = "0"
    _, memory = step(vms, want, Memory(), lambda line: None, {})
    assert memory.ended == {1: "done"}


def test_crashes_are_counted_once_per_vm():
    want, memory = Wanted(workers=1, zones=ZONES, restarts=2), Memory()
    for uid in ("1", "1", "2", "2"):
        crashed = Observed(resources=(node("READY", ended="install", uid=uid),))
        actions, memory = decide(crashed, want, memory)
        assert [shown(action) for action in actions] == ["delete node a"]
    assert (memory.crashes, memory.ended) == ({1: 2}, {})
    _, memory = decide(Observed(resources=(node("READY", ended="1", uid="3"),)), want, memory)
    assert memory.ended == {1: "given up"}


@pytest.mark.parametrize("is_queued", [True, False])
def test_supervisor_accepts_removal_elsewhere(is_queued):
    cloud = Cloud()
    here, elsewhere = Direct(cloud, ZONES, queued=is_queued), Direct(cloud, ZONES, queued=is_queued)
    want, memory = Wanted(workers=3, zones=ZONES), Memory()
    cloud.capacity = {"a": 2, "b": 0, "c": 0}  # two of three have a VM
    for _ in range(5):
        _, memory = step(here, want, memory, lambda line: None, {})
        cloud.tick()
    assert len([node for node in cloud.alive() if node.state == "READY"]) == 2
    for _ in range(4):
        step(elsewhere, Wanted(workers=0, zones=ZONES), Memory(), lambda line: None, {})
        _, memory = step(here, want, memory, lambda line: None, {})
        cloud.tick()
    assert memory.ended == dict.fromkeys((1, 2, 3), "removed")
    for _ in range(4):
        step(here, want, memory, lambda line: None, {})
        cloud.tick()
    assert not list(cloud.alive())


def test_one_vm_that_a_person_deletes_is_one_worker_less():
    both = (node("READY"), node("READY", "b", worker=2))
    want = Wanted(workers=2, zones=ZONES)
    _, memory = decide(Observed(resources=both), want, Memory())
    actions, memory = decide(Observed(resources=(node("DELETING"), both[1])), want, memory)
    assert (actions, memory.ended) == ((), {1: "removed"})
    assert decide(Observed(resources=both[1:]), want, memory)[0] == ()


def test_own_deletions_are_recreated():
    _, memory = decide(Observed(resources=(node("PREEMPTED"),)), ONE, Memory())
    _, memory = decide(Observed(resources=(node("DELETING"),)), ONE, memory)
    assert decide(Observed(), ONE, memory)[0] == (Create(worker=1, zone="a", has_begun=True),)
    _, memory = decide(Observed(resources=(node("CREATING"),)), ONE, Memory())
    _, memory = decide(Observed(resources=(node("DELETING"),)), ONE, memory)
    assert decide(Observed(), ONE, memory)[0] == (Create(worker=1, zone="a"),)


STATES = {
    "queued": [
        "CREATING",
        "ACCEPTED",
        "WAITING_FOR_RESOURCES",
        "PROVISIONING",
        "ACTIVE",
        "SUSPENDING",
        "SUSPENDED",
        "FAILED",
        "DELETING",
        "NEW",
    ],
    "node": [
        "CREATING",
        "READY",
        "RESTARTING",
        "REIMAGING",
        "REPAIRING",
        "STARTING",
        "UNHIDING",
        "DELETING",
        "STOPPING",
        "HIDING",
        "PREEMPTED",
        "TERMINATED",
        "STOPPED",
        "HIDDEN",
        "UNKNOWN",
        "NEW",
    ],
}


@st.composite
def worlds(draw: st.DrawFn) -> Observed:
    resources = {}
    for kind in draw(st.lists(st.sampled_from(["queued", "node"]), max_size=8)):
        resource = Resource(
            kind=kind,
            zone=draw(st.sampled_from("abcz")),
            worker=(worker := draw(st.integers(1, 4))),
            id=f"w{worker}",
            state=draw(st.sampled_from(STATES[kind])),
            code=draw(st.sampled_from([0, 4, 7, 8])),
            ended=draw(st.sampled_from(["", "", "", "0", "1", "2"])) if kind == "node" else "",
            uid=str(len(resources)),
        )
        resources[resource.kind, resource.zone, resource.worker] = resource
    unreachable = draw(st.frozensets(st.sampled_from("bc"), max_size=1))
    visible = tuple(resource for resource in resources.values() if resource.zone not in unreachable)
    return Observed(
        resources=visible, unreachable=unreachable, pending=draw(st.frozensets(st.integers(1, 4), max_size=2))
    )


@given(worlds(), st.integers(0, 3))
def test_no_observation_duplicates_or_loses_a_vm(observed, workers):
    want = Wanted(workers=workers, zones=ZONES)
    actions, memory = decide(observed, want, Memory())
    held = {resource.worker for resource in observed.resources}
    creates = [action for action in actions if isinstance(action, Create)]
    deletes = [action for action in actions if isinstance(action, Delete)]
    assert max(Counter(create.worker for create in creates).values(), default=1) == 1
    for create in creates:
        assert create.zone in ZONES
        assert 1 <= create.worker <= workers
        assert create.worker not in held | observed.pending | set(memory.ended)
        assert not observed.unreachable
    by_key = {(resource.kind, resource.zone, resource.id): resource for resource in observed.resources}
    assert len({(delete.zone, delete.id) for delete in deletes}) == len(deletes)
    for delete in deletes:
        resource = by_key[delete.kind, delete.zone, delete.id]
        assert resource.state not in ("DELETING", "SUSPENDING", "STOPPING", "HIDING")
        # Its node goes with a queued resource, so that is the one to delete.
        assert delete.kind == "queued" or ("queued", delete.zone, delete.id) not in by_key
    for worker in range(1, workers + 1):
        mine = [resource for resource in observed.resources if resource.worker == worker]
        if worker in memory.ended or any(resource.ended for resource in mine):
            continue
        at_work = [
            t
            for t in mine
            if t.kind == "node" and t.state == "READY" and ("queued", t.zone, t.id) not in by_key
        ]
        if at_work:
            gone = {(delete.zone, delete.id) for delete in deletes}
            assert any((resource.zone, resource.id) not in gone for resource in mine)


@given(worlds())
def test_down_leaves_nothing_that_is_not_on_its_way_out(observed):
    actions, _ = decide(observed, Wanted(workers=0, zones=ZONES), Memory())
    gone = {(action.zone, action.id) for action in actions if isinstance(action, Delete)}
    assert len(gone) == len(actions)
    for resource in observed.resources:
        top = next(
            (
                t
                for t in observed.resources
                if (t.zone, t.id, t.kind) == (resource.zone, resource.id, "queued")
            ),
            resource,
        )
        assert (resource.zone, resource.id) in gone or top.state in (
            "DELETING",
            "SUSPENDING",
            "STOPPING",
            "HIDING",
        )


EVENTS = st.one_of(
    st.just(("tick",)),
    st.tuples(st.just("preempt"), st.sampled_from(ZONES), st.integers(1, 3)),
    st.tuples(st.just("capacity"), st.sampled_from(ZONES), st.integers(0, 2)),
    st.tuples(st.just("fault"), st.sampled_from(["lost", "down"])),
    st.tuples(st.just("blind"), st.sampled_from(ZONES)),
    st.just(("new supervisor",)),
    st.tuples(st.just("workers"), st.integers(0, 3)),
)


@given(st.lists(EVENTS, max_size=30), st.booleans())
def test_policy_converges_through_any_trouble(events, is_queued):
    cloud = Cloud()
    vms, memory, workers = Direct(cloud, ZONES, queued=is_queued), Memory(), 2

    def observe(count: int) -> Observed:
        nonlocal memory
        observed, memory = step(vms, Wanted(workers=count, zones=ZONES), memory, lambda line: None, {})
        mine = Counter(each.id for each in cloud.alive())
        assert not mine or max(mine.values()) == 1
        cloud.tick()
        return observed

    for kind, *given_ in events:
        if kind == "preempt":
            cloud.preempt(given_[0], str(given_[1]))
        elif kind == "capacity":
            cloud.capacity[given_[0]] = given_[1]
        elif kind == "fault":
            vms.lost.append(given_[0])
        elif kind == "blind":
            vms.unreachable ^= {given_[0]}
        elif kind == "new supervisor":
            memory = Memory()
            vms.pending.clear()
        elif kind == "workers":
            workers = given_[0]
        observe(workers)
    cloud.capacity.clear()
    vms.unreachable.clear()
    vms.lost.clear()
    for _ in range(25):
        observe(workers)
    assert sorted(each.id for each in cloud.alive() if each.state == "READY") == [
        str(n + 1) for n in range(workers)
    ]
    for _ in range(6):
        observed = observe(0)
    assert not observed.resources
    assert not list(cloud.alive())
