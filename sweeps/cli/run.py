"""Commands `sweep init` and `sweep worker`: create a sweep, and run its trials."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.options import Sweep, count_option, sweep_option
from sweeps.cli.output import echo, notify
from sweeps.errors import EXIT_DONE, EXIT_FAILED, EXIT_PREEMPTED, EnvironmentFault
from sweeps.operations.limits import reached_run_cap
from sweeps.text.counted import counted

if TYPE_CHECKING:
    from sweeps.experiment import Experiment
    from sweeps.worker.loop import Tally


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
    from sweeps.export import table
    from sweeps.operations.creation import create_sweep
    from sweeps.space.space_file import load, text_of
    from sweeps.space.wandb_sweep import translate

    if from_wandb is not None:
        found = translate(text_of(from_wandb), from_wandb)
        table.write_new_file(Path(space_file), found.text)
        for note in found.notes:
            click.echo(f"sweep: {note}", err=True)
        click.echo(f"next: read {space_file}, then sweep init {shlex.quote(space_file)}", err=True)
        return
    experiment = create_sweep(load(space_file), storage, skip_if_exists=skip_if_exists, on_notice=notify)
    click.echo(experiment.store.url)
    click.echo(f"next: sweep worker --storage {shlex.quote(experiment.store.url)}", err=True)


@click.command()
@sweep_option
@count_option("--max-trials", metavar="N", help="Leave after N trials. Default: no limit.")
@click.option(
    "--max-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="H",
    help="Claim nothing more after H hours; the current trial is finished. Default: no limit.",
)
@click.option("--exit-when-idle", is_flag=True, help="Leave as soon as there is nothing to claim.")
@count_option(
    "--nodes",
    metavar="N",
    help="Hosts that share each trial; start this on each. Default: program.trainer.nodes.",
)
@click.option(
    "--node-rank", type=int, metavar="R", help="Which of them this is, from 0. Default: by the environment."
)
@click.option(
    "--leader",
    metavar="HOST[:PORT]",
    help="Where the host of rank 0 listens, of all hosts. Default: by the environment.",
)
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
    sweep: Sweep,
    max_trials: int | None,
    max_hours: float | None,
    exit_when_idle: bool,
    nodes: int | None,
    node_rank: int | None,
    leader: str | None,
    log_format: str,
) -> None:
    """Claim trials, run them and report, until none is left or a limit is reached.

    Start as many as you like, on as many machines as see the storage. SIGTERM or Ctrl-C hands the current
    trial back (exit status 75), a second one exits immediately; the trial of a worker that dies is taken over
    when its lease expires. A worker that cannot start the program exits with 2: it is in the wrong folder.
    Trials of the trainer are forked from a process that has its imports done; STAGESWEEP_WARM_START=0 starts
    a new Python for each.

    With --nodes N each trial is shared by N hosts. That of rank 0 is the worker; the others wait for it, run
    their processes of its trials, and end as it ends. Slurm, SkyPilot and Kubernetes say which host this is,
    or MASTER_ADDR and NODE_RANK.
    """
    from sweeps.programs.signals import Stop
    from sweeps.worker.gang.joining import join_gang
    from sweeps.worker.gang.member import Member
    from sweeps.worker.loop import Limits, work
    from sweeps.worker.progress import watcher

    experiment = sweep.open()
    stop = Stop()
    stop.listen()
    experiment, gang = join_gang(experiment, nodes, node_rank, leader, stop)
    if isinstance(gang, Member):
        status = gang.follow()
        by = f"{stop.by}: this host has left" if stop.requested else "the leader has sent this host away"
        echo(f"sweep: {by}, with exit status {status}", err=True)
        ctx.exit(status)
    limits = Limits(max_trials=max_trials, max_hours=max_hours, leave_when_idle=exit_when_idle)
    with gang or nullcontext():
        with watcher(experiment, log_format) as watching:
            try:
                tally = work(experiment, stop=stop, watcher=watching, limits=limits, leader=gang)
            except ImportError as error:  # of a package that is being updated, perhaps: worth another start
                raise EnvironmentFault(f"cannot import {error.name or 'a module'}: {error}") from error
        status = _report(tally, experiment)
        if gang is not None:
            gang.leave_with(status)
    ctx.exit(status)


def _report(tally: Tally, experiment: Experiment) -> int:
    """Say why the worker leaves, and return its exit status."""
    from runners.workers.restarts import SUPERVISED

    if tally.preempted_by:
        echo(f"sweep: {tally.preemption}", err=True)
        return EXIT_PREEMPTED
    ends = ", ".join(f"{count} {end}" for end, count in tally.ended.items()) or "there was none to run"
    cap = None if tally.ended else reached_run_cap(experiment.space, experiment.recent_trials())
    if cap is not None:
        ends = f"all {counted(cap, 'trial')} of run_cap are there; `sweep extend --run-cap N` raises it"
    click.echo(f"sweep: no more trials for this worker: {ends}", err=True)
    only_failures = bool(tally.ended) and set(tally.ended) == {"failed"}
    # A supervisor would take 1 for a crash, and start a worker that has done its --max-trials again.
    return EXIT_FAILED if only_failures and SUPERVISED not in os.environ else EXIT_DONE
