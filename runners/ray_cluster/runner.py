"""`ray`: a pool as one Ray job, through the `ray` command."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.errors import EXIT_DONE, EngineFailed, EngineMissing, PoolError
from runners.pools import launched
from runners.pools.pool import Pool
from runners.pools.program import parse_json, run_command
from runners.pools.runner import Artifacts, Health, Notify, WorkerState, WorkerStatus
from runners.pools.script import worker_script
from runners.ray_cluster.pool_job import work_on_host
from sweeps.text.counted import counted
from sweeps.text.installation import install_command

NAME = "ray"
_OPTIONS = {"address", "resources", "memory", "runtime_env"}
_STATES: dict[str, WorkerState] = {"RUNNING": "running", "FINISHED": "done", "FAILED": "failed"}
# `ray job status` reports the end of a job in a sentence.
_FINAL = {"succeeded": "SUCCEEDED", "was stopped": "STOPPED", "failed": "FAILED"}
_OVER = frozenset(_FINAL.values())
_POLL_S = 1.0


class Ray:
    """Runner for a Ray cluster, which keeps the pool as a job with the pool's label as submission id."""

    name = NAME
    takes = frozenset({"accelerator", "accelerator_count", "threads", "options", "nodes"})
    keeps = False
    python = "python3"

    def sees(self, folder: Path, pool: Pool) -> bool:
        """Return True: a shared file system is taken for granted."""
        return True

    def render(self, pool: Pool) -> Artifacts:
        """Return the command that submits the pool, and the worker's script, one word of that command."""
        return {"submit.sh": f"{shlex.join(submit(pool))}\n", "worker.sh": worker_script(pool)}

    def up(self, pool: Pool, notify: Notify) -> int:
        """Submit the job, replacing a finished one of the same sweep."""
        self.render(pool)
        if state := _state(pool):
            if state not in _OVER:
                raise PoolError(
                    "workers", f"the cluster has a job {pool.label} ({state}); `sweep down ray` ends it"
                )
            _ray(pool, "job", "delete", pool.label)
        _run(submit(pool))
        launched.write(launched.Launched(runner=NAME, pool=pool))
        notify(
            f"Ray has {counted(pool.workers, 'worker')} as job {pool.label}; "
            "`sweep pool logs ray` shows what they write"
        )
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """Return the newest attempt of every worker, or of each of its hosts; none where its job is gone."""
        state = _state(pool)
        if not state:
            return ()
        over = state in _OVER
        if pool.nodes > 1:
            workers = _hosts(pool, over=over)
        else:
            newest: dict[str, dict[str, Any]] = {}
            tasks = _ray_list(pool, "tasks", "--filter", f"name={pool.label}")
            for task in sorted(tasks, key=lambda task: task["attempt_number"]):
                if task.get("type", "NORMAL_TASK") == "NORMAL_TASK":
                    newest[task["task_id"]] = task
            workers = [_worker_status(task, over=over) for task in newest.values()]
        if not workers and not over:
            workers = [WorkerStatus(worker=pool.label, state="waiting", detail=state)]
        return tuple(workers)

    def scale(self, pool: Pool, workers: int, notify: Notify) -> None:
        """Request a number of workers through a second, short job."""
        _want(pool, workers)
        launched.write(launched.Launched(runner=NAME, pool=replace(pool, workers=workers)))
        notify(f"the pool will have {counted(workers, 'worker')} in a moment; `sweep pool status` shows them")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """Yield the last log lines of one worker's task, or of the job, where Ray marks process and node."""
        if worker:
            text = _ray(pool, "logs", "task", "--id", worker, "--tail", str(lines))
        else:
            text = _ray(pool, "job", "logs", pool.label)
        yield from text.splitlines()[-lines:]

    def down(self, pool: Pool, notify: Notify) -> int:
        """Scale to no workers, so that trials are handed back; stop the job after the grace time."""
        state = _state(pool)
        if not state or state in _OVER:
            return 0
        active = sum(worker.state in ("waiting", "running") for worker in self.status(pool))
        if state == "RUNNING":
            try:
                _want(pool, 0)
                deadline = time.monotonic() + pool.grace_s
            except EngineFailed as error:  # such as of a Python that the head node lacks
                notify(f"the workers cannot be asked to hand their trials back: {error}")
                deadline = time.monotonic()
            while _state(pool) not in _OVER and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        if _state(pool) not in _OVER:
            _ray(pool, "job", "stop", pool.label)
        notify(f"the pool is down: the job {pool.label} of {counted(active, 'worker')} is over")
        return max(1, active)

    def health(self) -> Health:
        """Check for the `ray` command, and that its cluster answers."""
        try:
            version = run_command(
                NAME, ["ray", "--version"], remedy=install_command(NAME), timeout_s=30
            ).strip()
        except EngineMissing:
            return Health(state="missing", detail="no ray", remedy=install_command(NAME))
        except EngineFailed as error:
            return Health(state="unreachable", detail=str(error), remedy=install_command(NAME))
        try:
            run_command(NAME, ["ray", "job", "list"], remedy=install_command(NAME), timeout_s=20)
        except EngineFailed:
            remedy = "export RAY_API_SERVER_ADDRESS=http://HEAD:8265, or ray start --head"
            return Health(state="unreachable", detail=f"{version}, no cluster answers", remedy=remedy)
        return Health(state="ready", detail=version)


def submit(pool: Pool) -> tuple[str, ...]:
    """Return the argv of `ray job submit` for the pool. Pure. Raises `PoolError`."""
    options = _ray_options(pool)
    resources: dict[str, Any] = {"num_cpus": pool.threads or 1}
    if pool.accelerator:
        resources["num_gpus"] = pool.accelerator_count
        if pool.accelerator != "gpu":
            resources["accelerator_type"] = pool.accelerator
    resources |= {name: options[name] for name in ("resources", "memory") if name in options}
    if "resources" in options and not pool.threads:
        resources["num_cpus"] = 0  # the resources alone limit the workers of a node
    environment = (
        ("--runtime-env-json", json.dumps(options["runtime_env"])) if "runtime_env" in options else ()
    )
    return (
        *("ray", "job", "submit", *_address(pool), "--submission-id", pool.label, "--no-wait"),
        *(*environment, "--"),
        *(pool.command[0], "-P", "-m", "runners.ray_cluster.pool_job", "run", "--label", pool.label),
        *("--workers", str(pool.workers), "--resources", json.dumps(resources)),
        *(("--nodes", str(pool.nodes)) if pool.nodes > 1 else ()),
        *("--restarts", str(pool.restarts), "--grace", f"{pool.grace_s:g}"),
        f"--script={worker_script(pool)}",
    )


def _ray_options(pool: Pool) -> dict[str, Any]:
    options = dict(pool.options)
    if unknown := sorted(set(options) - _OPTIONS):
        raise PoolError("options", f"ray has no option {unknown[0]}; there are {', '.join(sorted(_OPTIONS))}")
    if not re.fullmatch(r"[^\s-]\S*", str(options.get("address", "auto"))):
        raise PoolError("options", f"address is {options['address']!r}; give http://HEAD:8265")
    if "memory" in options and not isinstance(options["memory"], int):
        raise PoolError("options", f"memory is {options['memory']!r}; give bytes")
    for name in ("resources", "runtime_env"):
        if name in options and not isinstance(options[name], dict):
            raise PoolError("options", f"{name} is {options[name]!r}; give a mapping, such as {{slot: 1}}")
    return options


def _ray_list(pool: Pool, kind: str, *words: str) -> list[dict[str, Any]]:
    """Return the rows of `ray list KIND`. Raises `EngineFailed`."""
    text = _ray(pool, "list", kind, *words, "--format", "json", "--limit", "10000")
    found: list[dict[str, Any]] = parse_json(NAME, f"ray list {kind}", text or "[]")
    return found


def _hosts(pool: Pool, *, over: bool) -> list[WorkerStatus]:
    """Return each host of each worker at its newest start, or the worker that waits for its nodes."""
    waiting: dict[int, WorkerStatus] = {}
    for group in [] if over else _ray_list(pool, "placement-groups"):
        if (found := _parse(group["name"], pool)) and group["state"] not in ("CREATED", "REMOVED"):
            detail = f"{group['state']}, worker {found[0]}: waits for {pool.nodes} nodes"
            waiting[found[0]] = WorkerStatus(worker=group["name"], state="waiting", detail=detail)
    newest: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
    for task in _ray_list(pool, "tasks", "--filter", f"func_or_class_name={work_on_host.__name__}"):
        if (found := _parse(task["name"], pool)) and found[0] not in waiting:
            worker, start, rank = found
            known = newest.get((worker, rank))
            if known is None or start > known[0]:
                newest[worker, rank] = start, task
    rows = [
        replace(status, detail=f"{status.detail}, worker {worker}, host {rank}, start {start}")
        for (worker, rank), (start, task) in sorted(newest.items())
        for status in [_worker_status(task, over=over)]
    ]
    return [*waiting.values(), *rows]


def _parse(name: str, pool: Pool) -> tuple[int, int, int] | None:
    """Return the worker, start and rank in the name of a task of a `Gang`, or of its group; else None."""
    found = re.fullmatch(re.escape(pool.label) + r" worker (\d+) start (\d+)(?: host (\d+))?", name)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def _worker_status(task: dict[str, Any], *, over: bool) -> WorkerStatus:
    state = _STATES.get(task["state"], "waiting")
    if over and state in ("waiting", "running"):
        state = "failed"
    retry = f", retry {task['attempt_number']}" if task["attempt_number"] else ""
    return WorkerStatus(
        worker=task["task_id"],
        state=state,
        where=f"node {task['node_id'][:8]}" if task.get("node_id") else "",
        detail=f"{task['state']}{retry}",
    )


def _want(pool: Pool, workers: int) -> None:
    _run(
        (
            *("ray", "job", "submit", *_address(pool), "--"),
            *(pool.command[0], "-P", "-m", "runners.ray_cluster.pool_job", "want", "--label", pool.label),
            *("--workers", str(workers)),
        )
    )


def _state(pool: Pool) -> str:
    """Return the job's state as Ray names it; "" where there is none of this label."""
    try:
        text = _ray(pool, "job", "status", pool.label)
    except EngineFailed as error:
        if "does not exist" in error.problem:
            return ""
        raise
    answer = " ".join(text.split()).partition(f"'{pool.label}'")[2]
    if found := re.match(r": ([A-Z]+)", answer):
        return found[1]
    return next((state for verb, state in _FINAL.items() if answer.startswith(f" {verb}")), "PENDING")


def _address(pool: Pool) -> tuple[str, ...]:
    return ("--address", str(pool.options["address"])) if "address" in pool.options else ()


def _ray(pool: Pool, *words: str) -> str:
    """Run `ray` with the pool's address after the subcommand."""
    return _run(("ray", *words[:2], *_address(pool), *words[2:]))


def _run(argv: tuple[str, ...]) -> str:
    return run_command(NAME, argv, remedy=install_command(NAME), timeout_s=180)


RUNNER = Ray()
