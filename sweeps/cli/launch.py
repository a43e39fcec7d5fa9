"""Command `sweep launch`: starts workers, on this machine or through an engine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sweeps.cli.cost_guard import guard
from sweeps.cli.options import Sweep, sweep_option
from sweeps.cli.output import notify, print_json
from sweeps.cli.pool_options import make_pool, pool_options
from sweeps.errors import EXIT_DONE, EnvironmentFault, InputError, StoreUnavailable, SweepError, SweepNotFound
from sweeps.operations.control import user_name
from sweeps.operations.opening import A_PERSON_WAITS_S, storage_url
from sweeps.operations.pools import Place, former_folder, place_of
from sweeps.programs.kinds import with_nodes
from sweeps.storage.urls import join
from sweeps.text.counted import counted
from sweeps.trials import actions

if TYPE_CHECKING:
    from runners.pools.pool import Pool
    from runners.pools.runner import Runner
    from sweeps.experiment import Experiment

STARTING_S = 30.0  # until a detached pool has written its pool file


def known_runner(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the name of a runner; the table of engines is only imported to look one up."""
    if value is not None:
        from runners.pools.engines import ENGINES

        if value not in ENGINES:
            raise click.BadParameter(f"{value!r} is none of {', '.join(ENGINES)}")
    return value


@click.command()
@click.argument("runner", callback=known_runner)
@pool_options
@click.option("--dry-run", is_flag=True, help="Print what would be handed to the engine, and start nothing.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Of --dry-run: json is file names and texts.",
)
@click.option("--detach", is_flag=True, help="Run in the background, also after the terminal is closed.")
@sweep_option
def launch(runner: str, dry_run: bool, style: str, detach: bool, sweep: Sweep, **options: Any) -> int:
    """Start workers, and keep them going until no trial is left.

    RUNNER is where: `local` (processes on this machine), slurm, ray, tpu-vm, kubernetes or skypilot. A worker
    that was preempted (exit status 75) is started again at once, one that crashed after growing delays, one
    whose input is wrong (2) never. Ctrl-C, or `sweep down`, lets them hand their trials back; `sweep pool`
    shows them and changes their number.
    """
    from runners.pools import engines, launched

    with translated_errors():
        engine = engines.runner(runner)
        if dry_run:
            print_artifacts(_preview(engine, sweep, options), style)
            return EXIT_DONE
        experiment = sweep.open()
        devices = experiment.space.program.devices_per_host
        options |= {"nodes": _nodes(experiment, options)}
        pool = make_pool(engine, place_of(experiment), options, devices_each=devices)
        engines.check_storage(engine, pool)
        engine.render(pool)  # refuses what the engine cannot have
        engines.require(runner)
        missing = [secret for secret in pool.secrets if secret not in os.environ]
        if missing and engines.ENGINES[runner].secrets_here:
            raise InputError(
                f"{missing[0]} is not set here, and --secret passes its value on; export it first"
            )
        if detach and not engine.keeps:
            raise InputError(f"--detach: {runner} keeps the pool itself; leave it out")
        _refuse_a_second(engine, pool, place_of(experiment))
        guard(pool, pool.workers, experiment, yes=options["yes"])
        if detach:
            return _detach(pool.folder)
        what = f"launch {counted(pool.workers, 'worker')} on {runner}"
        if engine.keeps:
            actions.note(experiment.store, what, user_name())
        with launched.launching(engine, pool):
            status = engine.up(pool, notify)
        if engine.keeps:  # it has ended with this process
            launched.remove(pool.folder)
        else:
            actions.note(experiment.store, what, user_name())
        return status


def _preview(engine: Runner, sweep: Sweep, options: dict[str, Any]) -> Mapping[str, str]:
    """Return the artifacts of a pool, whether or not there is such a sweep and workers can see it."""
    from runners.errors import PoolError
    from runners.pools.engines import check_storage

    devices = 1
    try:
        experiment = sweep.open(patience_s=A_PERSON_WAITS_S)
        place, devices = place_of(experiment), experiment.space.program.devices_per_host
        options = options | {"nodes": _nodes(experiment, options)}
    except (SweepNotFound, StoreUnavailable) as error:
        problem = str(error).partition("; ")[0]
        notify(f"{problem}; below is what a sweep there would be started with")
        shown = sweep.name or "SWEEP"
        place = Place(join(storage_url(sweep.storage), shown), shown)
    pool = make_pool(engine, place, options, devices_each=devices)
    try:
        check_storage(engine, pool)
    except PoolError as error:
        notify(f"to start it: {error.problem}")
    return engine.render(pool)


def _nodes(experiment: Experiment, options: Mapping[str, Any]) -> int | None:
    """Return the number of hosts for each worker, which its command has to name; None: one, and no need to.

    Raises:
        InputError: so many cannot share a trial.
    """
    nodes: int = with_nodes(experiment.space, options["nodes"]).program.nodes
    return None if nodes == experiment.space.program.nodes == 1 else nodes


def print_artifacts(artifacts: Mapping[str, str], style: str) -> None:
    """Print the artifacts' texts; if there are several, each after a line with its name."""
    if style == "json":
        print_json(dict(artifacts))
        return
    for name, text in artifacts.items():
        if len(artifacts) > 1:
            click.echo(f"# ---- {name}")
        click.echo(text, nl=not text.endswith("\n"))


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of the runners as the command line's, with one line and an exit status."""
    from runners.errors import EngineFailed, EngineMissing, PoolError, RunnerError

    try:
        yield
    except PoolError as error:
        raise InputError(
            f"--{_OPTION_OF.get(error.field, error.field.replace('_', '-'))}: {error.problem}"
        ) from None
    except EngineMissing as error:
        raise InputError(str(error)) from None
    except EngineFailed as error:
        raise EnvironmentFault(str(error)) from None
    except RunnerError as error:
        raise InputError(str(error)) from None


_OPTION_OF = {
    "environment": "env",
    "secrets": "secret",
    "options": "option",
    "grace_s": "grace",
    "accelerator_count": "accelerator",
}


def _refuse_a_second(engine: Runner, pool: Pool, place: Place) -> None:
    """Raise InputError if the engine has a pool of the sweep from here: its record would be overwritten."""
    from runners.pools import launched, pool_file

    known = launched.read_either(pool.folder, former_folder(place, engine.name), pool.storage)
    if engine.keeps:
        found = pool_file.read(pool.folder if known is None else known.pool.folder)
        if found is not None and (alive := found.alive()):
            raise InputError(
                f"a pool of this sweep runs here already (process {alive[0].pid}); `sweep down` ends it"
            )
    elif known is not None:
        active = sum(worker.state in ("waiting", "running") for worker in engine.status(known.pool))
        if active:
            raise InputError(
                f"{engine.name} has a pool of this sweep with {counted(active, 'worker')}; "
                "`sweep pool scale` changes their number, `sweep down` ends it"
            )


def _detach(folder: Path) -> int:
    """Run the same command in a session of its own, without a terminal."""
    from runners.pools import pool_file

    argv = [
        *(word for word in sys.argv[1:] if word not in ("--detach", "--yes")),
        "--yes",
    ]  # confirmed already
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "launch.log"
    with log.open("ab") as out:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "sweeps", *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTING_S
    while time.monotonic() < deadline and keeper.poll() is None:
        found = pool_file.read(folder)
        if found is not None and found.keeper.pid == keeper.pid:
            notify(f"the pool runs (process {keeper.pid}); `sweep down` ends it; its log is {log}")
            return EXIT_DONE
        time.sleep(0.1)
    if keeper.poll() == EXIT_DONE:
        return EXIT_DONE
    raise SweepError(f"the pool did not start; {shlex.quote(str(log))} says why")
