"""The Ray job that keeps a pool: `python -m runners.ray_cluster.pool_job run`, which `ray job submit` starts.

Every worker is a task that is tried again without end, after a preemption (75) as after the loss of its node.
A small actor knows how many are wanted; `want` tells it.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from pydantic_core import from_json

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED
from runners.tend import tend
from runners.workers.restarts import POISON

NAMESPACE = "stagesweep"
_EVERY_S = 1.0


class Preempted(Exception):
    """The task is tried again, on another node if need be."""


class CountActor:
    """How many workers are wanted; None: as many as there are."""

    def __init__(self) -> None:
        self._wanted: int | None = None

    def want(self, workers: int) -> None:
        """From now on."""
        self._wanted = workers

    def wanted(self) -> int | None:
        """What was said last."""
        return self._wanted


def work(script: str, restarts: int, grace_s: float) -> int:
    """The task: one worker. Raises `Preempted` for 75, which Ray retries; else its exit status."""
    status = tend(["bash", "-c", script], restarts=restarts, grace_s=grace_s)
    if status == EXIT_PREEMPTED:
        raise Preempted
    return status


def run(given: argparse.Namespace) -> int:
    """Keep the pool until no worker is left: 0; 2 where one was refused its input, 1 after crashes."""
    import ray

    ray.init(address="auto", namespace=NAMESPACE)
    desk = ray.remote(CountActor).options(name=given.label, num_cpus=0, max_restarts=-1).remote()
    task = ray.remote(work).options(
        name=given.label, max_retries=-1, retry_exceptions=[Preempted], **from_json(given.resources)
    )

    def begin() -> Any:
        return task.remote(given.script, given.restarts, given.grace)

    running = [begin() for _ in range(given.workers)]
    leaving: set[Any] = set()
    statuses: list[int] = []
    while running:
        wanted = _wanted(ray, desk)
        staying = [each for each in running if each not in leaving]
        if wanted is not None:
            for each in staying[wanted:]:
                ray.cancel(each, force=False)  # comes as SIGINT, which `tend` passes on
                leaving.add(each)
            running += [begin() for _ in range(wanted - len(staying))]
        ready, running = ray.wait(running, num_returns=len(running), timeout=_EVERY_S)
        statuses += [_status(ray, each) for each in ready if each not in leaving]
    if any(status in POISON for status in statuses):
        return EXIT_INPUT
    return EXIT_FAILED if any(statuses) else EXIT_DONE


def _wanted(ray: Any, desk: Any) -> int | None:
    """Asked with patience: the desk's node may have gone, and then it begins anew elsewhere."""
    try:
        told: int | None = ray.get(desk.wanted.remote(), timeout=10)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        time.sleep(_EVERY_S)
        return None
    return told


def _status(ray: Any, task: Any) -> int:
    try:
        status: int = ray.get(task)
    except ray.exceptions.RayError as error:
        print(f"a worker's task failed: {error}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    return status


def want(given: argparse.Namespace) -> int:
    """Tell the pool's desk."""
    import ray

    ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False)
    ray.get(ray.get_actor(given.label).want.remote(given.workers), timeout=60)
    return EXIT_DONE


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.ray_cluster.pool_job", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("want", want)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--label", required=True)
        command.add_argument("--workers", type=int, required=True)
        if name == "run":
            command.add_argument("--resources", default="{}", help="options of the tasks, as JSON")
            command.add_argument("--restarts", type=int, default=5)
            command.add_argument("--grace", type=float, default=30.0)
            command.add_argument("--script", required=True)
    given = parser.parse_args()
    status: int = given.function(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
