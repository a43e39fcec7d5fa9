"""What compute may be measured in: the names people type, the columns they mean, and per how much of it
efficiency is given. `summary`, `budget` and the command line read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from analysis.errors import AnalysisError
from analysis.table import numbers

if TYPE_CHECKING:
    import pandas as pd

    from analysis.summaries.costs import Rate


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of compute.

    Args:
        columns: where it may stand in a table, the best first.
        per: efficiency is improvement per so much of it.
        unit: `per` in words.
    """

    columns: tuple[str, ...]
    per: float
    unit: str


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "effective_steps": Measure(columns=("effective_steps",), per=100.0, unit="100 effective steps"),
        "flops": Measure(columns=("train_flops",), per=1e15, unit="PFLOP"),
        # What trained is what counts; a trial's own time has preparation and evaluation in it.
        "seconds": Measure(columns=("train_seconds", "seconds"), per=3600.0, unit="device hour"),
        "usd": Measure(columns=("usd",), per=1.0, unit="US dollar"),
    }
)
OTHER = Measure(columns=(), per=100.0, unit="100 units")


def priced(table: pd.DataFrame, price: Rate) -> pd.DataFrame:
    """The table with a column `usd`: every trial's time at the price, whatever it reported itself.

    Raises:
        AnalysisError: the table has no column of seconds.
    """
    # What is paid is a trial's whole time, preparation and evaluation included.
    column = "seconds" if "seconds" in table.columns else column_of("seconds", table)
    return table.assign(usd=numbers(table, column) / 3600.0 * price.usd_per_hour)


def of_column(column: str) -> Measure:
    """The measure that stands in a column; per 100 of whatever it is where none is known."""
    return next((m for m in MEASURES.values() if column in m.columns), OTHER)


def column_of(name: str, table: pd.DataFrame) -> str:
    """The table's column of a measure.

    Raises:
        AnalysisError: no such measure, or the table has no values of it.
    """
    if name not in MEASURES:
        raise AnalysisError(f"compute {name!r} is unknown; the measures are {', '.join(MEASURES)}")
    for column in MEASURES[name].columns:
        if column in table.columns and table[column].notna().any():
            return column
    wanted = " or ".join(repr(column) for column in MEASURES[name].columns)
    hint = "; `--rates` and `--device` price them by their time" if name == "usd" else ""
    raise AnalysisError(f"the trials do not tell their {name}: there is nothing in column {wanted}{hint}")
