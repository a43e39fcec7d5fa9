"""`sweep pool status|scale|logs` and `sweep down`: the pools that were launched for a sweep from here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from sweeps.cli.cost_guard import guard
from sweeps.cli.launch import RunnerName, say, told_as_ours
from sweeps.cli.output import echo, print_json
from sweeps.cli.pool_options import folder, option_values, storage_url
from sweeps.cli.resolve import open_sweep, storage_options
from sweeps.errors import EXIT_DONE, InputError, SweepError
from sweeps.experiment import Experiment

if TYPE_CHECKING:
    from runners.pools.pool import Pool

_runner = click.argument("runner", type=RunnerName(), required=False)


@click.group()
def pool() -> None:
    """Look after the pools of workers that `sweep launch` started for a sweep.

    Without RUNNER, all of them that were launched from here.
    """


@pool.command()
@_runner
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)
@storage_options
def status(runner: str | None, style: str, storage: str | None, name: str | None) -> int:
    """Where the workers are, as their engine sees it."""
    from runners.pools import engines

    rows: list[dict[str, str]] = []
    silent: list[SweepError] = []
    with told_as_ours():
        pools = _pools(open_sweep(storage, name), runner)
    for engine, described in pools:
        with _told_later(silent):
            engines.require(engine)
            rows += [
                {"runner": engine, **worker.row()} for worker in engines.runner(engine).status(described)
            ]
    if style == "json":
        print_json(rows)
        return _told(silent)
    for row in rows:
        words = (row[key] for key in ("runner", "worker", "state", "where", "told") if row[key])
        echo("  ".join(words))
    if not rows and not silent:
        click.echo("sweep: no pool of this sweep runs from here", err=True)
    return _told(silent)


@pool.command()
@click.argument("workers", type=click.IntRange(min=1))
@_runner
@click.option("--yes", is_flag=True, help="Do not ask what `sweep launch` would ask about dollars.")
@storage_options
def scale(workers: int, runner: str | None, yes: bool, storage: str | None, name: str | None) -> None:
    """Have WORKERS workers from now on; those too many hand their trials back."""
    from runners.pools import engines

    with told_as_ours():
        experiment = open_sweep(storage, name)
        pools = _pools(experiment, runner)
        if len(pools) != 1:
            told = (
                f"say which of {', '.join(name for name, _ in pools)}" if pools else "start one: sweep launch"
            )
            raise InputError(f"RUNNER: {len(pools)} pools of this sweep were launched from here; {told}")
        ((engine, described),) = pools
        engines.require(engine)
        guard(described, workers, experiment, yes=yes)
        engines.runner(engine).scale(described, workers, say)


@pool.command()
@_runner
@click.option("--worker", metavar="WORKER", help="As `sweep pool status` calls it. Default: every one.")
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="The last N of each.",
)
@storage_options
def logs(runner: str | None, worker: str | None, lines: int, storage: str | None, name: str | None) -> None:
    """What the workers wrote last."""
    from runners.pools import engines

    with told_as_ours():
        for engine, described in _pools(open_sweep(storage, name), runner):
            engines.require(engine)
            for line in engines.runner(engine).logs(described, worker, lines):
                echo(line)


@click.command()
@_runner
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds until those are killed that did not listen.",
)
@click.option(
    "--option",
    multiple=True,
    metavar="KEY=VALUE",
    help="As of `sweep launch`, for a pool that was launched elsewhere.",
)
@storage_options
def down(
    runner: str | None, grace: float, option: tuple[str, ...], storage: str | None, name: str | None
) -> int:
    """End the pools of workers that `sweep launch` started for a sweep from here.

    They hand their trials back, and go on from their checkpoints wherever the next worker is. With RUNNER
    also a pool that was launched elsewhere, if the engine finds its workers.
    """
    from runners.pools import engines, launched

    ended = 0
    silent: list[SweepError] = []
    with told_as_ours():
        pools = _pools(open_sweep(storage, name), runner)
    for engine, described in pools:
        with _told_later(silent):
            engines.require(engine)
            options = {**described.options, **option_values(option)}
            ended += engines.runner(engine).down(replace(described, grace_s=grace, options=options), say)
            launched.remove(described.folder)
    if not ended and not silent:
        say(
            "no pool of this sweep runs on this machine"
            if runner in (None, "local")
            else "no worker was found"
        )
    return _told(silent)


@contextmanager
def _told_later(silent: list[SweepError]) -> Iterator[None]:
    """An engine that does not answer keeps nobody from the others."""
    try:
        with told_as_ours():
            yield
    except SweepError as error:
        silent.append(error)


def _told(silent: list[SweepError]) -> int:
    """The command's exit status; the last error is raised, the others are told before."""
    for error in silent[:-1]:
        say(f"error: {error}")
    if silent:
        raise silent[-1]
    return EXIT_DONE


def _pools(experiment: Experiment, runner: str | None) -> list[tuple[str, Pool]]:
    """The pools that were launched from here; the one of `runner` also if it is not known of."""
    from runners.pools import launched, pool_file
    from runners.pools.engines import ENGINES
    from runners.pools.pool import Pool, worker_command

    found = []
    for engine in [runner] if runner else ENGINES:
        place = folder(experiment, engine)
        known = launched.read(place)
        if known is not None:
            found.append((engine, known.pool))
        elif runner or (engine == "local" and pool_file.read(place)):
            url = storage_url(experiment, engine)
            bare = Pool(
                name=experiment.space.name, storage=url, folder=place, workers=1, command=worker_command(url)
            )
            found.append((engine, bare))
    return found
