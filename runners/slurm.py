"""`slurm`: an array of workers through submitit, requeued when they are preempted or lose their node.

The batch script is submitit's. Under `srun` it runs `supervise_worker` with the worker's script, so that
SIGTERM reaches the worker and not only the batch shell. `--signal` is SIGTERM, too: submitit's own SIGUSR2
would reach every process of the step, and means something else to the trainer's guard.
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

from runners.errors import EXIT_DONE, EXIT_PREEMPTED, EngineFailed, EngineMissing, PoolError
from runners.pools import launched
from runners.pools.pool import Pool
from runners.pools.program import run_command, tails
from runners.pools.runner import Artifacts, Health, Notify, WorkerState, WorkerStatus
from runners.pools.script import worker_script
from runners.tend import supervise_worker
from sweeps.text.atomic_file import OWNER_EXECUTABLE, write_atomic
from sweeps.text.counted import counted
from sweeps.text.installation import install_command

NAME = "slurm"
SCRIPT = "worker.sh"
_REMEDY = "run this where sbatch is, such as the cluster's login node"
_RESERVED = {
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
_STATES: Mapping[str, WorkerState] = {"RUNNING": "running", "COMPLETING": "running", "STAGE_OUT": "running"}
_POLL_S = 1.0
_RESULT = "_0_result.pkl"
"""End of the name of the file in which submitit keeps the result of a worker, here of its first host."""
_LEFT = ".left"
"""End of the name of an empty file: the worker was sent away."""


@dataclass(frozen=True)
class Worker:
    """Task that submitit pickles: one worker, supervised until it has ended for good.

    Args:
        script: path of the worker's script, on the file system that the nodes share.
        restarts: consecutive crashes that are answered by a restart.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    script: str
    restarts: int
    grace_s: float

    def __call__(self) -> None:
        status = supervise_worker(["bash", self.script], restarts=self.restarts, grace_s=self.grace_s)
        if status != EXIT_DONE:
            sys.exit(status)  # for the batch script and Slurm's RequeueExit


class Slurm:
    """Runner for Slurm, which keeps the pool; its jobs are found by their name, the pool's label."""

    name = NAME
    takes = frozenset({"accelerator", "accelerator_count", "threads", "options", "nodes"})
    keeps = False
    python = sys.executable

    def sees(self, folder: Path, pool: Pool) -> bool:
        """Return True: a shared file system is taken for granted."""
        return True

    def render(self, pool: Pool) -> Artifacts:
        """Return the batch script as submitit writes it, and the worker's."""
        try:
            from submitit.slurm.slurm import _make_sbatch_string
        except ImportError:
            raise EngineMissing(NAME, "the package submitit", install_command("slurm")) from None
        command = f"{_python(pool)} -u -m submitit.core._submit {shlex.quote(str(pool.folder))}"
        count = pool.workers if pool.workers > 1 else None
        text = _make_sbatch_string(command=command, folder=pool.folder, map_count=count, **parameters(pool))
        return {"submission.sh": text, SCRIPT: worker_script(pool)}

    def up(self, pool: Pool, notify: Notify) -> int:
        """Submit the array; the worker's script is in the pool's folder, readable by its owner alone."""
        job = _submit(pool, self.render(pool))
        launched.write(launched.Launched(runner=NAME, pool=pool, notes={"jobs": [job]}))
        notify(
            f"Slurm has {counted(pool.workers, 'worker')} as job {job}; "
            f"their output is in {pool.folder}/{job}*_log.out"
        )
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """Return the workers in the queue, and those that left it.

        Those are done where submitit has their result, or where `scale` or `down` sent them away.
        """
        queue = _queue(pool)
        present = {status.worker for _, status in queue}
        known = launched.read(pool.folder)
        gone = []
        for job in known.notes.get("jobs", ()) if known else ():
            files = [*pool.folder.glob(f"{job}_submitted.pkl"), *pool.folder.glob(f"{job}_*_submitted.pkl")]
            gone += [file.name.removesuffix("_submitted.pkl") for file in files]
        done = {file.name for ending in (_RESULT, _LEFT) for file in pool.folder.glob(f"*{ending}")}
        ended = tuple(
            WorkerStatus(
                worker=worker, state="done" if {worker + _RESULT, worker + _LEFT} & done else "failed"
            )
            for worker in sorted(gone, key=_natural)
            if worker not in present
        )
        return (*(status for _, status in queue), *ended)

    def scale(self, pool: Pool, workers: int, notify: Notify) -> None:
        """Submit another array for missing workers; let surplus ones leave, waiting ones first."""
        queue = sorted(_queue(pool), key=lambda job: (job[1].state != "running", _natural(job[1].worker)))
        if workers > len(queue):
            more = replace(pool, workers=workers - len(queue))
            job = _submit(more, self.render(more))
            known = launched.read(pool.folder)
            jobs = [*(known.notes.get("jobs", ()) if known else ()), job]
            launched.write(launched.Launched(runner=NAME, pool=pool, notes={"jobs": jobs}))
            notify(f"Slurm has {counted(more.workers, 'more worker')} as job {job}")
        elif surplus := queue[workers:]:
            _stop(pool, surplus)
            notify(f"stopped {counted(len(surplus), 'worker')}: {counted(workers, 'worker')} wanted")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """Yield the last lines of the tasks' logs."""
        yield from tails(pool.folder, f"{worker or '*'}_{'*' if pool.nodes > 1 else 0}_log.out", lines)

    def down(self, pool: Pool, notify: Notify) -> int:
        """Cancel every job of this pool in the queue."""
        queue = _queue(pool)
        _stop(pool, queue)
        if queue:
            notify(f"the pool is down: {counted(len(queue), 'job')} left Slurm's queue")
        return len(queue)

    def health(self) -> Health:
        """Check for submitit and sbatch, and that the controller answers."""
        try:
            version = f"submitit {importlib.metadata.version('submitit')}"
        except importlib.metadata.PackageNotFoundError:
            return Health(state="missing", detail="no submitit", remedy=install_command("slurm"))
        if missing := [
            name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None
        ]:
            return Health(state="missing", detail=f"{version}, no {missing[0]}", remedy=_REMEDY)
        try:
            run_command(NAME, ["scontrol", "ping"], remedy=_REMEDY, timeout_s=10.0)
            slurm = run_command(NAME, ["sbatch", "--version"], remedy=_REMEDY, timeout_s=10.0).strip()
        except (EngineFailed, EngineMissing):
            return Health(
                state="unreachable",
                detail=f"{version}, sbatch, no controller answers",
                remedy="run it on a node of the cluster; `scontrol ping` says more",
            )
        return Health(state="ready", detail=f"{version}, {slurm}")


def parameters(pool: Pool) -> dict[str, Any]:
    """Return the pool as submitit's parameters; options without one are passed to sbatch. Pure."""
    if "%" in str(pool.folder) or "\n" in str(pool.folder):
        raise PoolError("folder", f"{pool.folder} has a % or a line end, which sbatch would interpret")
    more: dict[str, Any] = {"signal": f"TERM@{math.ceil(pool.grace_s)}", "requeue": True}
    if pool.accelerator:
        kind = "gpu" if pool.accelerator == "gpu" else f"gpu:{pool.accelerator}"
        more["gres"] = f"{kind}:{pool.accelerator_count}"
    for key, value in pool.options.items():
        more[key] = _check_option(key, value)
    if "\n" in pool.accelerator:
        raise PoolError("accelerator", f"{pool.accelerator!r} has a line end")
    leave = shlex.quote(str(pool.folder))
    # One task of the array has the array's id, with which scontrol would requeue all of them. One worker is
    # no array, though its script may see the variables of one from which it was launched.
    task = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if pool.workers > 1 else "$SLURM_JOB_ID"
    return {
        "job_name": pool.label,
        "time": None,  # the partition's default; submitit's would be five minutes
        "wckey": more.pop("wckey", None),  # where clusters account by it; submitit's would be its own name
        "nodes": pool.nodes,
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
            f'[ $status -eq {EXIT_PREEMPTED} ] && scontrol requeue "{task}"',
            "exit $status",
        ],
    }


def _check_option(key: str, value: object) -> object:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
        raise PoolError(
            "options", f"{key!r} is not an option of sbatch; write it without dashes, such as mem=8G"
        )
    if key in _RESERVED:
        raise PoolError(
            "options", f"{key} is set by the runner; use --workers, --nodes, --threads, --accelerator"
        )
    if value is True:
        return value
    if not isinstance(value, str | int | float) or value is False or "\n" in str(value):
        raise PoolError("options", f"{key} is {value!r}; give one line, a number, or true for a bare flag")
    return value


def _python(pool: Pool) -> str:
    """Return Python as submitit starts it: a `runners.py` in the folder of the job is not taken for ours."""
    return f"{shlex.quote(pool.command[0])} -P"


def _submit(pool: Pool, artifacts: Artifacts) -> str:
    """Submit the job (an array where there are several workers) and return its id."""
    from submitit.core.utils import FailedJobError
    from submitit.slurm.slurm import SlurmExecutor

    if missing := [name for name in ("sbatch", "srun") if shutil.which(name) is None]:
        raise EngineMissing(NAME, f"the command {missing[0]}", _REMEDY)
    script = pool.folder / SCRIPT
    write_atomic(script, artifacts[SCRIPT], mode=OWNER_EXECUTABLE)
    worker = Worker(str(script), pool.restarts, pool.grace_s)
    executor = SlurmExecutor(folder=pool.folder, python=_python(pool))
    executor.update_parameters(**parameters(pool))
    try:
        with executor.batch():
            jobs = [executor.submit(worker) for _ in range(pool.workers)]
    except (FailedJobError, subprocess.CalledProcessError, OSError) as error:
        raise EngineFailed(NAME, f"sbatch: {getattr(error, 'stderr', None) or error}") from None
    return str(jobs[0].job_id).partition("_")[0]


def _queue(pool: Pool) -> list[tuple[str, WorkerStatus]]:
    """Return the pool's jobs in the queue, each with the id that a running one has as `SLURM_JOB_ID`.

    `scancel` must not get that id: the task that started last, and all that have not started, have the
    array's, which stands for the whole of it.
    """
    command = ["squeue", "--noheader", "--array", "--me", f"--name={pool.label}", "--format=%A|%i|%T|%N|%r"]
    found = []
    for line in run_command(NAME, command, remedy=_REMEDY).splitlines():
        raw, worker, state, node, reason = line.strip().split("|", 4)
        where = node if node not in ("", "(null)") else ""
        detail = state if reason in ("None", "") else f"{state} ({reason})"
        status = WorkerStatus(worker=worker, state=_STATES.get(state, "waiting"), where=where, detail=detail)
        found.append((raw, status))
    return found


def _stop(pool: Pool, jobs: list[tuple[str, WorkerStatus]]) -> None:
    """Cancel the jobs, running ones with a grace time.

    One file keeps the batch script from requeueing a job, another one says later that it has not failed.
    """
    running = [status.worker for _, status in jobs if status.state == "running"]
    leave = [pool.folder / f"leave-{raw}" for raw, status in jobs if status.state == "running"]
    pool.folder.mkdir(parents=True, exist_ok=True)  # the pool may have been launched elsewhere
    for file in (*leave, *(pool.folder / (status.worker + _LEFT) for _, status in jobs)):
        file.touch()
    for _, status in jobs:
        if status.state != "running":
            _cancel(status.worker)
    for worker in running:
        _cancel("--signal=TERM", worker)
    deadline = time.monotonic() + pool.grace_s
    while running and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        queued = {status.worker for _, status in _queue(pool)}
        running = [worker for worker in running if worker in queued]
    for worker in running:
        _cancel(worker)
    for file in leave:
        file.unlink(missing_ok=True)


def _cancel(*words: str) -> None:
    """Run scancel; a job that has left the queue meanwhile is not an error."""
    try:
        run_command(NAME, ["scancel", *words], remedy=_REMEDY)
    except EngineFailed as error:
        if "Invalid job id" not in error.problem and "already completing" not in error.problem:
            raise


def _natural(worker: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", worker)]


RUNNER = Slurm()
