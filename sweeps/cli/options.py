"""Options that many commands have, kinds of options, and the records that a command shows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from sweeps.cli.output import notify
from sweeps.errors import EXIT_DONE
from sweeps.experiment import Experiment
from sweeps.operations.opening import open_sweep
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_trials

DAMAGED = "sweeps.damaged"
"""Note in the context of a command that it has left something out."""

F = TypeVar("F", bound=Callable[..., Any])


def count_option(*names: str, least: int = 1, **settings: Any) -> Callable[[F], F]:
    """Return an option for a whole number from `least`; its default, if it has one, is shown."""
    kind = click.IntRange(min=least)
    return click.option(*names, type=kind, show_default="default" in settings, **settings)


class _FiniteRange(click.FloatRange):
    """Numbers of a range without NaN, which click takes as within any, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def number_option(*names: str, least: float = 0, **settings: Any) -> Callable[[F], F]:
    """Return an option for a number from `least`; its default, if it has one, is shown."""
    kind = _FiniteRange(min=least)
    return click.option(*names, type=kind, show_default="default" in settings, **settings)


def path_option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return an option for a path; its default, if it has one, is shown."""
    kind = click.Path(path_type=Path)
    return click.option(*names, type=kind, show_default="default" in settings, **settings)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Values of --storage and --name."""

    storage: str | None
    name: str | None

    def open(self, *, patience_s: float | None = None) -> Experiment:
        """Open the sweep that is meant; see `opening.open_sweep`."""
        return open_sweep(self.storage, self.name, patience_s=patience_s)


def sweep_option(function: F) -> F:
    """Add --storage and --name to a command, which gets them as one argument `sweep`."""

    @functools.wraps(function)
    def with_sweep(*args: Any, storage: str | None, name: str | None, **options: Any) -> Any:
        return function(*args, sweep=Sweep(storage=storage, name=name), **options)

    name_option = click.option(
        "--name",
        metavar="NAME",
        help="Which sweep under --storage. Default: SWEEP_NAME, or the last one made.",
    )
    storage_option = click.option(
        "--storage",
        metavar="URL",
        help="A folder of sweeps, or one sweep's full URL. Default: SWEEP_STORAGE, or ./sweep-store.",
    )
    return cast(F, storage_option(name_option(with_sweep)))


def readable(experiment: Experiment) -> list[Trial]:
    """Return the trials that can be read, without secrets.

    What cannot be read is said on stderr, and the command will exit with status 1, or 2 if a later version
    wrote it.
    """
    records, damaged = experiment.readable_trials()
    for error in (*experiment.amendments.damaged, *damaged):
        notify(f"error: {error}; it is left out here")
        meta = click.get_current_context().meta
        meta[DAMAGED] = max(meta.get(DAMAGED, EXIT_DONE), error.exit_status)
    return redact_trials(records)
