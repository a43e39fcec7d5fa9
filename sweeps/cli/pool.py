"""`sweep launch` and `sweep down`: workers by the dozen."""

from __future__ import annotations

import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.locate import open_sweep, storage_options
from sweeps.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED, InputError, SweepError
from sweeps.experiment import Experiment
from sweeps.storage.urls import is_remote

if TYPE_CHECKING:
    from runners.command import Pool

STARTING_S = 30.0  # until a detached pool has said that it is there
_DEVICE_FILES = "nvidia[0-9]*"


@click.command()
@click.argument("runner", type=click.Choice(["local"]))
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Default: one per accelerator, else one."
)
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads for each. Default: its share."
)
@click.option(
    "--devices",
    default="auto",
    metavar="IDS",
    show_default=True,
    help="Accelerators, one for each worker: ids for CUDA_VISIBLE_DEVICES such as 0,1, or none.",
)
@click.option("--max-trials", type=click.IntRange(min=1), metavar="N", help="Each leaves after N trials.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds that workers have to hand their trials back.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
@click.option("--detach", is_flag=True, help="Go on in the background, also after the terminal is closed.")
@storage_options
def launch(
    runner: str,
    workers: int | None,
    threads: int | None,
    devices: str,
    max_trials: int | None,
    grace: float,
    dry_run: bool,
    detach: bool,
    storage: str | None,
    name: str | None,
) -> int:
    """Start workers, and keep them going until no trial is left.

    RUNNER is where: `local`, processes on this machine. A worker that was preempted (exit status 75) is
    started again at once, one that crashed later and later, one whose input is wrong (2) never. Ctrl-C, or
    `sweep down`, lets them hand their trials back.
    """
    from runners import pool_file
    from runners.command import Pool
    from runners.errors import RunnerError
    from runners.local import render, shell_line

    experiment = open_sweep(storage, name)
    ids = _devices(devices)
    count = workers or len(ids) or 1
    try:
        pool = Pool(
            storage=experiment.store.url,
            workers=count,
            threads=threads or max(1, (os.cpu_count() or 1) // count),
            devices=ids,
            max_trials=max_trials,
            grace_s=grace,
        )
    except RunnerError as error:
        raise InputError(f"--{error}") from None
    logs = _logs(experiment)
    processes = render(pool, logs)
    if dry_run:
        for process in processes:
            click.echo(shell_line(process))
        return EXIT_DONE
    there = pool_file.read(logs)
    if there is not None and there.alive():
        raise InputError(
            f"a pool of this sweep runs here already (process {there.alive()[0].pid}); `sweep down` ends it"
        )
    return _detach(logs) if detach else _keep(pool, logs)


@click.command()
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds until those are killed that did not listen.",
)
@storage_options
def down(grace: float, storage: str | None, name: str | None) -> int:
    """End the pool of workers that `sweep launch local` keeps on this machine.

    They hand their trials back, and go on from their checkpoints wherever the next worker is.
    """
    import psutil

    from runners import pool_file

    logs = _logs(open_sweep(storage, name))
    found = pool_file.read(logs)
    alive = found.alive() if found else []
    if not alive:
        click.echo("sweep: no pool of this sweep runs on this machine", err=True)
        pool_file.remove(logs)
        return EXIT_DONE
    # The keeper ends its workers itself; where it is gone, they have to be told.
    told = alive[:1] if found and alive[0].pid == found.keeper.pid else alive
    for process in told:
        process.terminate()
    _, deaf = psutil.wait_procs(alive, timeout=grace)
    for process in deaf:
        process.kill()
    psutil.wait_procs(deaf, timeout=grace)
    pool_file.remove(logs)
    killed = f", {len(deaf)} of them killed" if deaf else ""
    click.echo(f"sweep: the pool is down: {len(alive)} processes ended{killed}", err=True)
    return EXIT_DONE


def _keep(pool: Pool, logs: Path) -> int:
    from runners import pool_file
    from runners.keep import keep
    from runners.local import render

    asked: list[str] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            os._exit(EXIT_PREEMPTED)  # the workers were told, and are in sessions of their own
        asked.append(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    pool_file.write(logs, ())
    devices = f" on {len(pool.devices)} accelerators" if pool.devices else f", {pool.threads} threads each"
    _say(f"{pool.workers} workers{devices}; their output is in {logs}/worker-*.log")
    try:
        ends = keep(
            render(pool, logs),
            pool,
            stopped=lambda: bool(asked),
            tell=_say,
            changed=lambda pids: pool_file.write(logs, pids),
        )
    finally:
        pool_file.remove(logs)
    if asked:
        _say(f"{asked[0]}: the pool is down")
        return EXIT_PREEMPTED
    if "poison" in ends:
        return EXIT_INPUT
    return EXIT_FAILED if "given up" in ends else EXIT_DONE


def _detach(logs: Path) -> int:
    """The same command in a session of its own, without a terminal."""
    from runners import pool_file

    argv = [word for word in sys.argv[1:] if word != "--detach"]
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "launch.log"
    with log.open("ab") as out:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "sweeps", *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTING_S
    while time.monotonic() < deadline and keeper.poll() is None:
        found = pool_file.read(logs)
        if found is not None and found.keeper.pid == keeper.pid and found.workers:
            _say(f"the pool runs (process {keeper.pid}); `sweep down` ends it; {log} tells what happens")
            return EXIT_DONE
        time.sleep(0.1)
    if keeper.poll() == EXIT_DONE:
        return EXIT_DONE
    raise SweepError(f"the pool did not start; {shlex.quote(str(log))} says why")


def _devices(given: str) -> tuple[str, ...]:
    if given == "none":
        return ()
    if given != "auto":
        ids = tuple(word.strip() for word in given.split(","))
        if not all(ids) or len(set(ids)) < len(ids):
            raise InputError(f"--devices {given}: write ids with commas between them, each once, such as 0,1")
        return ids
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        words = (word.strip() for word in visible.split(","))
        return tuple(takewhile(lambda word: word and word != "-1", words))  # CUDA itself reads no further
    return tuple(str(number) for number in range(len(list(Path("/dev").glob(_DEVICE_FILES)))))


def _logs(experiment: Experiment) -> Path:
    """Beside the records where those are in a folder, each machine's apart, else in the working directory."""
    store = experiment.store
    logs = Path("sweep-logs") / experiment.space.name if is_remote(store.url) else store.folder("logs")
    return logs / (re.sub(r"[^\w.-]", "_", platform.node()) or "here")


def _say(line: str) -> None:
    click.echo(f"sweep: {line}", err=True)
