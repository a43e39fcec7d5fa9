"""Options --device, --spot and --rates: the price of the trials' time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from sweeps.cli.options import path_option
from sweeps.errors import InputError

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate

F = TypeVar("F", bound=Callable[..., Any])

rates_option = path_option("--rates", help="Prices: a YAML file like analysis/rates.yaml.")


def price_options(function: F) -> F:
    """Add the options to a command, which gets the price as `rate`; None: what the trials report counts."""

    @functools.wraps(function)
    def with_rate(*args: Any, device: str | None, spot: bool, rates: Path | None, **options: Any) -> Any:
        if device is None and (spot or rates is not None):
            raise InputError("--spot and --rates need --device NAME: which machine's price?")
        price = None if device is None else find_rate(device, spot, rates)
        return function(*args, rate=price, **options)

    spot_option = click.option("--spot", is_flag=True, help="At the spot price, not on demand.")
    device_option = click.option(
        "--device",
        metavar="NAME",
        help="Count the trials' time at this machine's price, such as 'RunPod A100', not what they report.",
    )
    return cast(F, device_option(spot_option(rates_option(with_rate))))


def find_rate(machine: str, spot: bool, rates: Path | None) -> Rate:
    """Return the price of a machine in this table of rates, or in our own. Raises `InputError`."""
    from analysis.errors import AnalysisError
    from analysis.summaries.costs import rate

    try:
        return rate(machine, spot=spot, file=rates)
    except AnalysisError as error:
        raise InputError(str(error)) from None
