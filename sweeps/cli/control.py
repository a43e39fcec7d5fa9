"""Commands that control a running sweep: `sweep pause`, `resume`, `stop`, `retry`, `abandon`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import click

from sweeps.cli.options import Sweep, sweep_option
from sweeps.cli.output import echo
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.operations.control import ByPeople, apply_to_all, set_state, user_name
from sweeps.text.counted import counted
from sweeps.trials import control, lifecycle, storable
from sweeps.trials.record import Failure


@click.command()
@sweep_option
def pause(sweep: Sweep) -> None:
    """Hand out no trials for now: workers finish what they have and wait for `sweep resume`."""
    _set_state(sweep, "paused")


@click.command()
@sweep_option
def resume(sweep: Sweep) -> None:
    """Hand out trials again, after `sweep pause` or `sweep stop`, or once the sweep has paused itself.

    A sweep in the archive is taken out of it.
    """
    _set_state(sweep, "running")


@click.command()
@sweep_option
def stop(sweep: Sweep) -> None:
    """Hand out no more trials: workers finish the trial they have and leave."""
    _set_state(sweep, "stopped")


@click.command()
@sweep_option
@click.option("--failed", is_flag=True, help="All trials that failed, instead of INDEX.")
@click.option(
    "--reason",
    type=click.Choice(get_args(Failure)),
    multiple=True,
    help="With --failed: only those that failed so. Repeat it for more.",
)
@click.argument("indices", metavar="[INDEX]...", nargs=-1, type=click.IntRange(min=0))
def retry(sweep: Sweep, indices: tuple[int, ...], failed: bool, reason: tuple[str, ...]) -> None:
    """Put trials INDEX, which failed, were stopped early or abandoned, back for another try."""
    if failed == bool(indices):
        raise InputError("say which trials: one INDEX or more, or --failed for all that failed")
    if reason and not failed:
        raise InputError("--reason goes with --failed; leave it out, or leave out the INDEX")
    experiment = sweep.open()
    if failed:
        records, _ = experiment.readable_trials()
        lost = [r for r in records if r.status == "failed" and (not reason or r.failure in reason)]
        indices = tuple(record.trial for record in lost)
        if not indices:
            kind = f" ({' or '.join(reason)})" if reason else ""
            echo(f"no trial has failed{kind}")
            return
    _apply(experiment, indices, lifecycle.Retry)


@click.command()
@sweep_option
@click.option("--reason", metavar="TEXT", help="Why, for the trial's record.")
@click.argument("indices", metavar="INDEX...", nargs=-1, required=True, type=click.IntRange(min=0))
def abandon(sweep: Sweep, indices: tuple[int, ...], reason: str | None) -> None:
    """Give up trials INDEX: their workers stop them, and their parameters are not proposed again."""
    _apply(sweep.open(), indices, lifecycle.Abandon, storable.line(reason or ""))


def _set_state(sweep: Sweep, state: control.State) -> None:
    store = sweep.open().store
    set_state(store, state, user_name())
    click.echo(f"{store.url} is {state}")


def _apply(experiment: Experiment, indices: Sequence[int], kind: ByPeople, reason: str = "") -> None:
    """Change all trials, and say so."""
    changed = apply_to_all(experiment, indices, kind, user_name(), reason)
    if len(changed) == 1:
        click.echo(f"trial {changed[0].trial} is {changed[0].status}")
    else:
        listed = ", ".join(str(record.trial) for record in changed)
        click.echo(f"{counted(len(changed), 'trial')} are {changed[-1].status}: {listed}")
