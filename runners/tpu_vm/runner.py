"""`tpu-vm`: one worker on each of N TPU VMs; spot ones are replaced when they are taken away.

RUNNER is what `engines` finds. `up` stays and watches; the VMs' names and labels tell the next one what
there is.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runners.counted import counted
from runners.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_PREEMPTED,
    EngineMissing,
    PoolError,
)
from runners.pools import engines, pool_file
from runners.pools.pool import Pool
from runners.pools.runner import Artifacts, Health, Place, PlaceState, Tell
from runners.tpu_vm import render
from runners.tpu_vm.decide import Wanted
from runners.tpu_vm.names import vm_id
from runners.tpu_vm.observed import Resource
from runners.tpu_vm.options import check_accelerator, options_of
from runners.tpu_vm.vm_script import LOG, PYTHON, vm_script

if TYPE_CHECKING:
    from runners.tpu_vm.client import TpuVms

_SCRIPT = "startup.sh"
_CREDENTIALS = "~/.config/gcloud/application_default_credentials.json"
_STATES: dict[str, PlaceState] = {"READY": "running", "FAILED": "failed"}


class TpuVm:
    """The runner. The process that called `up` keeps the pool; `down` needs only the pool's label and
    zones."""

    name = "tpu-vm"
    takes = frozenset(
        {
            "accelerator",
            "spot",
            "threads",
            "environment",
            "secrets",
            "setup",
            "grace_s",
            "restarts",
            "options",
        }
        | {"max_dollars_per_hour"}
    )
    keeps = True
    sees_folders = False
    python = PYTHON

    def render(self, pool: Pool) -> Artifacts:
        """The VMs' start-up script, and what is asked for in the first zone; the script stands there by
        name."""
        options = options_of(pool)
        check_accelerator(pool, options)
        ask = render.queued_resource if options.queued else render.node
        requests = {
            vm_id(pool.label, worker): ask(pool, options, worker, options.zones[0], f"<{_SCRIPT}>")
            for worker in range(1, pool.workers + 1)
        }
        return {
            _SCRIPT: vm_script(pool, options),
            "requests.json": json.dumps(requests, indent=1, ensure_ascii=False) + "\n",
        }

    def up(self, pool: Pool, notify: Tell) -> int:
        """Watch the VMs until no worker is left, and delete them: 0; 2 where a worker or the request itself
        was refused, 1 where one was given up, 75 where a signal or somebody else ended the pool."""
        options = options_of(pool)
        check_accelerator(pool, options)
        vms = _vms(pool)
        from runners.tpu_vm.watch import clear, watch
        from runners.workers.signals import StopSignal

        told = StopSignal()
        told.listen()
        pool_file.write(pool.folder, {})
        (pool.folder / pool_file.WANTED).unlink(missing_ok=True)

        def wanted() -> Wanted:
            workers = pool_file.wanted(pool.folder)
            workers = pool.workers if workers is None else workers
            return Wanted(
                workers=workers,
                zones=options.zones,
                restarts=pool.restarts,
                share="--max-trials" in pool.command,
            )

        kind = "spot TPU VMs" if pool.spot else "TPU VMs"
        notify(f"{pool.workers} {kind} {pool.accelerator}, looked for in {', '.join(options.zones)}")
        try:
            ends = watch(vms, wanted, stopped=lambda: bool(told.by), notify=notify)
            clear(vms, options.zones, notify)
        except Exception:
            notify("the VMs are no longer watched; those that exist keep running; `sweep down` deletes them")
            raise
        finally:
            pool_file.remove(pool.folder)
        if told.by:
            notify(f"{told.by}: the pool is down")
            return EXIT_PREEMPTED
        if "poison" in ends.values():
            return EXIT_INPUT
        if "given up" in ends.values():
            return EXIT_FAILED
        if "removed" in ends.values():
            notify("VMs of this pool were deleted by somebody else; they are not made again")
            return EXIT_PREEMPTED
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[Place, ...]:
        """Every request and VM with the pool's label, in all its zones."""
        seen = _vms(pool).look(blame=True)
        return tuple(
            _place(thing)
            for thing in seen.things
            if thing.kind == "node" or not _has_node(thing, seen.things)
        )

    def scale(self, pool: Pool, workers: int, notify: Tell) -> None:
        """Told to the process that keeps the pool, through a file that it reads."""
        found = pool_file.read(pool.folder)
        if found is None or found.keeper.process() is None:
            raise PoolError(
                "workers", "no process here keeps a pool of this sweep; start one: sweep launch tpu-vm"
            )
        pool_file.want(pool.folder, workers)
        notify(f"the pool has {counted(workers, 'worker')} in a while; `sweep pool status` shows them")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """The end of the log on each VM, read over ssh by gcloud."""
        gcloud = shutil.which("gcloud")
        if gcloud is None:
            raise EngineMissing(
                self.name, "the command gcloud to read logs", "https://cloud.google.com/sdk/docs/install"
            )
        options = options_of(pool)
        for thing in _vms(pool).look(blame=True).things:
            if thing.kind != "node" or thing.state != "READY" or worker not in (None, str(thing.worker)):
                continue
            yield f"==> worker {thing.worker}, {thing.zone} <=="
            argv = (gcloud, "compute", "tpus", "tpu-vm", "ssh", thing.id, "--zone", thing.zone)
            ran = subprocess.run(
                (*argv, "--project", options.project, "--command", f"sudo tail -n {int(lines)} {LOG}"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            yield from (ran.stdout if ran.returncode == 0 else ran.stderr).splitlines()

    def down(self, pool: Pool, notify: Tell) -> int:
        """Ends the keeper, then deletes everything with the pool's label, in all its zones."""
        options = options_of(pool)
        vms = _vms(pool)
        from runners.tpu_vm.watch import GONE_S, clear

        found = pool_file.read(pool.folder)
        if found is not None and (keeper := found.keeper.process()) is not None:
            import psutil

            with contextlib.suppress(psutil.NoSuchProcess):
                keeper.terminate()  # it deletes them itself; what it leaves is deleted below
            _, deaf = psutil.wait_procs([keeper], timeout=GONE_S)
            for process in deaf:
                process.kill()
        count = clear(vms, options.zones, notify)
        pool_file.remove(pool.folder)
        return count

    def health(self) -> Health:
        """The package, and credentials; the service itself is not asked."""
        try:
            engines.require(self.name)
        except EngineMissing as error:
            return Health(state="missing", told=f"{error.needs} is missing", remedy=error.remedy)
        told = f"google-cloud-tpu {importlib.metadata.version('google-cloud-tpu')}"
        named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        if not Path(named or _CREDENTIALS).expanduser().exists():
            return Health(
                state="unreachable",
                told=f"{told}, without credentials",
                remedy="gcloud auth application-default login",
            )
        return Health(state="ready", told=f"{told}, with credentials")


def _vms(pool: Pool) -> TpuVms:
    engines.require("tpu-vm")
    from runners.tpu_vm.client import TpuVms

    return TpuVms(pool, options_of(pool))


def _has_node(queued: Resource, things: tuple[Resource, ...]) -> bool:
    return any(each.kind == "node" and (each.zone, each.id) == (queued.zone, queued.id) for each in things)


def _place(thing: Resource) -> Place:
    return Place(
        worker=str(thing.worker),
        state=("done" if thing.ended == "0" else "failed")
        if thing.ended
        else _STATES.get(thing.state, "waiting"),
        where=thing.zone,
        told=" ".join(
            word for word in (thing.state, thing.problem, thing.ended and f"ended: {thing.ended}") if word
        ),
    )


RUNNER = TpuVm()
