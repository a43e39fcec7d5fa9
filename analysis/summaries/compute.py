"""Measures of compute: the name of each, its columns, and the unit in which efficiency is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from analysis.errors import AnalysisError
from analysis.summaries.costs import Rate
from analysis.table import MACHINE_SECONDS, NOMINAL, TrialsTable


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of compute.

    Args:
        columns: columns that may hold it, the best first.
        per: efficiency is improvement per this much of it.
        unit: `per` in words.
    """

    columns: tuple[str, ...]
    per: float
    unit: str


OWN_SECONDS = (MACHINE_SECONDS, "seconds")
"""Columns of a trial's own time, the best first: of several attempts, `seconds` has the last one's alone."""

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "effective_steps": Measure(columns=("effective_steps",), per=100.0, unit="100 effective steps"),
        "flops": Measure(columns=("train_flops",), per=1e15, unit="PFLOP"),
        # Time spent training counts; a trial's own time includes preparation and evaluation.
        "seconds": Measure(columns=("train_seconds", *OWN_SECONDS), per=3600.0, unit="device hour"),
        "usd": Measure(columns=("usd",), per=1.0, unit="US dollar"),
    }
)
NOMINAL_COLUMNS = frozenset(
    column for m in MEASURES.values() for column in (*m.columns, NOMINAL) if column not in OWN_SECONDS
)
"""Columns in which a reused stage counts as if its trial had computed it; a trial's own time is real."""

OTHER = Measure(columns=(), per=100.0, unit="100 units")


def with_price(table: TrialsTable, price: Rate) -> TrialsTable:
    """Return the table with a column `usd`: every trial's time at the price, whatever it reported.

    It is the time of all its attempts, on all its hosts, as far as the table has it.
    The time of stages that were reused is added to the trial's own, as everywhere where trials are compared:
    a configuration costs the same whatever its trial found computed.

    Raises:
        AnalysisError: the table has no column of seconds.
    """
    # A trial's full time is paid for, with preparation and evaluation.
    column = next((name for name in OWN_SECONDS if name in table), None) or column_of("seconds", table)
    taken = table.numbers(column) + (table.reused_seconds if column in OWN_SECONDS else 0.0)
    return table.assign(usd=taken / 3600.0 * price.usd_per_hour)


def measure_of(column: str) -> Measure:
    """Return the measure that a column holds; `OTHER` if none is known."""
    return next((m for m in MEASURES.values() if column in m.columns), OTHER)


def is_compute(column: str) -> bool:
    """Return whether a column measures compute: milliseconds of latency or a second loss do not."""
    return column in NOMINAL_COLUMNS or measure_of(column) is not OTHER


def column_of(name: str, table: TrialsTable) -> str:
    """Return the table's column of a measure, by the measure's name.

    Raises:
        AnalysisError: there is no such measure, or the table has no values of it.
    """
    if name not in MEASURES:
        raise AnalysisError(f"compute {name!r} is unknown; the measures are {', '.join(MEASURES)}")
    for column in MEASURES[name].columns:
        if table.is_known(column):
            return column
    wanted = " or ".join(repr(column) for column in MEASURES[name].columns)
    hint = "; `--rates` and `--device` price them by their time" if name == "usd" else ""
    raise AnalysisError(f"the trials report no {name}: column {wanted} is missing or empty{hint}")
