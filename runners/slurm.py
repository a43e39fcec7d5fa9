"""`slurm`: an array of workers through submitit, requeued when they are preempted or lose their node.

The batch script is submitit's. What it runs under `srun` is `tend` with the worker's script, so that SIGTERM
comes to the worker and not only to the batch shell. `--signal` is SIGTERM, too: submitit's own SIGUSR2 would
come to every process of the step, and means something else to the trainer's guard.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runners.counted import counted
from runners.errors import EXIT_DONE, EXIT_PREEMPTED, EngineFailed, EngineMissing, PoolError
from runners.pools import launched
from runners.pools.pool import Pool
from runners.pools.private_file import write_private
from runners.pools.program import answer
from runners.pools.runner import Artifacts, Health, Place, PlaceState, Tell
from runners.pools.script import worker_script
from runners.pools.tail import tails
from runners.tend import tend

NAME = "slurm"
SCRIPT = "worker.sh"
_REMEDY = "run this where sbatch is, such as the cluster's login node"
_OURS = {
    "array",
    "job-name",
    "output",
    "error",
    "signal",
    "open-mode",
    "requeue",
    "ntasks",
    "nodes",
    "gres",
    "cpus-per-task",
}
_STATES: Mapping[str, PlaceState] = {"RUNNING": "running", "COMPLETING": "running", "STAGE_OUT": "running"}
_EVERY_S = 1.0


@dataclass(frozen=True)
class Worker:
    """What submitit pickles: one worker, tended until it has ended for good.

    Args:
        script: the worker's, on the file system that the nodes share.
    """

    script: str
    restarts: int
    grace_s: float

    def __call__(self) -> None:
        status = tend(["bash", self.script], restarts=self.restarts, grace_s=self.grace_s)
        if status != EXIT_DONE:
            sys.exit(status)  # the batch script reads it, and Slurm's RequeueExit


class Slurm:
    """The runner. Slurm keeps the pool; its jobs are found by their name, the pool's label."""

    name = NAME
    takes = frozenset(
        {"accelerator", "accelerator_count", "threads", "environment", "secrets", "setup", "grace_s"}
        | {"restarts", "options"}
    )
    keeps = False
    sees_folders = True
    python = sys.executable

    def render(self, pool: Pool) -> Artifacts:
        """The batch script as submitit writes it, and the worker's."""
        try:
            from submitit.slurm.slurm import _make_sbatch_string
        except ImportError:
            raise EngineMissing(NAME, "the package submitit", "pip install 'stagesweep[slurm]'") from None
        command = f"{_python(pool)} -u -m submitit.core._submit {shlex.quote(str(pool.folder))}"
        count = pool.workers if pool.workers > 1 else None
        text = _make_sbatch_string(command=command, folder=pool.folder, map_count=count, **parameters(pool))
        return {"submission.sh": text, SCRIPT: worker_script(pool)}

    def up(self, pool: Pool, notify: Tell) -> int:
        """Submit the array. Its worker's script lies in the pool's folder, for its owner alone."""
        job = _submit(pool, self.render(pool))
        launched.write(launched.Launched(runner=NAME, pool=pool, notes={"jobs": [job]}))
        notify(
            f"Slurm has {counted(pool.workers, 'worker')} as job {job}; "
            f"their output is in {pool.folder}/{job}*_log.out"
        )
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[Place, ...]:
        """Those in the queue, and those of this pool that left it: done where submitit has their result."""
        queue = _queue(pool)
        present = {place.worker for _, place in queue}
        known = launched.read(pool.folder)
        gone = []
        for job in known.notes.get("jobs", ()) if known else ():
            files = [*pool.folder.glob(f"{job}_submitted.pkl"), *pool.folder.glob(f"{job}_*_submitted.pkl")]
            gone += [file.name.removesuffix("_submitted.pkl") for file in files]
        ended = tuple(
            Place(worker=worker, state="done" if _is_done(pool.folder, worker) else "failed")
            for worker in sorted(gone, key=_natural)
            if worker not in present
        )
        return (*(place for _, place in queue), *ended)

    def scale(self, pool: Pool, workers: int, notify: Tell) -> None:
        """One more array for those that are missing; those too many go, waiting ones first."""
        queue = sorted(_queue(pool), key=lambda job: (job[1].state != "running", _natural(job[1].worker)))
        if workers > len(queue):
            more = replace(pool, workers=workers - len(queue))
            job = _submit(more, self.render(more))
            known = launched.read(pool.folder)
            jobs = [*(known.notes.get("jobs", ()) if known else ()), job]
            launched.write(launched.Launched(runner=NAME, pool=pool, notes={"jobs": jobs}))
            notify(f"Slurm has {counted(more.workers, 'more worker')} as job {job}")
        elif surplus := queue[workers:]:
            _leave(pool, surplus)
            notify(f"{counted(len(surplus), 'worker')} gone: {counted(workers, 'worker')} wanted")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """What submitit's tasks wrote."""
        yield from tails(pool.folder, f"{worker or '*'}_0_log.out", lines)

    def down(self, pool: Pool, notify: Tell) -> int:
        """Every job of this name that is ours in the queue."""
        queue = _queue(pool)
        _leave(pool, queue)
        if queue:
            notify(f"the pool is down: {counted(len(queue), 'job')} left Slurm's queue")
        return len(queue)

    def health(self) -> Health:
        """Whether submitit is installed, sbatch is here, and the controller answers."""
        try:
            told = f"submitit {importlib.metadata.version('submitit')}"
        except importlib.metadata.PackageNotFoundError:
            return Health(state="missing", told="no submitit", remedy="pip install 'stagesweep[slurm]'")
        if missing := [
            name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None
        ]:
            return Health(state="missing", told=f"{told}, no {missing[0]}", remedy=_REMEDY)
        try:
            answer(NAME, ["scontrol", "ping"], remedy=_REMEDY, patience_s=10.0)
            version = answer(NAME, ["sbatch", "--version"], remedy=_REMEDY, patience_s=10.0).strip()
        except (EngineFailed, EngineMissing):
            return Health(
                state="unreachable",
                told=f"{told}, sbatch, no controller answers",
                remedy="run it on a node of the cluster; `scontrol ping` says more",
            )
        return Health(state="ready", told=f"{told}, {version}")


def parameters(pool: Pool) -> dict[str, Any]:
    """The pool in submitit's words; what submitit has no word for goes to sbatch under its own. Pure."""
    if "%" in str(pool.folder) or "\n" in str(pool.folder):
        raise PoolError("folder", f"{pool.folder} has a % or a line end, which mean something to sbatch")
    more: dict[str, Any] = {"signal": f"TERM@{math.ceil(pool.grace_s)}", "requeue": True}
    if pool.accelerator:
        kind = "gpu" if pool.accelerator == "gpu" else f"gpu:{pool.accelerator}"
        more["gres"] = f"{kind}:{pool.accelerator_count}"
    for key, value in pool.options.items():
        more[key] = _checked(key, value)
    if "\n" in pool.accelerator:
        raise PoolError("accelerator", f"{pool.accelerator!r} has a line end")
    leave = shlex.quote(str(pool.folder))
    return {
        "job_name": pool.label,
        "time": None,  # the partition's own; submitit would say five minutes
        "ntasks_per_node": 1,
        "cpus_per_task": pool.threads,
        "srun_args": [f"--cpus-per-task={pool.threads}"]
        if pool.threads
        else None,  # not inherited since 22.05
        "stderr_to_stdout": True,
        "array_parallelism": pool.workers,
        "additional_parameters": more,
        "teardown": [
            "status=$?",
            f'[ -e {leave}/leave-"$SLURM_JOB_ID" ] && exit {EXIT_DONE}',
            f'[ $status -eq {EXIT_PREEMPTED} ] && scontrol requeue "$SLURM_JOB_ID"',
            "exit $status",
        ],
    }


def _checked(key: str, value: object) -> object:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
        raise PoolError(
            "options", f"{key!r} is no option of sbatch: write it as --{key} would be, such as mem=8G"
        )
    if key in _OURS:
        raise PoolError("options", f"{key} is the runner's own; use --workers, --threads, --accelerator")
    if value is True:
        return value
    if not isinstance(value, str | int | float) or value is False or "\n" in str(value):
        raise PoolError("options", f"{key} is {value!r}; give one line, a number, or true for a bare flag")
    return value


def _python(pool: Pool) -> str:
    return shlex.quote(pool.command[0])


def _submit(pool: Pool, artifacts: Artifacts) -> str:
    """The id of the job (an array where there are several workers)."""
    from submitit.core.utils import FailedJobError
    from submitit.slurm.slurm import SlurmExecutor

    if missing := [name for name in ("sbatch", "srun") if shutil.which(name) is None]:
        raise EngineMissing(NAME, f"the command {missing[0]}", _REMEDY)
    script = pool.folder / SCRIPT
    write_private(script, artifacts[SCRIPT], executable=True)
    worker = Worker(str(script), pool.restarts, pool.grace_s)
    executor = SlurmExecutor(folder=pool.folder, python=_python(pool))
    executor.update_parameters(**parameters(pool))
    try:
        with executor.batch():
            jobs = [executor.submit(worker) for _ in range(pool.workers)]
    except (FailedJobError, subprocess.CalledProcessError, OSError) as error:
        raise EngineFailed(NAME, f"sbatch: {getattr(error, 'stderr', None) or error}") from None
    return str(jobs[0].job_id).partition("_")[0]


def _queue(pool: Pool) -> list[tuple[str, Place]]:
    """Every job of ours with the pool's name that is in the queue, by Slurm's own number of it."""
    command = ["squeue", "--noheader", "--array", "--me", f"--name={pool.label}", "--format=%A|%i|%T|%N|%r"]
    found = []
    for line in answer(NAME, command, remedy=_REMEDY).splitlines():
        raw, worker, state, node, reason = line.strip().split("|", 4)
        where = node if node not in ("", "(null)") else ""
        told = state if reason in ("None", "") else f"{state} ({reason})"
        place = Place(worker=worker, state=_STATES.get(state, "waiting"), where=where, told=told)
        found.append((raw, place))
    return found


def _leave(pool: Pool, jobs: list[tuple[str, Place]]) -> None:
    """Running ones are told, and have the grace time; a file says that they are not to be requeued."""
    running = [raw for raw, place in jobs if place.state == "running"]
    pool.folder.mkdir(parents=True, exist_ok=True)  # of a pool that was launched elsewhere
    for raw in running:
        (pool.folder / f"leave-{raw}").touch()
    for raw, place in jobs:
        if place.state != "running":
            _cancel(raw)
    for raw in running:
        _cancel("--signal=TERM", raw)
    deadline = time.monotonic() + pool.grace_s
    while running and time.monotonic() < deadline:
        time.sleep(_EVERY_S)
        there = {raw for raw, _ in _queue(pool)}
        running = [raw for raw in running if raw in there]
    for raw in running:
        _cancel(raw)
    for raw, _ in jobs:
        (pool.folder / f"leave-{raw}").unlink(missing_ok=True)


def _cancel(*words: str) -> None:
    """A job that has left the queue meanwhile is no error."""
    try:
        answer(NAME, ["scancel", *words], remedy=_REMEDY)
    except EngineFailed as error:
        if "Invalid job id" not in error.problem and "already completing" not in error.problem:
            raise


def _is_done(folder: Path, worker: str) -> bool:
    return (folder / f"{worker}_0_result.pkl").exists()


def _natural(worker: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", worker)]


RUNNER = Slurm()
