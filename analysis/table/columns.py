"""Names of the columns of the exported table of trials: one row per trial, one column per value."""

from __future__ import annotations

import re
from collections.abc import Collection

TRIAL_COLUMNS = ("trial", "status", "attempt", "generator", "worker", "seconds", "error")
"""Columns of every trial; then `param.<name>` per parameter, and one column per metric."""

NOMINAL, PAID, STAGES, POINTS = STAGE_COLUMNS = ("cost_nominal", "cost_paid", "stages", "trunk_points")
"""Columns of a sweep whose trials have stages: the cost of all of them as if the trial had computed each, of
what it computed, and the stages themselves (as JSON, where a cell holds text); likewise, only where there are
any, the points of trunks that the trial published."""

RESERVED = frozenset((*TRIAL_COLUMNS, *STAGE_COLUMNS))

OWN_COLUMNS = frozenset(("trial", "status", "attempt", "generator"))
"""A table with all of these was exported by a sweep; another may happen to have a column `trial`."""

PARAMETER = "param."
METRIC = "metric."
"""Prefix of a metric whose own name is one of RESERVED, or begins like another column."""

SEED = "param.seed"
SEM = "_sem"
"""Suffix of the column with a metric's standard errors."""
_ERROR = re.compile(rf"({SEM})+\Z")

STEP_COLUMNS = (("stage1_9_steps", "stage2_steps"), ("param.stage1_9.max_steps", "param.stage2.max_steps"))
"""Pairs of columns that may hold the lengths of Stage 1.9 and Stage 2, in steps."""


def metric_column(metric: str) -> str:
    """Return the column of a metric: its name, with METRIC before it where that is another column's.

    It is the same in `sweeps.export.table`; a contract test compares them.
    """
    value = _ERROR.sub("", metric)
    is_taken = not value or value in RESERVED
    return METRIC + metric if is_taken or metric.startswith((PARAMETER, METRIC)) else metric


def apart(column: str, taken: Collection[str]) -> str:
    """Return the name of a metric's column in a further table, whose other columns are `taken`."""
    return METRIC + column if column in taken else column


def label(column: str, columns: Collection[str]) -> str:
    """Return a column's name for people: a parameter's without its prefix, unless another is called so.

    Args:
        column: of a table.
        columns: all of that table.
    """
    plain = column.removeprefix(PARAMETER)
    return column if plain in RESERVED or plain in columns or plain.startswith((PARAMETER, METRIC)) else plain
