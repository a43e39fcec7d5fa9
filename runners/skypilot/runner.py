"""`skypilot`: a pool as N managed jobs of one name, which SkyPilot's controller keeps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from runners.errors import EXIT_DONE, PoolError
from runners.pools.pool import Pool
from runners.pools.program import find_command
from runners.pools.runner import Artifacts, Health, Notify, WorkerState, WorkerStatus
from runners.pools.yaml_text import yaml_text
from runners.skypilot.options import options_of
from runners.skypilot.sky import NAME, Job, Sky, remedy
from runners.skypilot.task import FILE, PYTHON, launch, task
from sweeps.text.atomic_file import write_atomic
from sweeps.text.counted import counted


class SkyPilot:
    """Runner for SkyPilot; a worker's id is that of its managed job."""

    name = NAME
    takes = frozenset({"accelerator", "accelerator_count", "spot", "threads", "options", "nodes"})
    keeps = False
    python = PYTHON

    def sees(self, folder: Path, pool: Pool) -> bool:
        """Return False: they are machines of a cloud."""
        return False

    def render(self, pool: Pool) -> Artifacts:
        """Return the task of one worker, and the command that submits N of them."""
        command = shlex.join(("sky", *launch(pool, pool.workers, FILE)))
        return {FILE: yaml_text(task(pool, options_of(pool))), "launch.sh": f"{command}\n"}

    def up(self, pool: Pool, notify: Notify) -> int:
        """Submit N managed jobs; the very first ones start a controller, which takes minutes."""
        text = self.render(pool)[FILE]
        sky = Sky()
        if active := _active(sky.jobs(pool.label)):
            raise PoolError(
                "workers",
                f"{counted(len(active), 'job')} {pool.label} there already; `sweep down skypilot` ends them",
            )
        self._submit(sky, pool, text, pool.workers, notify)
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """Return every managed job of the pool's name, also finished ones."""
        return tuple(_worker_status(job) for job in Sky().jobs(pool.label))

    def scale(self, pool: Pool, workers: int, notify: Notify) -> None:
        """Submit more, or cancel the newest."""
        text = self.render(pool)[FILE]
        sky = Sky()
        active = _active(sky.jobs(pool.label))
        if workers > len(active):
            self._submit(sky, pool, text, workers - len(active), notify)
        elif workers < len(active):
            _cancel(sky, active[workers:], notify)

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """Yield the last log lines of each active job, or of one job."""
        sky = Sky()
        jobs = sky.jobs(pool.label)
        wanted = _active(jobs) if worker is None else [job for job in jobs if str(job.id) == worker]
        for job in wanted:
            yield f"==> job {job.id} <=="
            yield from sky.read("jobs", "logs", str(job.id), "--no-follow", "--tail", str(lines)).splitlines()

    def down(self, pool: Pool, notify: Notify) -> int:
        """Cancel the jobs; SkyPilot stops their workers and takes their machines down."""
        sky = Sky()
        active = _active(sky.jobs(pool.label))
        if active:
            _cancel(sky, active, notify)
        return len(active)

    def health(self) -> Health:
        """Check for the command `sky`; its server, which may take a minute to start, is not asked."""
        found = find_command("sky")
        if found is None:
            return Health(state="missing", detail="sky is missing", remedy=remedy())
        return Health(state="ready", detail=f"{found}; `sky check` lists the clouds that it may use")

    def _submit(self, sky: Sky, pool: Pool, text: str, workers: int, notify: Notify) -> None:
        file = pool.folder / FILE
        write_atomic(file, text)
        sky.stream(*launch(pool, workers, str(file)), notify=notify)
        notify(f"submitted: {counted(workers, 'managed job')} {pool.label}; see `sweep pool status skypilot`")


def _active(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if not job.over]


def _cancel(sky: Sky, jobs: list[Job], notify: Notify) -> None:
    sky.stream("jobs", "cancel", "--yes", *(str(job.id) for job in jobs), notify=notify)


def _worker_status(job: Job) -> WorkerStatus:
    state: WorkerState = "running" if job.status == "RUNNING" else "waiting"
    if job.over:
        state = "failed" if job.status.startswith("FAILED") else "done"
    recoveries = f", {counted(job.recoveries, 'recovery', 'recoveries')}" if job.recoveries else ""
    return WorkerStatus(worker=str(job.id), state=state, where=job.where, detail=f"{job.status}{recoveries}")


RUNNER = SkyPilot()
