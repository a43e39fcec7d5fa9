"""Commands `sweep pool status|scale|logs` and `sweep down`, for the pools of a sweep launched from here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from sweeps.cli.cost_guard import cost_of, guard
from sweeps.cli.launch import known_runner, translated_errors
from sweeps.cli.options import Sweep, count_option, number_option, sweep_option
from sweeps.cli.output import document_option, echo, notify, print_json
from sweeps.cli.pool_options import option_values
from sweeps.errors import EXIT_DONE, InputError, SweepError
from sweeps.experiment import Experiment
from sweeps.operations.control import user_name
from sweeps.operations.pools import folder, former_folder, place_of, storage_url
from sweeps.text.counted import counted
from sweeps.trials import actions

if TYPE_CHECKING:
    from runners.pools.pool import Pool

_LEAST_GRACE_S = 60.0
"""Least time of `sweep down`: more than the default of `sweep launch`, as the engine takes time, too."""
_runner = click.argument("runner", callback=known_runner, required=False)


@click.group()
def pool() -> None:
    """Inspect and resize the pools of workers that `sweep launch` started for a sweep.

    Without RUNNER, all pools that were launched from here.
    """


@pool.command()
@_runner
@document_option
@sweep_option
def status(runner: str | None, style: str, sweep: Sweep) -> int:
    """Show where the workers are, according to their engine."""
    from runners.pools import engines

    rows: list[dict[str, str]] = []
    errors: list[SweepError] = []
    with translated_errors():
        pools = pools_launched_here(sweep.open(), runner)
    for engine, pool_ in pools:
        with _collect_error(errors):
            engines.require(engine)
            rows += [{"runner": engine, **worker.row()} for worker in engines.runner(engine).status(pool_)]
    if style == "json":
        print_json(rows)
        return _exit_status(errors)
    for row in rows:
        words = (row[key] for key in ("runner", "worker", "state", "where", "told") if row[key])
        echo("  ".join(words))
    if not rows and not errors:
        click.echo("sweep: no pool of this sweep runs from here", err=True)
    return _exit_status(errors)


@pool.command()
@click.argument("workers", type=click.IntRange(min=1))
@_runner
@click.option("--yes", is_flag=True, help="Do not ask what `sweep launch` would ask about dollars.")
@click.option("--dry-run", is_flag=True, help="Say what the pool would cost, and change nothing.")
@sweep_option
def scale(workers: int, runner: str | None, yes: bool, dry_run: bool, sweep: Sweep) -> None:
    """Change the number of workers to WORKERS; surplus workers hand their trials back."""
    from runners.pools import engines, launched, pool_file

    with translated_errors():
        experiment = sweep.open()
        pools = pools_launched_here(experiment, runner)
        if len(pools) != 1:
            remedy = (
                f"say which of {', '.join(name for name, _ in pools)}" if pools else "start one: sweep launch"
            )
            raise InputError(f"RUNNER: {len(pools)} pools of this sweep were launched from here; {remedy}")
        ((engine, pool_),) = pools
        if launched.read(pool_.folder) is None and not engines.runner(engine).keeps:
            raise InputError(
                f"RUNNER: no pool of {engine} was launched from here, so its accelerator and options are not "
                "known; scale it where it was launched"
            )
        if dry_run:
            if engine == "local" and pool_file.read(pool_.folder) is None:
                raise InputError("no pool of this sweep runs on this machine; start one: sweep launch local")
            cost = cost_of(pool_, workers, experiment) or "what a worker costs is not known"
            notify(f"the pool of {engine} would have {counted(workers, 'worker')}: {cost}")
            return
        engines.require(engine)
        guard(pool_, workers, experiment, yes=yes)
        engines.runner(engine).scale(pool_, workers, notify)
    what = f"scale the pool of {engine} to {counted(workers, 'worker')}"
    actions.note(experiment.store, what, user_name())


@pool.command()
@_runner
@click.option("--worker", metavar="WORKER", help="As `sweep pool status` calls it. Default: every one.")
@count_option("--lines", default=20, metavar="N", help="The last N of each.")
@sweep_option
def logs(runner: str | None, worker: str | None, lines: int, sweep: Sweep) -> None:
    """Show the last lines of the workers' logs."""
    from runners.pools import engines

    with translated_errors():
        for engine, pool_ in pools_launched_here(sweep.open(), runner):
            engines.require(engine)
            found = [*engines.runner(engine).logs(pool_, worker, lines)]
            if found:
                echo("\n".join(found))  # at once: no line of a private key is recognised by itself


@click.command()
@_runner
@number_option(
    "--grace",
    metavar="S",
    help="Seconds until workers that still run are killed. Default: that of `sweep launch`, and at least 60.",
)
@click.option(
    "--option",
    multiple=True,
    metavar="KEY=VALUE",
    help="As of `sweep launch`, for a pool that was launched elsewhere.",
)
@sweep_option
def down(runner: str | None, grace: float | None, option: tuple[str, ...], sweep: Sweep) -> int:
    """Stop the pools of workers that `sweep launch` started for a sweep from here.

    Their trials are handed back, and the next worker resumes them from their checkpoints. With RUNNER also a
    pool that was launched elsewhere, if the engine finds its workers.
    """
    from runners.pools import engines, launched

    ended = 0
    errors: list[SweepError] = []
    with translated_errors():
        experiment = sweep.open()
        pools = pools_launched_here(experiment, runner)
    for engine, pool_ in pools:
        with _collect_error(errors):
            engines.require(engine)
            options = {**pool_.options, **option_values(option)}
            grace_s = max(_LEAST_GRACE_S, pool_.grace_s) if grace is None else grace
            here = engines.runner(engine).down(replace(pool_, grace_s=grace_s, options=options), notify)
            launched.remove(pool_.folder)
            if here:
                actions.note(experiment.store, f"bring down the pool of {engine}", user_name())
            ended += here
    if not ended and not errors:
        notify(
            "no pool of this sweep runs on this machine"
            if runner in (None, "local")
            else "no worker was found"
        )
    return _exit_status(errors)


@contextmanager
def _collect_error(errors: list[SweepError]) -> Iterator[None]:
    """Append an error of one engine to `errors`, so that the others are still asked."""
    try:
        with translated_errors():
            yield
    except SweepError as error:
        errors.append(error)


def _exit_status(errors: list[SweepError]) -> int:
    """Raise the last error after printing the others, or return the exit status if there are none."""
    for error in errors[:-1]:
        notify(f"error: {error}")
    if errors:
        raise errors[-1]
    return EXIT_DONE


def pools_launched_here(experiment: Experiment, runner: str | None) -> list[tuple[str, Pool]]:
    """Return the pools that were launched from here, and the one of `runner` even if it is unknown."""
    from runners.pools import engines, launched, pool_file
    from runners.pools.pool import Pool, worker_command

    found = []
    for engine in [runner] if runner else engines.ENGINES:
        place = place_of(experiment)
        files = folder(place, engine)
        known = launched.read_either(files, former_folder(place, engine), place.url)
        if known is not None:
            found.append((engine, known.pool))
        elif runner or (engine == "local" and pool_file.read(files)):
            url = storage_url(place, engine)
            command = worker_command(url, python=engines.runner(engine).python or sys.executable)
            bare = Pool(name=experiment.space.name, storage=url, folder=files, workers=1, command=command)
            found.append((engine, bare))
    return found
