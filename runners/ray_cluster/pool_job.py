"""Ray job that supervises a pool: `python -m runners.ray_cluster.pool_job run`.

Every worker is a task with unlimited retries, after a preemption (75) as after the loss of its node. A small
actor holds the number of workers that are wanted; the command `want` sets it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED
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


def run(args: argparse.Namespace) -> int:
    """Supervise the pool until no worker is left.

    Returns:
        0; 2 where a worker rejected its input, 1 where one was given up.
    """
    import ray

    with contextlib.chdir(Path(__file__).parents[2]):  # Ray puts it first on the path of the tasks' processes
        ray.init(address="auto", namespace=NAMESPACE)
    actor = ray.remote(CountActor).options(name=args.label, num_cpus=0, max_restarts=-1).remote()
    task = ray.remote(work).options(
        name=args.label, max_retries=-1, retry_exceptions=[Preempted], **from_json(args.resources)
    )

    def start() -> Any:
        return task.remote(args.script, args.restarts, args.grace)

    running = [start() for _ in range(args.workers)]
    leaving: set[Any] = set()
    statuses: list[int] = []
    while running:
        wanted = _requested_workers(ray, actor)
        staying = [each for each in running if each not in leaving]
        if wanted is not None:
            for each in staying[wanted:]:
                ray.cancel(each, force=False)  # arrives as SIGINT, which is passed on to the worker
                leaving.add(each)
            running += [start() for _ in range(wanted - len(staying))]
        ready, running = ray.wait(running, num_returns=len(running), timeout=_POLL_S)
        statuses += [_status(ray, each) for each in ready if each not in leaving]
    if any(status in POISON for status in statuses):
        return EXIT_INPUT
    return EXIT_FAILED if any(statuses) else EXIT_DONE


def _requested_workers(ray: Any, actor: Any) -> int | None:
    """Return the number of wanted workers; None where the actor does not answer: Ray may be restarting it."""
    try:
        wanted: int | None = ray.get(actor.wanted.remote(), timeout=10)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        time.sleep(_POLL_S)
        return None
    return wanted


def _status(ray: Any, task: Any) -> int:
    try:
        status: int = ray.get(task)
    except ray.exceptions.RayError as error:
        print(f"a worker's task failed: {error}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    return status


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
            command.add_argument("--resources", default="{}", help="options of the tasks, as JSON")
            command.add_argument("--restarts", type=int, default=5)
            command.add_argument("--grace", type=float, default=30.0)
            command.add_argument("--script", required=True)
    args = parser.parse_args()
    status: int = args.function(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
