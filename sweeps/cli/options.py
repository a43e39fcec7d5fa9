"""Options --storage and --name, which nearly all commands have, and the records that a command shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sweeps.cli.output import notify
from sweeps.experiment import Experiment
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_trials

DAMAGED = "sweeps.damaged"
"""Note in the context of a command that it has left something out."""

F = TypeVar("F", bound=Callable[..., Any])


def storage_options(function: F) -> F:
    """Add the options --storage and --name to a command."""
    function = click.option(
        "--name",
        metavar="NAME",
        help="Which sweep under --storage. Default: SWEEP_NAME, or the last one made.",
    )(function)
    return click.option(
        "--storage",
        metavar="URL",
        help="A folder of sweeps, or one sweep's full URL. Default: SWEEP_STORAGE, or ./sweep-store.",
    )(function)


def readable(experiment: Experiment) -> list[Trial]:
    """Return the trials that can be read, without secrets.

    What cannot be read is said on stderr, and the command will exit with status 1.
    """
    records, damaged = experiment.readable_trials()
    for error in (*experiment.amendments.damaged, *damaged):
        notify(f"error: {error}; it is left out here")
        click.get_current_context().meta[DAMAGED] = True
    return redact_trials(records)
