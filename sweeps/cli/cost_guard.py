"""What a pool costs before it is started: told, and asked about above a limit. For `launch` and `pool scale`.

The pool ends by itself when the sweep is done or its budget is spent, because its workers do.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.output import echo
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.text.counted import counted

if TYPE_CHECKING:
    from runners.pools.pool import Pool

ASK_ABOVE = 10.0
"""US dollars per hour that a pool may cost without a question, if no --max-dollars-per-hour is given."""


def priced(pool: Pool, price: str | None, rates: Path | None) -> Pool:
    """The pool with what a worker costs, as far as the table of rates knows it.

    Args:
        price: the name of a machine there; None: the accelerator is looked for.

    Raises:
        InputError: there is no such machine, several, or it has no such price.
    """
    from analysis.errors import AnalysisError
    from analysis.summaries.costs import rate

    if price is None and rates is not None:
        raise InputError("--rates needs --price NAME: which machine's?")
    try:
        found = (
            rate(price or pool.accelerator, spot=pool.spot, file=rates) if price or pool.accelerator else None
        )
    except AnalysisError as error:
        if price is not None:
            raise InputError(f"--price: {error}") from None
        found = None
    if found is None:
        return pool
    return replace(pool, dollars_per_hour=found.usd_per_hour * pool.accelerator_count, priced_as=str(found))


def guard(pool: Pool, workers: int, experiment: Experiment, *, yes: bool) -> None:
    """Say what so many workers cost, and ask where that is above the pool's limit.

    Raises:
        InputError: it is above the limit and nobody says yes, or a limit was given and no price is known.
    """
    limit = ASK_ABOVE if pool.max_dollars_per_hour is None else pool.max_dollars_per_hour
    if pool.dollars_per_hour is None:
        if pool.max_dollars_per_hour is not None:
            raise InputError(
                "--max-dollars-per-hour: what a worker costs is not known; name its machine with --price"
            )
        if pool.accelerator or pool.spot:
            _say("what a worker costs is not known; --price NAME takes it from the table of rates")
        return
    total = pool.dollars_per_hour * workers
    left = _left(pool, workers, experiment)
    _say(f"${total:.2f} an hour for {counted(workers, 'worker')} ({_each(pool)}{pool.priced_as}); {left}")
    if total <= limit or yes:
        return
    told = f"${total:.2f} an hour is above ${limit:.2f} (--max-dollars-per-hour)"
    if not sys.stdin.isatty():
        raise InputError(f"{told}, and there is no terminal to ask; say --yes, or take fewer workers")
    if not click.confirm(f"sweep: {told}; start them?", err=True):
        raise InputError(f"{told}; nothing was started")


def _each(pool: Pool) -> str:
    return f"{pool.accelerator_count} x " if pool.accelerator_count > 1 else ""


def _left(pool: Pool, workers: int, experiment: Experiment) -> str:
    """What is still to be paid for the sweep, by the mean time of its completed trials."""
    from analysis.summaries.costs import Rate, cost

    if experiment.space.run_cap is None:
        return "the sweep has no run_cap, so nobody knows how long it goes on"
    each = Rate(name="", usd_per_hour=pool.dollars_per_hour or 0.0, kind="", dated="")
    rows = [{**table.nested(record), "seconds": table.seconds(record)} for record in experiment.trials()]
    told = cost(rows, experiment.space.run_cap, each)
    if told.expected is None:
        return "what the sweep costs is known when its first trial is done"
    left = max(0.0, told.expected - told.so_far)
    hours = left / (each.usd_per_hour * workers) if left else 0.0
    return f"about ${left:.2f} and {hours:.1f} hours for what is left of the sweep"


def _say(line: str) -> None:
    echo(f"sweep: {line}", err=True)
