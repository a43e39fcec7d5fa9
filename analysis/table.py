"""The trials table as a DataFrame: from a file (CSV, Parquet, JSON) or from an export document.

`sweep pareto` and `report` start here. One row per trial: `trial`, `status`, `attempt`, `generator`,
`worker`, `seconds`, `error`, then `param.<name>` per parameter and one column per metric. Any other table may
be read too; it is told apart by its columns (`is_trials_table`).
"""

from __future__ import annotations

import csv
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types
from pydantic_core import from_json

from analysis.errors import AnalysisError, MissingColumn, NotNumeric, TableError
from analysis.statistics.efficiency import effective_steps

SCHEMA = 1
SCHEMA_KEY = b"stagesweep.schema"
"""Of a Parquet file's metadata. A CSV file has no place for it: its header is its schema."""

TRIAL_COLUMNS = ("trial", "status", "attempt", "generator", "worker", "seconds", "error")
PARAMETER = "param."
METRIC = "metric."
"""Prefix of a metric whose own name is taken by one of TRIAL_COLUMNS."""

SEED = "param.seed"
SEM = "_sem"
"""Ending of the column with a metric's standard errors."""

# What tells our own table from a foreign one that happens to have a column `trial`.
OWN_COLUMNS = frozenset(("trial", "status", "attempt", "generator"))

# As `sweeps.text.csv_format` has them; a contract test keeps them so.
_FORMULA = re.compile(r"'*\s*[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(
    r"'*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)

STEP_COLUMNS = (("stage1_9_steps", "stage2_steps"), ("param.stage1_9.max_steps", "param.stage2.max_steps"))


def read(path: str | Path) -> pd.DataFrame:
    """The table in a file, by its suffix: `.csv`, `.parquet` or `.json`.

    Raises:
        TableError: the file is missing, empty, damaged, of another kind or of a newer schema.
    """
    source, file = str(path), Path(path)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise TableError(source, f"cannot tell the format; the name must end in {' or '.join(READERS)}")
    try:
        if not file.is_file():
            raise TableError(source, _what_is_there(file))
        if file.stat().st_size == 0:
            raise TableError(source, "the file is empty; a table has at least a header")
        return reader(file, source)
    except OSError as error:
        raise TableError(source, f"cannot be read: {error.strerror or error}") from error


def _what_is_there(file: Path) -> str:
    if file.is_dir():
        return "this is a folder, not a table"
    if os.path.lexists(file):
        return "not a regular file; save the table to one first"  # a pipe would be waited for
    return "no such file"


def _read_csv(file: Path, source: str) -> pd.DataFrame:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            header = [text_of(name) for name in next(csv.reader(lines), [])]
        _refuse_repeated(header, source)
        with warnings.catch_warnings():
            # pandas only warns when rows are longer than the header, and drops what is too much.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(file, encoding="utf-8-sig", index_col=False, low_memory=False)
    except pd.errors.EmptyDataError:
        raise TableError(source, "the file has no header line") from None
    except pd.errors.ParserWarning:
        raise TableError(source, "not a CSV table: rows have more fields than the header") from None
    except (pd.errors.ParserError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(source, f"not a CSV table in UTF-8: {_one_line(error)}") from error
    for name, values in table.items():
        if types.is_object_dtype(values) or types.is_string_dtype(values):
            table[name] = values.map(text_of, na_action="ignore")
    return table.rename(columns=lambda name: text_of(str(name)))


def text_of(cell: object) -> Any:
    """Return what a cell of a CSV file stands for: texts like formulas have a quote before them there.

    `sweep export` writes it, because a spreadsheet would run them otherwise.
    """
    if not isinstance(cell, str) or not cell.startswith("'"):
        return cell
    text = cell[1:]
    return text if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else cell


def _read_parquet(file: Path, source: str) -> pd.DataFrame:
    import pyarrow  # costs a quarter of a second that the other formats need not pay
    from pyarrow import parquet

    try:
        told = (parquet.read_schema(file).metadata or {}).get(SCHEMA_KEY)
        if told is not None:  # a table of our own; any other has none
            _check_schema(int(told) if told.isdigit() else told.decode(errors="replace"), source)
        table = pd.read_parquet(file, engine="pyarrow")
    except (pyarrow.ArrowException, ValueError) as error:
        raise TableError(source, f"not a Parquet table: {_one_line(error)}") from error
    _refuse_repeated([str(name) for name in table.columns], source)
    return table.reset_index(drop=True)


def _read_json(file: Path, source: str) -> pd.DataFrame:
    try:
        document = from_json(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise TableError(source, f"not JSON: {_one_line(error)}") from error
    if isinstance(document, list):
        return _from_rows(document, source)
    return from_document(document, source=source)


READERS: Mapping[str, Callable[[Path, str], pd.DataFrame]] = MappingProxyType(
    {".csv": _read_csv, ".parquet": _read_parquet, ".json": _read_json}
)


def from_document(document: object, *, source: str = "document") -> pd.DataFrame:
    """The table of an export document: `{"schema": 1, …, "trials": [{"trial", "parameters", "metrics", …}]}`.

    Args:
        source: what messages call the document.

    Raises:
        TableError: it is no such document, or one of a newer schema.
    """
    if not isinstance(document, Mapping) or "trials" not in document:
        raise TableError(source, "not a sweep's export: a JSON object with a list `trials` is expected")
    _check_schema(document.get("schema"), source)
    trials = document["trials"]
    if not isinstance(trials, list):
        raise TableError(source, "`trials` is not a list")
    for position, trial in enumerate(trials):
        if isinstance(trial, Mapping) and (lacking := OWN_COLUMNS - set(trial)):
            raise TableError(source, f"trials[{position}] has no {', '.join(sorted(lacking))}")
    return _from_rows(trials, source)


def _check_schema(schema: object, source: str) -> None:
    if isinstance(schema, int) and schema > SCHEMA:
        raise TableError(
            source, f"written by a newer stagesweep (schema {schema}; this one reads {SCHEMA}): upgrade it"
        )
    if schema != SCHEMA or isinstance(schema, bool):
        raise TableError(source, f"schema is {schema!r}, not {SCHEMA}; export the sweep again")


def _from_rows(trials: list[Any], source: str) -> pd.DataFrame:
    rows = []
    for position, trial in enumerate(trials):
        if not isinstance(trial, Mapping):
            raise TableError(source, f"trials[{position}] is not an object")
        if not all(isinstance(trial.get(part, {}), Mapping) for part in ("parameters", "metrics")):
            raise TableError(source, f"trials[{position}]: parameters and metrics must be objects")
        rows.append(_flat(trial))
    own = not trials or all(set(trial) >= OWN_COLUMNS for trial in trials)
    leading = TRIAL_COLUMNS if own else ()
    names = dict.fromkeys(name for row in rows for name in row)
    # Parameters before metrics, as in the CSV export, whichever trial named them first.
    ordered = [
        *leading,
        *sorted((n for n in names if n not in leading), key=lambda n: not n.startswith(PARAMETER)),
    ]
    return pd.DataFrame(rows, columns=pd.Index(ordered))


def _flat(trial: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: value for name, value in trial.items() if name not in ("parameters", "metrics")}
    row |= {PARAMETER + name: value for name, value in trial.get("parameters", {}).items()}
    for name, value in trial.get("metrics", {}).items():
        row[metric_column(name)] = value
    return row


def metric_column(metric: str) -> str:
    """The column of a metric: its name, unless a column of every trial is already called that."""
    return METRIC + metric if metric in TRIAL_COLUMNS else metric


def is_trials_table(table: pd.DataFrame) -> bool:
    """Whether this is a sweep's own table, so that `trial` and `status` mean what they say."""
    return set(table.columns) >= OWN_COLUMNS


def finished(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """[N] which rows count: of a sweep's own table the completed trials, of any other all."""
    if is_trials_table(table):
        return (table["status"] == "completed").to_numpy(dtype=np.bool_)
    return np.ones(len(table), dtype=np.bool_)


def trial_indices(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    """What names each row: the trial's index, or in a foreign table the zero-based row number.

    Raises:
        AnalysisError: the column `trial` of a sweep's own table does not hold indices, each once.
    """
    if not is_trials_table(table):
        return np.arange(len(table), dtype=np.int64)
    values = numbers(table, "trial")
    wrong = ~(values >= 0) | (values % 1 != 0) | values.duplicated()
    for row in np.flatnonzero(wrong):
        told = table["trial"].iloc[row]
        raise AnalysisError(f"column 'trial': row {row} holds {told!r}; each trial's index stands there once")
    return values.to_numpy("int64")


def with_effective_steps(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `effective_steps`, worked out from the two stages' steps where it has none."""
    if "effective_steps" in table.columns:
        return table
    for stage1_9, stage2 in STEP_COLUMNS:
        if stage1_9 in table.columns and stage2 in table.columns:
            return table.assign(
                effective_steps=effective_steps(numbers(table, stage1_9), numbers(table, stage2))
            )
    return table


def numbers(table: pd.DataFrame, column: str) -> pd.Series[Any]:
    """A column as int64 or float64, NaN where it is missing.

    Raises:
        MissingColumn: there is none of that name.
        NotNumeric: a value is neither a number nor missing.
    """
    if column not in table.columns:
        raise MissingColumn(column, [str(name) for name in table.columns])
    values = table[column]
    if types.is_numeric_dtype(values) and not types.is_bool_dtype(values):
        plain = isinstance(values.dtype, np.dtype) and values.dtype.kind in "if"
        return values if plain else _floats(values.to_numpy("float64", na_value=np.nan), values)
    converted = []
    for row, value in enumerate(values):
        try:
            converted.append(_number(value))
        except (TypeError, ValueError, OverflowError):
            raise NotNumeric(column, row, value) from None
    return _floats(converted, values)


def _floats(numbers: npt.ArrayLike, like: pd.Series[Any]) -> pd.Series[Any]:
    return pd.Series(np.asarray(numbers, dtype=np.float64), index=like.index, name=like.name)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError("a truth value is no number here")
    if isinstance(value, Real | Decimal | str):
        return float(value)
    if value is None or value is pd.NA or value is pd.NaT:
        return math.nan
    raise TypeError(type(value).__name__)


def _refuse_repeated(names: Sequence[str], source: str) -> None:
    for name, times in Counter(names).items():
        if times > 1 and name:
            raise TableError(source, f"the column {name!r} is there {times} times; give each its own name")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
