"""Names of the columns of the exported table of trials: one row per trial, one column per value.

`sweeps.export` writes the table, `analysis` reads it. Names of parameters and metrics are their programs' own
and may be those of other columns: `metric_column` and `parameter_column` name them in every table with both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

TRIAL_COLUMNS = ("trial", "status", "attempt", "generator", "worker", "seconds", "error", "failure")
"""Columns of every trial; then `param.<name>` per parameter, and one column per metric."""

NOMINAL, PAID, STAGES, POINTS = STAGE_COLUMNS = ("cost_nominal", "cost_paid", "stages", "trunk_points")
"""Columns of a sweep whose trials have stages: the cost of all of them as if the trial had computed each, of
what it computed, and the stages themselves (as JSON, where a cell holds text); likewise, only where there are
any, the points of trunks that the trial published."""

MACHINE_SECONDS, HOSTS, INFEASIBLE = SWEEP_COLUMNS = ("machine_seconds", "hosts", "infeasible")
"""Columns of some sweeps: seconds of all attempts of the trial, times its hosts, if that is not `seconds` of
each; these hosts, if any trial has several; and with outcome constraints, whether the trial has completed
outside of them."""

RESERVED = frozenset((*TRIAL_COLUMNS, *SWEEP_COLUMNS, *STAGE_COLUMNS))
"""Columns that a metric of the same name does not hide: it gets the prefix METRIC."""

FOR_PEOPLE = RESERVED | {"by", "confirmation", "paid", "reused", "branched"}
"""The same for tables that people see, where parameters, too, have a prefix only if another is called so."""

PARAMETER, METRIC = "param.", "metric."
SEM = "_sem"
"""Suffix of the column with a metric's standard errors."""
_ERROR = re.compile(rf"({SEM})+\Z")
_SEED = re.compile(r"(?i)(seed|random_?state)[_\d]*\Z")

STATES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Optuna": frozenset(("complete", "pruned", "fail", "running", "waiting")),
        "W&B": frozenset(
            ("finished", "failed", "crashed", "killed", "running", "pending", "preempting", "preempted")
        ),
    }
)
"""Words of a column `state` in the tables of other tools, in lower case."""
COMPLETED = frozenset(("complete", "finished"))

MOST_CELLS = 10**7
MOST_BYTES = 256 * 2**20
"""Limits of a table that is read: a Parquet file of 400 bytes may have 10^8 rows."""


def metric_column(metric: str, own: Collection[str] = RESERVED, *, prefixes: tuple[str, ...] = ()) -> str:
    """Return the column of a metric: its name, with METRIC before it where that is another column's.

    No two metrics have one column, and a standard error's is that of its metric and SEM. `metric_of` is the
    inverse.

    Args:
        own: columns of the table that are none of a metric.
        prefixes: of further such columns.
    """
    value = _ERROR.sub("", metric)
    is_taken = not value or value in own
    return METRIC + metric if is_taken or metric.startswith((PARAMETER, METRIC, *prefixes)) else metric


def is_seed(parameter: str) -> bool:
    """Return whether a parameter, or its column, is a seed by its name: no setting to be found.

    Such are `seed`, `data.seed`, `SEED`, `random_state` and `seed_2`, but not `seed_words`.
    """
    return _SEED.search(parameter) is not None


def metric_of(column: str) -> str:
    """Return the metric whose column this is, in a table where it is a metric's."""
    return column.removeprefix(METRIC)


def parameter_column(parameter: str, metrics: Collection[str] = (), own: Collection[str] = FOR_PEOPLE) -> str:
    """Return the column of a parameter for people: its name, or as in an export if another is called so.

    Args:
        metrics: columns of metrics.
        own: columns of the table that are none of a parameter or metric.
    """
    is_taken = not parameter or parameter in own or parameter in metrics
    return PARAMETER + parameter if is_taken or parameter.startswith((PARAMETER, METRIC)) else parameter
