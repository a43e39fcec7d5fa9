"""The options --device, --spot and --rates: at which price the trials' time counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sweeps.errors import InputError

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate

F = TypeVar("F", bound=Callable[..., Any])


def price_options(function: F) -> F:
    """The three options, as every command that tells dollars has them."""
    rates = click.option(
        "--rates", type=click.Path(path_type=Path), help="Prices: a YAML file like analysis/rates.yaml."
    )
    spot = click.option("--spot", is_flag=True, help="At the spot price, not on demand.")
    device = click.option(
        "--device",
        metavar="NAME",
        help="Count the trials' time at this machine's price, such as 'RunPod A100', not what they report.",
    )
    return device(spot(rates(function)))


def price(device: str | None, *, spot: bool, rates: Path | None) -> Rate | None:
    """What the options mean; None where the trials' own dollars count. Raises `InputError`."""
    from analysis.errors import AnalysisError
    from analysis.summaries.costs import rate

    if device is None:
        if spot or rates is not None:
            raise InputError("--spot and --rates need --device NAME: which machine's price?")
        return None
    try:
        return rate(device, spot=spot, file=rates)
    except AnalysisError as error:
        raise InputError(str(error)) from None
