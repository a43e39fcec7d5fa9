"""Options --device, --spot and --rates: the price of the trials' time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from sweeps.errors import InputError

if TYPE_CHECKING:
    from analysis.summaries.costs import Rate

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Values of the three options."""

    device: str | None
    spot: bool
    rates: Path | None

    def rate(self) -> Rate | None:
        """Return the price of the device; None if the trials' own dollars count. Raises `InputError`."""
        from analysis.errors import AnalysisError
        from analysis.summaries.costs import rate

        if self.device is None:
            if self.spot or self.rates is not None:
                raise InputError("--spot and --rates need --device NAME: which machine's price?")
            return None
        try:
            return rate(self.device, spot=self.spot, file=self.rates)
        except AnalysisError as error:
            raise InputError(str(error)) from None


def price_options(function: F) -> F:
    """Add the three options to a command, which gets them as one argument `prices`."""

    @functools.wraps(function)
    def with_prices(*args: Any, device: str | None, spot: bool, rates: Path | None, **options: Any) -> Any:
        return function(*args, prices=Prices(device=device, spot=spot, rates=rates), **options)

    rates_option = click.option(
        "--rates", type=click.Path(path_type=Path), help="Prices: a YAML file like analysis/rates.yaml."
    )
    spot_option = click.option("--spot", is_flag=True, help="At the spot price, not on demand.")
    device_option = click.option(
        "--device",
        metavar="NAME",
        help="Count the trials' time at this machine's price, such as 'RunPod A100', not what they report.",
    )
    return cast(F, device_option(spot_option(rates_option(with_prices))))
