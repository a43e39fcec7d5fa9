"""`skypilot`: a pool is N managed jobs of one name, which SkyPilot's controller keeps.

RUNNER is what `engines` finds.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from runners.counted import counted
from runners.errors import EXIT_DONE, PoolError
from runners.pools.pool import Pool
from runners.pools.private_file import write_private
from runners.pools.runner import Artifacts, Health, Place, PlaceState, Tell
from runners.pools.yaml_text import yaml_text
from runners.skypilot.options import options_of
from runners.skypilot.sky import NAME, REMEDY, Job, Sky, find
from runners.skypilot.task import FILE, PYTHON, launch, task


class SkyPilot:
    """The runner. A worker is the id of its managed job."""

    name = NAME
    takes = frozenset(
        {"accelerator", "accelerator_count", "spot", "threads", "environment", "secrets", "setup", "grace_s"}
        | {"restarts", "max_dollars_per_hour", "options"}
    )
    keeps = False
    sees_folders = False
    python = PYTHON

    def render(self, pool: Pool) -> Artifacts:
        """The task of one worker, and the command that submits N of them."""
        command = shlex.join(("sky", *launch(pool, pool.workers, FILE)))
        return {FILE: yaml_text(task(pool, options_of(pool))), "launch.sh": f"{command}\n"}

    def up(self, pool: Pool, notify: Tell) -> int:
        """Submit N managed jobs; the first ones of all start a controller, which takes minutes."""
        text = self.render(pool)[FILE]
        sky = Sky()
        if active := _active(sky.jobs(pool.label)):
            raise PoolError(
                "workers",
                f"{counted(len(active), 'job')} {pool.label} there already; `sweep down skypilot` ends that",
            )
        self._submit(sky, pool, text, pool.workers, notify)
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[Place, ...]:
        """Every managed job of the pool's name, also those that are over."""
        return tuple(_place(job) for job in Sky().jobs(pool.label))

    def scale(self, pool: Pool, workers: int, notify: Tell) -> None:
        """Submit more, or cancel the newest."""
        text = self.render(pool)[FILE]
        sky = Sky()
        active = _active(sky.jobs(pool.label))
        if workers > len(active):
            self._submit(sky, pool, text, workers - len(active), notify)
        elif workers < len(active):
            _cancel(sky, active[workers:], notify)

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """The end of each job's log, of those that run or of the one that is asked for."""
        sky = Sky()
        jobs = sky.jobs(pool.label)
        wanted = _active(jobs) if worker is None else [job for job in jobs if str(job.id) == worker]
        for job in wanted:
            yield f"==> job {job.id} <=="
            yield from sky.read("jobs", "logs", str(job.id), "--no-follow", "--tail", str(lines)).splitlines()

    def down(self, pool: Pool, notify: Tell) -> int:
        """Cancel its jobs; SkyPilot tells their workers, and takes their machines down."""
        sky = Sky()
        active = _active(sky.jobs(pool.label))
        if active:
            _cancel(sky, active, notify)
        return len(active)

    def health(self) -> Health:
        """Whether sky is there; its server is not asked, which may take a minute to start."""
        found = find()
        if found is None:
            return Health(state="missing", told="sky is missing", remedy=REMEDY)
        return Health(state="ready", told=f"{found}; `sky check` tells which clouds it may use")

    def _submit(self, sky: Sky, pool: Pool, text: str, workers: int, notify: Tell) -> None:
        file = pool.folder / FILE
        write_private(file, text)
        sky.notify(*launch(pool, workers, str(file)), notify=notify)
        notify(f"submitted: {counted(workers, 'managed job')} {pool.label}; see `sweep pool status skypilot`")


def _active(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if not job.over]


def _cancel(sky: Sky, jobs: list[Job], notify: Tell) -> None:
    sky.notify("jobs", "cancel", "--yes", *(str(job.id) for job in jobs), notify=notify)


def _place(job: Job) -> Place:
    state: PlaceState = "running" if job.status == "RUNNING" else "waiting"
    if job.over:
        state = "failed" if job.status.startswith("FAILED") else "done"
    told = (
        f"{job.status}, {counted(job.recoveries, 'recovery', 'recoveries')}" if job.recoveries else job.status
    )
    return Place(worker=str(job.id), state=state, where=job.where, told=told)


RUNNER = SkyPilot()
