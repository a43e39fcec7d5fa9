"""Worker of several hosts on a Ray cluster: a placement group with a node for each host, and a task on each.

Ray retries no task of it: a retried leader may run on another node, where the others would not look for it.
A gang that has lost a task or a node is ended, its group removed, and all of it started in a new group. The
nodes that are left serve other gangs meanwhile: two that each kept one and waited for another would do so for
ever.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT
from runners.workers.processes import host_variables
from runners.workers.restarts import POISON

LOST = -1
"""In place of a status: the task was cancelled, was preempted, or is lost with its node."""
_STUBBORN_S = 30.0
"""After the grace time; a cancelled task that is there then is on a node that does not answer."""


class Gang:
    """One worker of a pool, until it has ended for good; `step` is called about once a second.

    Args:
        ray: the package.
        number: of the worker, from 1.
        bundle: resources of each host, as a placement group takes them.
        start: starts the task of a host and returns its reference. Called with the task's name, the options
            that place it, and variables for its worker.
        grace_s: seconds that workers have to hand their trials back.
        notify: called with a line for people.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        ray: Any,
        *,
        label: str,
        number: int,
        nodes: int,
        bundle: Mapping[str, float],
        start: Callable[[str, Mapping[str, Any], Mapping[str, str]], Any],
        grace_s: float,
        notify: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ray, self._label, self._number, self._nodes = ray, label, number, nodes
        self._bundle, self._start, self._grace_s = dict(bundle), start, grace_s
        self._notify, self._clock = notify, clock
        self._name = f"{label} worker {number}"  # `pool status` finds groups and tasks by it
        self._group: Any = None
        self._where: tuple[str, ...] = ()  # node ids of the hosts, by rank
        self._running: dict[Any, int] = {}  # rank of each task
        self._ended: list[int] = []  # statuses of this start's other tasks
        self._starts, self._said, self._cancelled_at = 0, "", 0.0
        self.is_leaving = False
        self.status: int | None = None
        """How it has ended for good: 0, 1 or 2, see `lasting_status`."""

    def leave(self) -> None:
        """Let the gang hand its trial back and end for good."""
        self.is_leaving = True

    def step(self) -> None:
        """Look at the group and at the tasks, and do what is due."""
        if self._running:
            self._watch()
        if self._running or self.status is not None:
            return
        if self.is_leaving:
            self.status = EXIT_DONE
        elif self._ended:  # all of them have
            self.status = lasting_status(self._ended)
        if self.is_leaving or self._ended:
            self._remove_group()
            self._ended.clear()
        if self.status is None:
            self._place()

    def _place(self) -> None:
        """Ask for a group, and start the tasks once it has its nodes."""
        if self._group is None:
            self._starts += 1
            bundles, name = [self._bundle] * self._nodes, f"{self._name} start {self._starts}"
            self._group = self._ray.util.placement_group(bundles, strategy="STRICT_SPREAD", name=name)
        self._where = self._nodes_of_group()
        if not self._where:
            self._say_what_is_missing()
            return
        address = next(
            node["NodeManagerAddress"] for node in self._ray.nodes() if node["NodeID"] == self._where[0]
        )
        self._said, self._cancelled_at = "", 0.0
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for rank in range(self._nodes):
            name = f"{self._name} start {self._starts} host {rank}"
            placed = strategy(self._group, placement_group_bundle_index=rank)
            variables = host_variables(self._label, self._number, rank, address)
            task = self._start(name, {"scheduling_strategy": placed, "max_retries": 0}, variables)
            self._running[task] = rank

    def _watch(self) -> None:
        """Note which tasks have ended; let the others end where the gang cannot go on."""
        tasks = list(self._running)
        ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for task in ready:
            rank = self._running.pop(task)
            self._ended.append(self._status(task, rank))
        if not self._running:
            return
        if self._cancelled_at:
            if self._clock() > self._cancelled_at + self._grace_s + _STUBBORN_S:
                self._remove_group()  # kills what is left in it
            return
        # Ray places a lost node's bundle anew: the others would look for a leader where it was before.
        if self.is_leaving or any(self._ended) or self._nodes_of_group() != self._where:
            for task in self._running:
                self._ray.cancel(task, force=False)  # arrives as SIGINT, which is passed on to the worker
            self._cancelled_at = self._clock()

    def _status(self, task: Any, rank: int) -> int:
        """Return the exit status of a host's worker, or LOST."""
        errors = self._ray.exceptions
        lost = (
            *(errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError),
            *(errors.OutOfMemoryError, errors.TaskCancelledError, errors.TaskPlacementGroupRemoved),
        )
        who = f"host {rank} of worker {self._number}"
        try:
            status: int = self._ray.get(task)
        except lost as error:
            if not self._cancelled_at:
                self._notify(f"{who} is lost ({type(error).__name__}); all its hosts start again")
            return LOST
        except errors.RayError as error:
            self._notify(f"the task of {who} failed: {error}")
            return EXIT_FAILED
        return status

    def _nodes_of_group(self) -> tuple[str, ...]:
        """Return the nodes' ids by rank; () while Ray has not placed all of them."""
        table = self._ray.util.placement_group_table(self._group)
        if table["state"] != "CREATED":
            return ()
        return tuple(table["bundles_to_node_id"][rank] for rank in range(self._nodes))

    def _say_what_is_missing(self) -> None:
        there = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fit = sum(all(node.get(key, 0) >= need for key, need in self._bundle.items()) for node in there)
        each = ", ".join(f"{key} {need:g}" for key, need in self._bundle.items())
        line = f"worker {self._number} waits for {self._nodes} nodes, one for each host, with {each}"
        if fit < self._nodes:
            line += f"; of the cluster's {len(there)} nodes only {fit} could hold one, busy or not"
        if line != self._said:
            self._said = line
            self._notify(line)

    def _remove_group(self) -> None:
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
            self._group = None


def lasting_status(statuses: Iterable[int]) -> int | None:
    """Return how a gang has ended for good, by its hosts' statuses; None: it is to be started again.

    2 if one refused its input, or left because another had been given up: that one has 1, and those that it
    shared trials with end with 2. So 1 is left for hosts that did not meet (all were given up, or the others
    were cancelled first), and for a task that Ray could not run.
    """
    ended = set(statuses)
    if ended & {*POISON}:
        return EXIT_INPUT
    if EXIT_FAILED in ended:
        return EXIT_FAILED
    return None if ended - {EXIT_DONE} else EXIT_DONE


def bundle_of(resources: Mapping[str, Any]) -> dict[str, float]:
    """Return the options of a task as a bundle of a placement group, which takes no zeros."""
    bundle = {"CPU": resources.get("num_cpus", 0), "GPU": resources.get("num_gpus", 0)}
    bundle |= {"memory": resources.get("memory", 0), **resources.get("resources", {})}
    if accelerator := resources.get("accelerator_type"):
        bundle[f"accelerator_type:{accelerator}"] = 0.001  # as Ray's own tasks ask for one
    return {name: amount for name, amount in bundle.items() if amount}
