"""Cost of a pool before it starts: printed, and to be confirmed above a limit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.output import notify
from sweeps.cli.prices import find_rate
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.operations.limits import most_trials
from sweeps.text.counted import counted

if TYPE_CHECKING:
    from runners.pools.pool import Pool

ASK_ABOVE = 10.0
"""US dollars per hour above which a pool must be confirmed, without --max-dollars-per-hour."""


def with_price(pool: Pool, price: str | None, rates: Path | None) -> Pool:
    """Return the pool with the price of a worker, if the table of rates has it.

    Args:
        price: name of a machine in the table; None: look the accelerator up. Of several that have it the
            cheapest counts, as the least that the pool costs.

    Raises:
        InputError: the machine is unknown or ambiguous, or has no such price.
    """
    if price is None and rates is not None:
        raise InputError("--rates needs --price NAME: which machine's?")
    if not (machine := price or pool.accelerator):
        return pool
    try:
        found = find_rate(machine, pool.spot, rates)
        is_least, source = False, str(found)
    except InputError as error:
        if price is not None:
            raise InputError(f"--price: {error}") from None
        from analysis.summaries.costs import cheapest_rate

        if (least := cheapest_rate(machine, spot=pool.spot)) is None:
            return pool
        is_least, found, source = True, least, f"the cheapest {machine}: {least}"
    count = pool.accelerator_count * pool.nodes
    return replace(
        pool, dollars_per_hour=found.usd_per_hour * count, priced_as=source, price_is_least=is_least
    )


def guard(pool: Pool, workers: int, experiment: Experiment, *, yes: bool) -> None:
    """Print the cost of so many workers, and ask for confirmation above the pool's limit.

    Raises:
        InputError: the cost is above the limit and not confirmed, or there is a limit but no known price.
    """
    limit = ASK_ABOVE if pool.max_dollars_per_hour is None else pool.max_dollars_per_hour
    if pool.dollars_per_hour is None:
        if pool.max_dollars_per_hour is not None:
            raise InputError(
                "--max-dollars-per-hour: what a worker costs is not known; name its machine with --price"
            )
        if pool.accelerator or pool.spot:
            notify("what a worker costs is not known; --price NAME takes it from the table of rates")
        return
    notify(cost_of(pool, workers, experiment))
    total = pool.dollars_per_hour * workers
    if total <= limit or yes:
        return
    excess = f"{_at_least(pool)}${total:.2f} an hour is above ${limit:.2f} (--max-dollars-per-hour)"
    if not sys.stdin.isatty():
        raise InputError(f"{excess}, and there is no terminal to ask; say --yes, or take fewer workers")
    if not click.confirm(f"sweep: {excess}; start them?", err=True):
        raise InputError(f"{excess}; nothing was started")


def cost_of(pool: Pool, workers: int, experiment: Experiment) -> str:
    """Return what so many workers cost an hour and until the sweep's end, in words; "" if it is not known."""
    from analysis.summaries.costs import Rate, cost

    if pool.dollars_per_hour is None:
        return ""
    total = pool.dollars_per_hour * workers
    count = pool.accelerator_count * pool.nodes
    each = f"{count} x " if count > 1 else ""
    hourly = (
        f"{_at_least(pool)}${total:.2f} an hour for {counted(workers, 'worker')} ({each}{pool.priced_as})"
    )
    space, records, standing = experiment.space, experiment.trials(), experiment.standing()
    most = most_trials(space, records, ended=standing is not None and standing.ended)
    if most is None:
        return f"{hourly}; the sweep has no run_cap, so its total cost is not known"
    # The rest of the sweep, by the mean time of its completed trials.
    rate = Rate(name="", usd_per_hour=pool.dollars_per_hour / pool.nodes, kind="", dated="")  # of a host
    estimate = cost(table.cost_rows(space, records), most, rate)
    if estimate.expected is None:
        return f"{hourly}; what the sweep costs is known when its first trial is done"
    left = max(0.0, estimate.expected - estimate.so_far)
    hours = left / total if left else 0.0
    return f"{hourly}; about ${left:.2f} and {hours:.1f} hours for what is left of the sweep"


def _at_least(pool: Pool) -> str:
    return "at least " if pool.price_is_least else ""
