"""The table of trials: read from a file or an export document, checked once, passed on as a `TrialsTable`."""

from analysis.table.columns import (
    NOMINAL,
    PAID,
    PARAMETER,
    POINTS,
    RESERVED,
    SEED,
    SEM,
    STAGE_COLUMNS,
    STAGES,
    STEP_COLUMNS,
    TRIAL_COLUMNS,
    apart,
    label,
    metric_column,
)
from analysis.table.configurations import (
    CONFIRM,
    Repeats,
    Spread,
    configuration_keys,
    is_confirming,
    seed_columns,
)
from analysis.table.files import from_document, read, text_of
from analysis.table.trials_table import TableLike, TrialsTable, is_finite

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
    "text_of",
]
