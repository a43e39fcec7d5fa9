"""Commands `sweep init` and `sweep worker`: create a sweep, and run its trials."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from sweeps.cli.control import user_name
from sweeps.cli.extend import differences
from sweeps.cli.output import echo
from sweeps.cli.resolve import new_store, open_sweep, remember, storage_options
from sweeps.errors import EXIT_DONE, EXIT_FAILED, EXIT_PREEMPTED, EnvironmentFault, InputError
from sweeps.experiment import Experiment
from sweeps.space.definition import Fixed, Space
from sweeps.storage.urls import is_remote
from sweeps.text.counted import counted

REMOTE_EXPIRE_S = 150.0
"""Minimal lease in a bucket, in seconds: a request may be retried for over two minutes."""


@click.command()
@click.argument("space_file", metavar="SPACE.yaml", type=click.Path())
@click.option(
    "--storage", metavar="URL", help="The folder to make it in. Default: SWEEP_STORAGE, or ./sweep-store."
)
@click.option(
    "--skip-if-exists",
    is_flag=True,
    help="Go on with the sweep if it exists: for scripts and workers. Larger limits extend it.",
)
@click.option(
    "--from-wandb",
    metavar="FILE",
    type=click.Path(),
    help="Write SPACE.yaml from a sweep file of W&B, and stop.",
)
def init(space_file: str, storage: str | None, skip_if_exists: bool, from_wandb: str | None) -> None:
    """Validate SPACE.yaml, create the sweep and print its URL.

    The program is checked too: the trainer's config is composed with sampled values, so that a misspelt key
    fails here and not after the first trial was paid for.
    """
    from sweeps.space.space_file import load

    if from_wandb is not None:
        _translate(from_wandb, Path(space_file))
        return
    experiment = create_sweep(load(space_file), storage, skip_if_exists=skip_if_exists)
    click.echo(experiment.store.url)
    click.echo(f"next: sweep worker --storage {shlex.quote(experiment.store.url)}", err=True)


def _translate(wandb_file: str, space_file: Path) -> None:
    """Write the search space file that means the same as a sweep file of W&B. Raises InputError."""
    from sweeps.space.space_file import text_of
    from sweeps.space.wandb_sweep import translated

    found = translated(text_of(wandb_file), wandb_file)
    try:
        with space_file.open("x", encoding="utf-8") as stream:
            stream.write(found.text)
    except FileExistsError:
        raise InputError(f"{space_file}: there is a file already; name a new one") from None
    except OSError as error:
        raise InputError(f"{space_file}: cannot be written: {error.strerror}") from None
    for note in found.notes:
        click.echo(f"sweep: {note}", err=True)
    click.echo(f"next: read {space_file}, then sweep init {shlex.quote(str(space_file))}", err=True)


def create_sweep(space: Space, storage: str | None, *, skip_if_exists: bool) -> Experiment:
    """Check the space with Ax and the program, then create the sweep; nothing is written if a check fails.

    Args:
        space: the search space.
        storage: of `--storage`.
        skip_if_exists: return the existing sweep if it has the same space; larger limits extend it.
    """
    from sweeps.space.probes import probes
    from sweeps.trials.redaction import refuse_secrets
    from sweeps.worker import program

    refuse_secrets(space)
    store = new_store(storage, space.name)
    if is_remote(store.url) and space.lease.expire_s < REMOTE_EXPIRE_S:
        space = replace(space, lease=replace(space.lease, expire_s=REMOTE_EXPIRE_S))
        click.echo(
            f"sweep: lease.expire_s is {REMOTE_EXPIRE_S:g} in a bucket, the time a request may need", err=True
        )
    program.check(space, probes(space))
    if space.program.kind == "trainer":
        space = _with_trainer_stages(space)
    if space.search.method != "grid":
        from sweeps.search import optimizer  # a grid needs no Ax, whose import takes seconds

        _warn_of_no_surrogate(space, optimizer.require_searchable(space))
    _warn_of_budget(space)
    _print_sharing(space)
    experiment = Experiment.create(store, space, skip_if_exists=skip_if_exists)
    raise_limits(experiment, space)
    remember(store)
    return experiment


def raise_limits(experiment: Experiment, space: Space) -> None:
    """Extend a sweep that exists by the limits of this space that are larger, and say so on stderr."""
    before = experiment.amendments.refresh()
    if (amendment := experiment.raise_limits(space, by=user_name())) is not None:
        changes = ", ".join(differences(before, amendment))
        echo(f"sweep: {experiment.store.url}: extended: {changes}", err=True)


def _with_trainer_stages(space: Space) -> Space:
    from sweeps.space.probes import probes
    from sweeps.space.trainer_stages import trainer_stages
    from sweeps.space.trainer_trunks import with_trunks
    from sweeps.worker import program

    points = probes(replace(space, parameter_constraints=()))  # with them, not even one end might remain
    stages = trainer_stages(space, program.stage_costs(space, points))
    found = partial(program.found_trunks, space)
    return replace(space, stages=with_trunks(space, stages, points, found))


def _print_sharing(space: Space) -> None:
    """Say what trials share, or that hardly any do because each has a seed of its own."""
    from sweeps.space.stages import Stages

    stages = Stages(space)
    if not stages.shared:
        return
    seeds = any(
        parameter.name == "seed" and not isinstance(parameter, Fixed) for parameter in space.parameters
    )
    if seeds and stages.of("seed") == 0 and space.search.method != "grid":  # in a grid each seed repeats
        line = (
            "`seed` is searched, and trials with different seeds share no stage; take it out: "
            "`sweep confirm` repeats the best trials with fresh seeds"
        )
    else:
        lengths = " or ".join(stage.name for stage in space.stages if stage.trunk is not None)
        before = f", and those with other lengths of {lengths} what comes before the decay" if lengths else ""
        line = (
            f"trials that agree up to the end of {stages.names[0]} compute it once{before}; "
            "search: {reuse: none} switches that off"
        )
    click.echo(f"sweep: {line}", err=True)


def _warn_of_no_surrogate(space: Space, first: int) -> None:
    """Warn if the surrogate gets no trial after the `first`; who wants that can write `method: random`."""
    cap = space.run_cap
    first += space.baseline is not None  # the baseline does not count as one of them
    if space.search.method == "bayes" and cap is not None and cap <= first:
        click.echo(
            f"sweep: warning: run_cap {cap} leaves no trial to the surrogate: Sobol has the first {first}; "
            "raise run_cap, lower search.sobol, or write method: random",
            err=True,
        )


def _warn_of_budget(space: Space) -> None:
    """Warn of a limit on what only the program can report, and may never do."""
    from sweeps.trials.budget import REPORTED, amounts
    from sweeps.worker.result import needed_metrics

    if space.program.kind == "trainer":
        return
    for name in (n for n in REPORTED if n in amounts(space.budget) and n not in needed_metrics(space)):
        click.echo(
            f"sweep: warning: budget.{name} counts the metric `{name}` of each trial: does the program "
            "report it? If not, this budget never ends the sweep; device_hours and wall_hours need no report",
            err=True,
        )


@click.command()
@storage_options
@click.option(
    "--max-trials", type=click.IntRange(min=1), metavar="N", help="Leave after N trials. Default: no limit."
)
@click.option(
    "--max-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="H",
    help="Claim nothing more after H hours; the trial in hand is finished. Default: no limit.",
)
@click.option("--exit-when-idle", is_flag=True, help="Leave as soon as there is nothing to claim.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How events are written to stderr, one a line.",
)
@click.pass_context
def worker(
    ctx: click.Context,
    storage: str | None,
    name: str | None,
    max_trials: int | None,
    max_hours: float | None,
    exit_when_idle: bool,
    log_format: str,
) -> None:
    """Claim trials, run them and report, until none is left or a limit is reached.

    Start as many as you like, on as many machines as see the storage. SIGTERM or Ctrl-C hands the current
    trial back (exit status 75), a second one exits immediately; the trial of a worker that dies is taken over
    when its lease expires. A worker that cannot start the program exits with 2: it is in the wrong folder.
    Trials of the trainer are forked from a process that has its imports done; STAGESWEEP_WARM_START=0 starts
    a new Python for each.
    """
    from sweeps.cli.progress import watcher
    from sweeps.worker.loop import Limits, work
    from sweeps.worker.signals import Stop

    experiment = open_sweep(storage, name)
    stop = Stop()
    stop.listen()
    limits = Limits(max_trials=max_trials, max_hours=max_hours, leave_when_idle=exit_when_idle)
    with watcher(experiment, log_format) as watching:
        try:
            tally = work(experiment, stop=stop, watcher=watching, limits=limits)
        except ImportError as error:  # of a package that is being updated, perhaps: worth another start
            raise EnvironmentFault(f"cannot import {error.name or 'a module'}: {error}") from error
    if tally.preempted_by:
        echo(f"sweep: {tally.preempted_by}: left after handing back what was in hand", err=True)
        ctx.exit(EXIT_PREEMPTED)
    ends = ", ".join(f"{count} {end}" for end, count in tally.ended.items()) or _why_none(experiment)
    click.echo(f"sweep: no more trials for this worker: {ends}", err=True)
    only_failures = bool(tally.ended) and set(tally.ended) == {"failed"}
    ctx.exit(EXIT_FAILED if only_failures else EXIT_DONE)


def _why_none(experiment: Experiment) -> str:
    """Return why a worker has found nothing to run."""
    cap = experiment.space.run_cap
    if cap is not None and experiment.is_full(experiment.recent_trials()):
        return f"all {counted(cap, 'trial')} of run_cap are there; `sweep extend --run-cap N` raises it"
    return "there was none to run"
