"""RUNNER: a pool as one Ray job, through the `ray` command. `engines` finds it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from runners.counted import counted
from runners.errors import EXIT_DONE, EngineFailed, EngineMissing, PoolError
from runners.pools import launched
from runners.pools.pool import Pool
from runners.pools.program import answer
from runners.pools.runner import Artifacts, Health, Place, PlaceState, Tell
from runners.pools.script import worker_script

NAME = "ray"
REMEDY = "pip install 'stagesweep[ray]'"
_OPTIONS = {"address", "resources", "memory", "runtime_env"}
_STATES: dict[str, PlaceState] = {"RUNNING": "running", "FINISHED": "done", "FAILED": "failed"}
_ENDS = {"succeeded": "SUCCEEDED", "was stopped": "STOPPED", "failed": "FAILED"}
"""How `ray job status` says that a job is over."""

_OVER = frozenset(_ENDS.values())
_EVERY_S = 1.0


class Ray:
    """The runner. The cluster keeps the pool: a job with the pool's label as its submission id."""

    name = NAME
    takes = frozenset(
        {"accelerator", "accelerator_count", "threads", "environment", "secrets", "setup", "grace_s"}
        | {"restarts", "options"}
    )
    keeps = False
    sees_folders = True
    python = "python3"

    def render(self, pool: Pool) -> Artifacts:
        """The command that submits the pool, and the worker's script, which stands in it as one word."""
        return {"submit.sh": f"{shlex.join(submit(pool))}\n", "worker.sh": worker_script(pool)}

    def up(self, pool: Pool, notify: Tell) -> int:
        """Submit the job; an earlier one of the same sweep that is over is forgotten."""
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

    def status(self, pool: Pool) -> tuple[Place, ...]:
        """The newest attempt of every task with the pool's name; a pool whose job is gone has none."""
        state = _state(pool)
        if not state:
            return ()
        text = _ray(
            pool, "list", "tasks", "--filter", f"name={pool.label}", "--format", "json", "--limit", "10000"
        )
        newest: dict[str, dict[str, Any]] = {}
        try:
            tasks = from_json(text or "[]")
        except ValueError:
            raise EngineFailed(NAME, f"ray list tasks answered {text[:200]!r}, which is no JSON") from None
        for task in sorted(tasks, key=lambda task: task["attempt_number"]):
            if task.get("type", "NORMAL_TASK") == "NORMAL_TASK":
                newest[task["task_id"]] = task
        places = [_place(task, over=state in _OVER) for task in newest.values()]
        if not places and state not in _OVER:
            places = [Place(worker=pool.label, state="waiting", told=state)]
        return tuple(places)

    def scale(self, pool: Pool, workers: int, notify: Tell) -> None:
        """Told to the job by a second one, which ends at once."""
        _want(pool, workers)
        launched.write(launched.Launched(runner=NAME, pool=replace(pool, workers=workers)))
        notify(f"the pool has {counted(workers, 'worker')} in a moment; `sweep pool status` shows them")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """What all workers wrote, which Ray tells apart by process and node; a worker's own by its task."""
        if worker:
            text = _ray(pool, "logs", "task", "--id", worker, "--tail", str(lines))
        else:
            text = _ray(pool, "job", "logs", pool.label)
        yield from text.splitlines()[-lines:]

    def down(self, pool: Pool, notify: Tell) -> int:
        """No worker is wanted: the job ends when all have handed their trials back, else it is stopped."""
        state = _state(pool)
        if not state or state in _OVER:
            return 0
        there = sum(place.state in ("waiting", "running") for place in self.status(pool))
        if state == "RUNNING":
            _want(pool, 0)
            deadline = time.monotonic() + pool.grace_s
            while _state(pool) not in _OVER and time.monotonic() < deadline:
                time.sleep(_EVERY_S)
        if _state(pool) not in _OVER:
            _ray(pool, "job", "stop", pool.label)
        notify(f"the pool is down: the job {pool.label} of {counted(there, 'worker')} is over")
        return max(1, there)

    def health(self) -> Health:
        """Whether the `ray` command is here, and the cluster that it would use answers."""
        if _command() is None:
            return Health(state="missing", told="no ray", remedy=REMEDY)
        try:
            version = answer(NAME, [str(_command()), "--version"], remedy=REMEDY, patience_s=30).strip()
        except (EngineFailed, EngineMissing) as error:
            return Health(state="unreachable", told=str(error), remedy=REMEDY)
        try:
            answer(NAME, [str(_command()), "job", "list"], remedy=REMEDY, patience_s=20)
        except (EngineFailed, EngineMissing):
            remedy = "export RAY_API_SERVER_ADDRESS=http://HEAD:8265, or ray start --head"
            return Health(state="unreachable", told=f"{version}, no cluster answers", remedy=remedy)
        return Health(state="ready", told=version)


def submit(pool: Pool) -> tuple[str, ...]:
    """The argv of `ray job submit` for the pool. Pure. Raises `PoolError`."""
    options = _checked(pool)
    resources: dict[str, Any] = {"num_cpus": pool.threads or 1}
    if pool.accelerator:
        resources["num_gpus"] = pool.accelerator_count
        if pool.accelerator != "gpu":
            resources["accelerator_type"] = pool.accelerator
    resources |= {name: options[name] for name in ("resources", "memory") if name in options}
    if "resources" in options and not pool.threads:
        resources["num_cpus"] = 0  # they say what a worker takes
    environment = (
        ("--runtime-env-json", json.dumps(options["runtime_env"])) if "runtime_env" in options else ()
    )
    return (
        *(
            "ray",
            "job",
            "submit",
            *_address(pool),
            "--submission-id",
            pool.label,
            "--no-wait",
            *environment,
            "--",
        ),
        *(pool.command[0], "-m", "runners.ray_cluster.pool_job", "run", "--label", pool.label),
        *("--workers", str(pool.workers), "--resources", json.dumps(resources)),
        *(
            "--restarts",
            str(pool.restarts),
            "--grace",
            f"{pool.grace_s:g}",
            f"--script={worker_script(pool)}",
        ),
    )


def _checked(pool: Pool) -> dict[str, Any]:
    options = dict(pool.options)
    if unknown := sorted(set(options) - _OPTIONS):
        raise PoolError("options", f"ray has no {unknown[0]}; there are {', '.join(sorted(_OPTIONS))}")
    if not re.fullmatch(r"[^\s-]\S*", str(options.get("address", "auto"))):
        raise PoolError("options", f"address is {options['address']!r}; give http://HEAD:8265")
    if "memory" in options and not isinstance(options["memory"], int):
        raise PoolError("options", f"memory is {options['memory']!r}; give bytes")
    for name in ("resources", "runtime_env"):
        if name in options and not isinstance(options[name], dict):
            raise PoolError("options", f"{name} is {options[name]!r}; give a mapping, such as {{slot: 1}}")
    return options


def _place(task: dict[str, Any], *, over: bool) -> Place:
    state = _STATES.get(task["state"], "waiting")
    if over and state in ("waiting", "running"):
        state = "failed"
    return Place(
        worker=task["task_id"],
        state=state,
        where=f"node {task['node_id'][:8]}" if task.get("node_id") else "",
        told=task["state"]
        if not task["attempt_number"]
        else f"{task['state']}, retry {task['attempt_number']}",
    )


def _want(pool: Pool, workers: int) -> None:
    _run(
        (
            *("ray", "job", "submit", *_address(pool), "--"),
            *(pool.command[0], "-m", "runners.ray_cluster.pool_job", "want", "--label", pool.label),
            *("--workers", str(workers)),
        )
    )


def _state(pool: Pool) -> str:
    """The job's state in Ray's word; "" where there is none of this label."""
    try:
        text = _ray(pool, "job", "status", pool.label)
    except EngineFailed as error:
        if "does not exist" in error.problem:
            return ""
        raise
    told = " ".join(text.split()).partition(f"'{pool.label}'")[2]
    if found := re.match(r": ([A-Z]+)", told):
        return found[1]
    return next((state for said, state in _ENDS.items() if told.startswith(f" {said}")), "PENDING")


def _address(pool: Pool) -> tuple[str, ...]:
    return ("--address", str(pool.options["address"])) if "address" in pool.options else ()


def _ray(pool: Pool, *words: str) -> str:
    """`ray` with the pool's address after the subcommand."""
    return _run(("ray", *words[:2], *_address(pool), *words[2:]))


def _run(argv: tuple[str, ...]) -> str:
    command = _command()
    if command is None:
        raise EngineMissing(NAME, "the command ray", REMEDY)
    return answer(NAME, (command, *argv[1:]), remedy=REMEDY, patience_s=180)


def _command() -> str | None:
    """`ray` on the path, or beside this interpreter."""
    beside = Path(sys.executable).with_name("ray")
    return shutil.which("ray") or (str(beside) if beside.exists() else None)


RUNNER = Ray()
