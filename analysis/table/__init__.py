"""The table of trials: read from a file or an export document, checked once, passed on as a `TrialsTable`."""

from analysis.table.files import SEED, STEP_COLUMNS, apart, from_document, label, read
from analysis.table.trials_table import (
    CONFIRM,
    Repeats,
    Spread,
    TableLike,
    TrialsTable,
    configuration_keys,
    is_confirming,
    is_finite,
    seed_columns,
)
from sweeps.text.columns import (
    NOMINAL,
    PAID,
    PARAMETER,
    POINTS,
    RESERVED,
    SEM,
    STAGE_COLUMNS,
    STAGES,
    TRIAL_COLUMNS,
    metric_column,
)

__all__ = [
    "CONFIRM",
    "NOMINAL",
    "PAID",
    "PARAMETER",
    "POINTS",
    "RESERVED",
    "SEED",
    "SEM",
    "STAGES",
    "STAGE_COLUMNS",
    "STEP_COLUMNS",
    "TRIAL_COLUMNS",
    "Repeats",
    "Spread",
    "TableLike",
    "TrialsTable",
    "apart",
    "configuration_keys",
    "from_document",
    "is_confirming",
    "is_finite",
    "label",
    "metric_column",
    "read",
    "seed_columns",
]
