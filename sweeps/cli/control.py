"""Commands that control a running sweep: `sweep pause`, `resume`, `stop`, `retry`, `abandon`."""

from __future__ import annotations

import getpass
import platform

import click

from sweeps.cli.resolve import open_sweep, storage_options
from sweeps.errors import IllegalTransition, InputError
from sweeps.trials import control, lifecycle


@click.command()
@storage_options
def pause(storage: str | None, name: str | None) -> None:
    """Hand out no trials for now: workers finish what they have and wait for `sweep resume`."""
    _set_state(storage, name, "paused")


@click.command()
@storage_options
def resume(storage: str | None, name: str | None) -> None:
    """Hand out trials again, after `sweep pause` or `sweep stop`, or once the sweep has paused itself."""
    _set_state(storage, name, "running")


@click.command()
@storage_options
def stop(storage: str | None, name: str | None) -> None:
    """Let the sweep run dry: workers finish the trial they have and leave."""
    _set_state(storage, name, "stopped")


@click.command()
@storage_options
@click.argument("index", type=click.IntRange(min=0))
def retry(storage: str | None, name: str | None, index: int) -> None:
    """Put trial INDEX, which failed, was stopped early or abandoned, back for another try."""
    _apply(storage, name, index, lifecycle.Retry(by=_user()))


@click.command()
@storage_options
@click.argument("index", type=click.IntRange(min=0))
def abandon(storage: str | None, name: str | None, index: int) -> None:
    """Give up trial INDEX: its worker stops it, and its parameters are not proposed again."""
    _apply(storage, name, index, lifecycle.Abandon(by=_user()))


def _set_state(storage: str | None, name: str | None, state: control.State) -> None:
    store = open_sweep(storage, name).store
    control.write(store, state, _user())
    click.echo(f"{store.url} is {state}")


def _apply(storage: str | None, name: str | None, index: int, event: lifecycle.Event) -> None:
    experiment = open_sweep(storage, name)
    experiment.trial(index)
    try:
        changed = experiment.apply(index, event)
    except IllegalTransition as refused:
        raise InputError(f"trial {index} is {refused.status}: {refused.why}") from None
    click.echo(f"trial {index} is {changed.status}")


def _user() -> str:
    """Return the login name and the machine, for the record."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):
        login = "somebody"
    return f"{login}@{platform.node() or 'host'}"
