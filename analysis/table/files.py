"""Readers of tables: from a file (CSV, Parquet, JSON) or an export document to a DataFrame.

Any table can be read; `TrialsTable.from_frame` checks it and knows a sweep's own by its columns.
"""

from __future__ import annotations

import csv
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from pandas.api import types
from pydantic_core import from_json

from analysis.errors import TableError
from sweeps.text.columns import (
    COMPLETED,
    HOSTS,
    INFEASIBLE,
    MACHINE_SECONDS,
    METRIC,
    MOST_BYTES,
    MOST_CELLS,
    PARAMETER,
    RESERVED,
    STAGE_COLUMNS,
    STATES,
    SWEEP_COLUMNS,
    TRIAL_COLUMNS,
    metric_column,
)
from sweeps.text.csv_format import decimal_points, separator, text_of
from sweeps.text.shorten import one_line

OWN_COLUMNS = frozenset(("trial", "status", "attempt", "generator"))
"""A table with all of these was exported by a sweep; another may happen to have a column `trial`."""

SEED = "param.seed"

STEP_COLUMNS = (("stage1_9_steps", "stage2_steps"), ("param.stage1_9.max_steps", "param.stage2.max_steps"))
"""Pairs of columns that may hold the lengths of Stage 1.9 and Stage 2, in steps."""

SCHEMA = 1
SCHEMA_KEY = b"stagesweep.schema"
"""Key in the metadata of a Parquet file. A CSV file has no place for it: its header is its schema."""


def read(path: str | Path) -> pd.DataFrame:
    """Read a table from a file by its suffix: `.csv` or `.tsv`, `.parquet` or `.json`.

    Cells of a text file may be separated by commas, semicolons or tabs; with the last two, numbers may have
    decimal commas.

    Raises:
        TableError: the file is missing, empty, damaged, of another kind or of a newer schema.
    """
    if not isinstance(path, str | Path):
        raise TableError(f"{path!r:.80}", "give the path of a file")
    source, file = str(path), Path(path)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise TableError(source, f"unknown format; the name must end in {' or '.join(READERS)}")
    try:
        if not file.is_file():
            problem = "no such file"
            if os.path.lexists(file):  # a pipe, or a link to nothing; reading a pipe would block
                problem = "not a regular file; save the table to one first"
            raise TableError(source, "this is a folder, not a table" if file.is_dir() else problem)
        if file.stat().st_size == 0:
            raise TableError(source, "the file is empty; a table has at least a header")
        return reader(file, source)
    except OSError as error:
        raise TableError(source, f"cannot be read: {error.strerror or error}") from error


def read_held_out(path: str | Path) -> object:
    """Return field `held_out` of an exported `.json` file that `read` accepts; None if there is none."""
    if Path(path).suffix.lower() != ".json":
        return None
    document = from_json(Path(path).read_text(encoding="utf-8-sig"))
    return document.get("held_out") if isinstance(document, Mapping) else None


_MISSING = ("", "nan", "-nan", "NaN", "-NaN", "NA", "N/A", "n/a", "<NA>", "#N/A", "null", "NULL", "None")
"""Cells without a value, as pandas has them."""


def _read_csv(file: Path, source: str) -> pd.DataFrame:
    try:
        with file.open("rb") as raw:
            if b"\0" in raw.read(1000):
                raise TableError(source, "not UTF-8, but UTF-16 or no text at all; save it as CSV in UTF-8")
        with file.open(newline="", encoding="utf-8-sig") as lines:
            mark = separator(lines.readline())
            lines.seek(0)
            header = next(csv.reader(lines, delimiter=mark), [])
        refuse_repeated([text_of(name) for name in header], source)
        with warnings.catch_warnings():
            # pandas only warns when rows are longer than the header, and drops the excess.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                file,
                encoding="utf-8-sig",
                sep=mark,
                index_col=False,
                low_memory=False,
                keep_default_na=False,
                # A parameter may be null, which is a value there, or a text such as "None" or "NA".
                na_values={n: ("",) if text_of(n).startswith(PARAMETER) else _MISSING for n in header},
            )
    except pd.errors.EmptyDataError:
        raise TableError(source, "the file has no header line") from None
    except pd.errors.ParserWarning:
        raise TableError(source, "not a CSV table: rows have more fields than the header") from None
    except (pd.errors.ParserError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(source, f"not a CSV table in UTF-8: {one_line(error)}") from error
    for name, values in table.items():
        if types.is_object_dtype(values) or types.is_string_dtype(values):
            values = values.map(lambda cell: text_of(cell) if isinstance(cell, str) else cell)
            filled = values.dropna()
            texts = [str(cell) for cell in filled]
            points = decimal_points(texts, mark)
            if points != texts:  # a column of numbers with decimal commas
                numbers = [float(cell) for cell in points]
                values = pd.Series(numbers, index=filled.index).reindex(values.index)
            table[name] = values
    return table.rename(columns=lambda name: text_of(str(name)))


def incomplete(table: pd.DataFrame) -> dict[int, str]:
    """Return the positions of rows that Optuna or W&B did not complete, with their states."""
    column = next((name for name in table.columns if str(name).lower() == "state"), None)
    if column is None or "status" in table.columns:
        return {}
    words = ["" if pd.isna(cell) else str(cell) for cell in table[column]]
    known = {word.lower() for word in words if word}
    if not known or not any(known <= states for states in STATES.values()):
        return {}
    return {row: word or "without a state" for row, word in enumerate(words) if word.lower() not in COMPLETED}


def _read_parquet(file: Path, source: str) -> pd.DataFrame:
    import pyarrow  # costs a quarter of a second that the other formats need not pay
    from pyarrow import parquet

    try:
        schema = (parquet.read_schema(file).metadata or {}).get(SCHEMA_KEY)
        if schema is not None:  # a table of our own; any other has none
            _check_schema(int(schema) if schema.isdigit() else schema.decode(errors="replace"), source)
        # A file of 400 bytes may have 10^8 rows: count before reading.
        size = 0
        with parquet.ParquetFile(file) as opened:
            cells = opened.metadata.num_rows * opened.metadata.num_columns
            if cells > MOST_CELLS:
                raise TableError(source, f"it has {cells:,} cells; {MOST_CELLS:,} is the most")
            for batch in opened.iter_batches(1024):
                size += batch.nbytes
                if size > MOST_BYTES:
                    raise TableError(source, f"its cells have more than {MOST_BYTES >> 20} MiB")
        table = pd.read_parquet(file, engine="pyarrow")
    except (pyarrow.ArrowException, ValueError) as error:
        raise TableError(source, f"not a Parquet table: {one_line(error)}") from error
    refuse_repeated([str(name) for name in table.columns], source)
    return table.reset_index(drop=True)


def _read_json(file: Path, source: str) -> pd.DataFrame:
    try:
        document = from_json(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise TableError(source, f"not JSON: {one_line(error)}") from error
    if isinstance(document, list):
        return _from_rows(document, source)
    return from_document(document, source=source)


READERS: Mapping[str, Callable[[Path, str], pd.DataFrame]] = MappingProxyType(
    {".csv": _read_csv, ".parquet": _read_parquet, ".json": _read_json, ".tsv": _read_csv}
)


def from_document(document: object, *, source: str = "document") -> pd.DataFrame:
    """Return the table of an export document: `{"schema": 1, …, "trials": [{"trial", "metrics", …}]}`.

    Its fields `machine_seconds`, `hosts` and `infeasible` become the columns that the flat tables have.

    Raises:
        TableError: it is not an export document, or one of a newer schema; or its infeasible trials are no
            list of trials.
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
    longer, hosts, outside = (document.get(name) for name in (MACHINE_SECONDS, HOSTS, INFEASIBLE))
    if outside is not None and not (
        isinstance(outside, list | tuple) and all(isinstance(trial, int) for trial in outside)
    ):
        raise TableError(source, f"field infeasible is {outside!r:.80}; it is a list of trials")
    found = None if outside is None else frozenset(map(str, outside))
    rows = [dict(trial) if isinstance(trial, Mapping) else trial for trial in trials]
    for row in rows:
        if isinstance(row, dict) and isinstance(longer, Mapping):
            row[MACHINE_SECONDS] = longer.get(str(row["trial"]), row.get("seconds"))
        if isinstance(row, dict) and isinstance(hosts, Mapping):
            row[HOSTS] = hosts.get(str(row["trial"]), 1)
        if isinstance(row, dict) and found is not None:
            row[INFEASIBLE] = str(row["trial"]) in found
    return _from_rows(rows, source)


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
        row = {name: value for name, value in trial.items() if name not in ("parameters", "metrics")}
        for name, value in trial.get("parameters", {}).items():
            is_json = value is None or isinstance(value, list)  # as in the CSV export, where "" is no value
            row[PARAMETER + name] = json.dumps(value, ensure_ascii=False) if is_json else value
        for name, value in trial.get("metrics", {}).items():
            row[metric_column(name)] = value
        rows.append(row)
    own = not trials or all(set(trial) >= OWN_COLUMNS for trial in trials)
    names = dict.fromkeys(name for row in rows for name in row)
    some = [name for name in (*SWEEP_COLUMNS, *STAGE_COLUMNS) if name in names]
    leading = (*TRIAL_COLUMNS, *some) if own else ()
    # Parameters before metrics, as in the CSV export, whichever trial named them first.
    ordered = [
        *leading,
        *sorted((n for n in names if n not in leading), key=lambda n: not n.startswith(PARAMETER)),
    ]
    return pd.DataFrame(rows, columns=pd.Index(ordered))


def refuse_repeated(names: Iterable[str], source: str) -> None:
    """Raise `TableError` if a name appears twice; columns may lack one."""
    for name, times in Counter(names).items():
        if times > 1 and name:
            raise TableError(source, f"the column {name!r} appears {times} times; give each its own name")


def apart(column: str, taken: Collection[str]) -> str:
    """Return the name of a metric's column in a further table, whose other columns are `taken`."""
    return METRIC + column if column in taken else column


def label(column: str, columns: Collection[str]) -> str:
    """Return a column's name for people: a parameter's without its prefix, unless another is called so."""
    plain = column.removeprefix(PARAMETER)
    return column if plain in RESERVED or plain in columns or plain.startswith((PARAMETER, METRIC)) else plain
