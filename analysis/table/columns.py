"""Names of the columns of the exported table of trials: one row per trial, one column per value."""

from __future__ import annotations

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
"""Prefix of a metric whose own name is one of RESERVED."""

SEED = "param.seed"
SEM = "_sem"
"""Suffix of the column with a metric's standard errors."""

STEP_COLUMNS = (("stage1_9_steps", "stage2_steps"), ("param.stage1_9.max_steps", "param.stage2.max_steps"))
"""Pairs of columns that may hold the lengths of Stage 1.9 and Stage 2, in steps."""


def metric_column(metric: str) -> str:
    """Return the column of a metric: its name, unless a column of trials is already called that."""
    return METRIC + metric if metric in RESERVED else metric
