"""The table of trials: read from a file or an export document, checked once, passed on as a `TrialsTable`."""

from analysis.table.columns import PARAMETER, SEED, SEM, STEP_COLUMNS, TRIAL_COLUMNS, metric_column
from analysis.table.files import from_document, read, text_of
from analysis.table.trials_table import TableLike, TrialsTable

__all__ = [
    "PARAMETER",
    "SEED",
    "SEM",
    "STEP_COLUMNS",
    "TRIAL_COLUMNS",
    "TableLike",
    "TrialsTable",
    "from_document",
    "metric_column",
    "read",
    "text_of",
]
