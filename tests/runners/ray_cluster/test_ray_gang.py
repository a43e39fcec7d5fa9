"""A worker of several hosts, with a stand-in for Ray whose groups and tasks do as the test says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runners.ray_cluster.gang import LOST, Gang, bundle_of, lasting_status

ERRORS = (
    *("WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "OutOfMemoryError"),
    *("TaskCancelledError", "TaskPlacementGroupRemoved", "RuntimeEnvSetupError"),
)


class Ray:
    """Cluster of nodes `a`, `b`, … of one slot; a group takes the first that are free."""

    def __init__(self, nodes: str = "ab") -> None:
        self.alive, self.groups, self.removed = list(nodes), [], []
        self.ends: dict[str, int | Exception] = {}
        self.started: dict[str, dict[str, str]] = {}
        self.cancelled: list[str] = []
        base = type("RayError", (Exception,), {})
        self.exceptions: Any = SimpleNamespace(
            RayError=base, **{name: type(name, (base,), {}) for name in ERRORS}
        )
        strategy = lambda group, placement_group_bundle_index: (group.name, placement_group_bundle_index)  # noqa: E731
        self.util = SimpleNamespace(
            placement_group=self._group,
            placement_group_table=self._table,
            remove_placement_group=self._remove,
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=strategy),
        )

    def _group(self, bundles: list[dict[str, float]], strategy: str, name: str) -> SimpleNamespace:
        assert strategy == "STRICT_SPREAD"
        self.groups.append(SimpleNamespace(name=name, size=len(bundles), nodes=[]))
        return self.groups[-1]

    def _table(self, group: SimpleNamespace) -> dict[str, Any]:
        taken = {node for each in self.groups for node in each.nodes}
        free = [node for node in self.alive if node not in taken]
        if not group.nodes and len(free) >= group.size:
            group.nodes = free[: group.size]
        is_placed = group.nodes and set(group.nodes) <= set(self.alive)
        return {
            "state": "CREATED" if is_placed else "PENDING",
            "bundles_to_node_id": dict(enumerate(group.nodes)),
        }

    def _remove(self, group: SimpleNamespace) -> None:
        self.groups.remove(group)
        self.removed.append(group.name)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": node,
                "NodeManagerAddress": f"10.0.0.{node}",
                "Alive": True,
                "Resources": {"slot": 1.0},
            }
            for node in self.alive
        ]

    def start(self, name: str, options: dict[str, Any], variables: dict[str, str]) -> str:
        assert options["max_retries"] == 0
        group, rank = options["scheduling_strategy"]
        assert name == f"{group} host {rank}"
        self.started[name] = variables
        return name

    def wait(self, tasks: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert (num_returns, timeout) == (len(tasks), 0)
        return [task for task in tasks if task in self.ends], [
            task for task in tasks if task not in self.ends
        ]

    def get(self, task: str) -> int:
        end = self.ends[task]
        if isinstance(end, Exception):
            raise end
        return end

    def cancel(self, task: str, force: bool) -> None:
        assert not force
        self.cancelled.append(task)

    def lose(self, node: str, task: str) -> None:
        self.alive.remove(node)
        self.ends[task] = self.exceptions.NodeDiedError()


class Pool:
    """Gang on a stand-in, its clock, and what it says."""

    def __init__(self, ray: Ray, number: int = 1, nodes: int = 2) -> None:
        self.now, self.lines = 0.0, list[str]()
        self.gang = Gang(
            ray,
            label="pool",
            number=number,
            nodes=nodes,
            bundle={"slot": 1.0},
            start=ray.start,
            grace_s=30.0,
            notify=self.lines.append,
            clock=lambda: self.now,
        )


def first(ray: Ray) -> tuple[str, str]:
    names = ("pool worker 1 start 1 host 0", "pool worker 1 start 1 host 1")
    assert tuple(ray.started) == names
    return names


def test_hosts_are_told_their_rank_and_the_leaders_node() -> None:
    ray = Ray()
    pool = Pool(ray)
    pool.gang.step()
    told = [ray.started[name] for name in first(ray)]
    assert [each["NODE_RANK"] for each in told] == ["0", "1"]
    assert {each["MASTER_ADDR"] for each in told} == {"10.0.0.a"}
    assert len({each["MASTER_PORT"] for each in told}) == 1

    another = Pool(Ray(), number=2)
    another.gang._ray = (second := Ray())
    another.gang._start = second.start
    another.gang.step()
    assert {each["MASTER_PORT"] for each in second.started.values()} != {told[0]["MASTER_PORT"]}


def test_a_lost_node_starts_all_hosts_again_on_others() -> None:
    ray = Ray("abc")
    pool = Pool(ray)
    pool.gang.step()
    leader, member = first(ray)
    ray.lose("a", leader)
    pool.gang.step()
    assert ray.cancelled == [member]
    assert pool.lines == ["host 0 of worker 1 is lost (NodeDiedError); all its hosts start again"]
    pool.gang.step()
    assert len(ray.started) == 2  # the trial is being handed back
    ray.ends[member] = 75
    pool.gang.step()
    again = [variables for name, variables in ray.started.items() if "start 2" in name]
    assert [each["MASTER_ADDR"] for each in again] == ["10.0.0.b"] * 2
    assert ray.removed == ["pool worker 1 start 1"]
    assert pool.gang.status is None


def test_nodes_of_a_gang_that_waits_serve_another() -> None:
    """Two gangs that each kept the node that it has left would wait for one another."""
    ray = Ray("abcd")
    one, two = Pool(ray, 1), Pool(ray, 2)
    one.gang.step()
    two.gang.step()
    ray.lose("a", "pool worker 1 start 1 host 0")
    ray.lose("c", "pool worker 2 start 1 host 0")
    ray.ends |= {"pool worker 1 start 1 host 1": 75, "pool worker 2 start 1 host 1": 75}
    for _ in range(3):
        one.gang.step()
        two.gang.step()
    again = [name for name in ray.started if "start 2" in name]
    assert (len(again), len({name.partition(" start")[0] for name in again})) == (2, 1)


def test_a_cluster_that_is_too_small_is_named_once() -> None:
    ray = Ray("a")
    pool = Pool(ray)
    for _ in range(3):
        pool.gang.step()
    needs = "worker 1 waits for 2 nodes, one for each host, with slot 1"
    assert pool.lines == [f"{needs}; of the cluster's 1 nodes only 1 could hold one, busy or not"]
    ray.alive.append("b")
    pool.gang.step()
    assert len(ray.started) == 2


def test_a_group_that_loses_a_node_before_its_task_begins_is_started_again() -> None:
    ray = Ray("abc")
    pool = Pool(ray)
    pool.gang.step()
    ray.alive.remove("a")
    pool.gang.step()
    assert ray.cancelled == [*first(ray)]


@pytest.mark.parametrize(("end", "status"), [(2, 2), (42, 2), (1, 1)])
def test_a_host_that_is_given_up_ends_its_gang(end: int, status: int) -> None:
    ray = Ray()
    pool = Pool(ray)
    pool.gang.step()
    leader, member = first(ray)
    ray.ends[member] = end
    pool.gang.step()
    assert ray.cancelled == [leader]
    ray.ends[leader] = ray.exceptions.TaskCancelledError()
    pool.gang.step()
    assert (pool.gang.status, ray.groups, len(ray.started)) == (status, [], 2)


def test_hosts_without_work_end_one_after_another() -> None:
    ray = Ray()
    pool = Pool(ray)
    pool.gang.step()
    leader, member = first(ray)
    ray.ends[leader] = 0
    pool.gang.step()
    ray.ends[member] = 0
    pool.gang.step()
    assert (pool.gang.status, ray.cancelled, ray.groups) == (0, [], [])


def test_a_task_that_ray_cannot_start_is_said() -> None:
    ray = Ray()
    pool = Pool(ray)
    pool.gang.step()
    ray.ends = dict.fromkeys(first(ray), ray.exceptions.RuntimeEnvSetupError("no conda"))
    pool.gang.step()
    assert pool.gang.status == 1
    assert pool.lines[0] == "the task of host 0 of worker 1 failed: no conda"


def test_a_gang_that_leaves_hands_its_trial_back_and_one_that_waits_just_goes() -> None:
    ray = Ray("abc")
    running, waiting = Pool(ray), Pool(ray, 2)
    for each in (running, waiting, running, waiting):
        each.gang.step()
    for each in (running, waiting):
        each.gang.leave()
        each.gang.step()
    assert (running.gang.status, waiting.gang.status) == (None, 0)
    ray.ends = dict.fromkeys(first(ray), 75)
    running.gang.step()
    assert (running.gang.status, ray.groups) == (0, [])


def test_a_node_that_does_not_answer_is_given_up_after_the_grace_time() -> None:
    ray = Ray()
    pool = Pool(ray)
    pool.gang.step()
    leader, _ = first(ray)
    ray.ends[leader] = ray.exceptions.WorkerCrashedError()
    for pool.now in (1.0, 60.0):
        pool.gang.step()
        assert not ray.removed
    pool.now = 62.0
    pool.gang.step()
    assert ray.removed == ["pool worker 1 start 1"]  # which ends what is left in it


@pytest.mark.parametrize(
    ("statuses", "lasting"), [([0, 0], 0), ([0, 75], None), ([LOST, 0], None), ([75, 1], 1), ([1, 2], 2)]
)
def test_lasting_status(statuses: list[int], lasting: int | None) -> None:
    assert lasting_status(statuses) == lasting


def test_bundle_has_what_a_task_would_ask_for() -> None:
    resources = {
        "num_cpus": 0,
        "num_gpus": 8,
        "accelerator_type": "H100",
        "resources": {"slot": 1},
        "memory": 5,
    }
    assert bundle_of(resources) == {"GPU": 8, "memory": 5, "slot": 1, "accelerator_type:H100": 0.001}
