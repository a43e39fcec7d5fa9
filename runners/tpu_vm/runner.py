"""`tpu-vm`: one worker on each of N TPU VMs; preempted ones are replaced.

`up` blocks and watches; the VMs' names and labels tell a later process what there is.
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

from runners.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED, EngineMissing
from runners.pools import engines, pool_file
from runners.pools.pool import Pool
from runners.pools.runner import Artifacts, Health, Notify, WorkerState, WorkerStatus
from runners.tpu_vm import render
from runners.tpu_vm.decide import Wanted
from runners.tpu_vm.options import TpuOptions, check_vms, options_of
from runners.tpu_vm.render import vm_id
from runners.tpu_vm.vm_script import LOG, PYTHON, vm_script
from sweeps.text.counted import counted

if TYPE_CHECKING:
    from runners.tpu_vm.client import TpuVms

_SCRIPT = "startup.sh"
_CREDENTIALS = "~/.config/gcloud/application_default_credentials.json"
_STATES: dict[str, WorkerState] = {"READY": "running", "FAILED": "failed"}


class TpuVm:
    """Runner for TPU VMs; the process that called `up` supervises, `down` needs only the label and zones."""

    name = "tpu-vm"
    takes = frozenset({"accelerator", "spot", "threads", "options"})
    keeps = True
    python = PYTHON

    def sees(self, folder: Path, pool: Pool) -> bool:
        """Return False: they are machines of a cloud."""
        return False

    def render(self, pool: Pool) -> Artifacts:
        """Return the start-up script, and the requests to the first zone, which name it."""
        options = options_of(pool)
        check_vms(pool, options)
        request = render.queued_resource if options.queued else render.node
        requests = {
            vm_id(pool.label, worker): request(pool, options, worker, options.zones[0], f"<{_SCRIPT}>")
            for worker in range(1, pool.workers + 1)
        }
        return {
            _SCRIPT: vm_script(pool, options),
            "requests.json": json.dumps(requests, indent=1, ensure_ascii=False) + "\n",
        }

    def up(self, pool: Pool, notify: Notify) -> int:
        """Watch the VMs until no worker is left, then delete them.

        Returns:
            0; 2 where a worker rejected its input or the request is wrong, 1 where a worker was given up, 75
            where a signal or somebody else ended the pool.
        """
        options = options_of(pool)
        check_vms(pool, options)
        vms = _vms(pool)
        from runners.tpu_vm.watch import clear, watch
        from runners.workers.signals import StopSignal

        stop = StopSignal()
        stop.listen()
        count = counted(pool.workers, "spot TPU VM" if pool.spot else "TPU VM")
        say = _without_errors(notify)
        with pool_file.supervising(pool.folder):
            say(f"requesting {count} {pool.accelerator} in {', '.join(options.zones)}")
            try:
                ends = watch(vms, lambda: _wanted(pool, options), stopped=lambda: bool(stop.by), notify=say)
                clear(vms, options.zones, say)
            except Exception:
                say("the VMs are no longer watched; those that exist keep running; `sweep down` deletes them")
                raise
        if stop.by:
            say(f"{stop.by}: the pool is down")
            return EXIT_PREEMPTED
        ended = ends.values()
        if "poison" in ended:
            return EXIT_INPUT
        if "given up" in ended:
            return EXIT_FAILED
        if "removed" in ended:
            say("VMs of this pool were deleted by somebody else; they are not created again")
            return EXIT_PREEMPTED
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """Return every VM with the pool's label, and requests without a VM, in all its zones."""
        resources = _vms(pool).observe(strict=True).resources
        nodes = {(each.zone, each.id) for each in resources if each.kind == "node"}
        found = []
        for each in resources:
            if each.kind == "queued" and (each.zone, each.id) in nodes:
                continue
            state = _STATES.get(each.state, "waiting")
            if each.ended:
                state = "done" if each.ended == "0" else "failed"
            words = (each.state, each.problem, each.ended and f"ended: {each.ended}")
            detail = " ".join(filter(None, words))
            found.append(WorkerStatus(worker=str(each.worker), state=state, where=each.zone, detail=detail))
        return tuple(found)

    def scale(self, pool: Pool, workers: int, notify: Notify) -> None:
        """Request a number of workers through a file that the supervising process polls."""
        pool_file.request_workers(pool.folder, workers, self.name)
        notify(f"the pool will have {counted(workers, 'worker')} in a while; `sweep pool status` shows them")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """Yield the last log lines of each VM, read by `gcloud ... ssh`."""
        gcloud = shutil.which("gcloud")
        if gcloud is None:
            raise EngineMissing(
                self.name, "the command gcloud to read logs", "https://cloud.google.com/sdk/docs/install"
            )
        options = options_of(pool)
        for each in _vms(pool).observe(strict=True).resources:
            if each.kind != "node" or each.state != "READY" or worker not in (None, str(each.worker)):
                continue
            yield f"==> worker {each.worker}, {each.zone} <=="
            argv = (gcloud, "compute", "tpus", "tpu-vm", "ssh", each.id, "--zone", each.zone)
            ran = subprocess.run(
                (*argv, "--project", options.project, "--command", f"sudo tail -n {int(lines)} {LOG}"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            yield from (ran.stdout if ran.returncode == 0 else ran.stderr).splitlines()

    def down(self, pool: Pool, notify: Notify) -> int:
        """Terminate the supervisor, then delete everything with the pool's label, in all its zones."""
        options = options_of(pool)
        vms = _vms(pool)
        from runners.tpu_vm.watch import GONE_S, clear

        found = pool_file.read(pool.folder)
        if found is not None and (supervisor := found.keeper.process()) is not None:
            import psutil

            with contextlib.suppress(psutil.NoSuchProcess):
                supervisor.terminate()  # it deletes the VMs itself; what it leaves is deleted below
            _, stubborn = psutil.wait_procs([supervisor], timeout=GONE_S)
            for process in stubborn:
                process.kill()
        count = clear(vms, options.zones, _without_errors(notify))
        pool_file.remove(pool.folder)
        return count

    def health(self) -> Health:
        """Check the package and the credentials; the service itself is not called."""
        try:
            engines.require(self.name)
        except EngineMissing as error:
            return Health(state="missing", detail=f"{error.needs} is missing", remedy=error.remedy)
        version = f"google-cloud-tpu {importlib.metadata.version('google-cloud-tpu')}"
        credentials = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or _CREDENTIALS
        if not Path(credentials).expanduser().exists():
            return Health(
                state="unreachable",
                detail=f"{version}, without credentials",
                remedy="gcloud auth application-default login",
            )
        return Health(state="ready", detail=f"{version}, with credentials")


def _without_errors(notify: Notify) -> Notify:
    """Return `notify` without its OSErrors: of a terminal that has hung up, or of a log on a full disk."""

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # VMs that nobody watches or deletes cost money
            notify(line)

    return say


def _vms(pool: Pool) -> TpuVms:
    engines.require("tpu-vm")
    from runners.tpu_vm.client import TpuVms

    return TpuVms(pool, options_of(pool))


def _wanted(pool: Pool, options: TpuOptions) -> Wanted:
    requested = pool_file.requested_workers(pool.folder)
    return Wanted(
        workers=pool.workers if requested is None else requested,
        zones=options.zones,
        restarts=pool.restarts,
        share="--max-trials" in pool.command,
    )


RUNNER = TpuVm()
