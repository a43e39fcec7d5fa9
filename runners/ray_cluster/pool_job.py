"""Ray job that supervises a pool: `python -m runners.ray_cluster.pool_job run`.

Every worker is a task with unlimited retries, after a preemption (75) as after the loss of its node; one of
several hosts is a `Gang`. A small actor holds the number of wanted workers; the command `want` sets it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED
from runners.ray_cluster.gang import Gang, bundle_of
from runners.tend import supervise_worker
from runners.workers.restarts import POISON

NAMESPACE = "stagesweep"
_POLL_S = 1.0


class Preempted(Exception):
    """Preemption of a worker, which Ray answers by a retry, on another node if need be."""


class CountActor:
    """Ray actor that holds the number of wanted workers; None: as many as there are."""

    def __init__(self) -> None:
        self._requested_workers: int | None = None

    def want(self, workers: int) -> None:
        """Set the number of wanted workers."""
        self._requested_workers = workers

    def wanted(self) -> int | None:
        """Return the number that was set last."""
        return self._requested_workers


def work(script: str, restarts: int, grace_s: float) -> int:
    """Run one worker as a Ray task and return its exit status; raise `Preempted` for 75."""
    status = supervise_worker(["bash", "-c", script], restarts=restarts, grace_s=grace_s)
    if status == EXIT_PREEMPTED:
        raise Preempted
    return status


def work_on_host(script: str, restarts: int, grace_s: float, variables: Mapping[str, str]) -> int:
    """Run one host of a worker as a Ray task and return its exit status.

    Args:
        variables: added to its environment.
    """
    command = ["bash", "-c", script]
    return supervise_worker(command, restarts=restarts, grace_s=grace_s, env={**os.environ, **variables})


def run(args: argparse.Namespace) -> int:
    """Supervise the pool until no worker is left.

    Returns:
        0; 2 where a worker rejected its input, or had several hosts and one was given up; 1 where another was
            given up.
    """
    import ray

    with contextlib.chdir(Path(__file__).parents[2]):  # Ray puts it first on the path of the tasks' processes
        ray.init(address="auto", namespace=NAMESPACE)
    actor = ray.remote(CountActor).options(name=args.label, num_cpus=0, max_restarts=-1).remote()
    running: list[_OneHost | Gang] = []
    statuses: list[int] = []
    started, applied, wanted = 0, None, args.workers
    while running or not started:
        if wanted not in (None, applied):  # once for each change: workers that have ended are not replaced
            applied = wanted
            staying = [each for each in running if not each.is_leaving]
            for each in staying[wanted:]:
                each.leave()
            for _ in range(wanted - len(staying)):
                started += 1
                running.append(_worker(ray, started, args))
        for each in running:
            each.step()
        statuses += [each.status for each in running if each.status is not None]
        running = [each for each in running if each.status is None]
        if running:
            time.sleep(_POLL_S)
            wanted = _requested_workers(ray, actor)
    if any(status in POISON for status in statuses):
        return EXIT_INPUT
    return EXIT_FAILED if any(statuses) else EXIT_DONE


def _worker(ray: Any, number: int, args: argparse.Namespace) -> _OneHost | Gang:
    """Start a worker; `number` counts from 1."""
    resources, rest = from_json(args.resources), (args.script, args.restarts, args.grace)
    if args.nodes == 1:
        options = {"max_retries": -1, "retry_exceptions": [Preempted], **resources}
        return _OneHost(ray, ray.remote(work).options(name=args.label, **options).remote(*rest))

    def start(name: str, options: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        placed = ray.remote(work_on_host).options(name=name, **resources, **options)
        return placed.remote(*rest, variables)

    return Gang(
        ray,
        label=args.label,
        number=number,
        nodes=args.nodes,
        bundle=bundle_of(resources),
        start=start,
        grace_s=args.grace,
    )


class _OneHost:
    """Worker of one host: a task, which Ray starts again by itself."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray, self._task = ray, task
        self.is_leaving = False
        self.status: int | None = None
        """How it has ended for good; 0 where it was told to."""

    def leave(self) -> None:
        self._ray.cancel(self._task, force=False)  # arrives as SIGINT, which is passed on to the worker
        self.is_leaving = True

    def step(self) -> None:
        if not self._ray.wait([self._task], timeout=0)[0]:
            return
        try:
            self.status = EXIT_DONE if self.is_leaving else self._ray.get(self._task)
        except self._ray.exceptions.RayError as error:
            print(f"a worker's task failed: {error}", file=sys.stderr, flush=True)
            self.status = EXIT_FAILED


def _requested_workers(ray: Any, actor: Any) -> int | None:
    """Return the number of wanted workers; None where the actor does not answer: Ray may be restarting it."""
    try:
        wanted: int | None = ray.get(actor.wanted.remote(), timeout=10)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        time.sleep(_POLL_S)
        return None
    return wanted


def want(args: argparse.Namespace) -> int:
    """Set the number of workers that the pool's actor holds."""
    import ray

    ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False)
    ray.get(ray.get_actor(args.label).want.remote(args.workers), timeout=60)
    return EXIT_DONE


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.ray_cluster.pool_job", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("want", want)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--label", required=True)
        command.add_argument("--workers", type=int, required=True)
        if name == "run":
            command.add_argument("--nodes", type=int, default=1)
            command.add_argument("--resources", default="{}", help="options of the tasks, as JSON")
            command.add_argument("--restarts", type=int, default=5)
            command.add_argument("--grace", type=float, default=30.0)
            command.add_argument("--script", required=True)
    args = parser.parse_args()
    status: int = args.function(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
