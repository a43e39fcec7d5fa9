"""Tables of results as plain rows, from CSV, Parquet, and JSON as `sweep export` and `sweep trials` write it.

Cells are not interpreted here; an empty one is None. Rows are numbered for people: by line in a CSV file,
else from 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sweeps.errors import InputError
from sweeps.programs.base import TRIAL_FILE
from sweeps.programs.result import RESULT_FILE
from sweeps.text import csv_format, json_reader
from sweeps.text.columns import METRIC, MOST_BYTES, MOST_CELLS, PARAMETER
from sweeps.text.counted import counted
from sweeps.text.regular_file import open_regular
from sweeps.text.shorten import one_line
from sweeps.trials import storable

_HEAD = 1000
"""Bytes in which a text in UTF-16 has a NUL."""

_PANDAS_INDEX = re.compile(r"(Unnamed: \d+(\.\d+)*)?")
"""Header of an index that pandas has written in front of a table, and its name once it was read again."""
_PARQUET_INDEX = re.compile(r"__index_level_\d+__")
"""Column of an index that pandas has written into a Parquet file, behind the others."""

Cell = bool | int | float | str | None

# Of a Parquet file: one of 400 bytes may have 10^8 rows. `analysis.table.files` has the same limits.
_BATCH_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of a table; a missing column is like an empty cell."""

    number: int
    cells: Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a file, and every column of any row, in order of appearance."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


class TableError(InputError):
    """Error of a table that cannot be imported; nothing was changed.

    Args:
        problems: one line for each, with row and column.
    """

    _SHOWN = 20

    def __init__(self, file: str, problems: Sequence[str]) -> None:
        self.file, self.problems = file, tuple(problems)
        shown = [storable.line(problem) for problem in self.problems[: self._SHOWN]]
        if len(self.problems) == 1:
            super().__init__(shown[0])
            return
        rest = len(self.problems) - len(shown)
        more = (f"… and {rest} more",) if rest else ()
        head = f"{file}: nothing was imported, for {len(self.problems)} reasons:"
        super().__init__("\n  ".join((head, *shown, *more)))


def read(path: Path) -> Table:
    """Read a file in the format of its suffix. Raises `TableError`."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".json": _read_json, ".tsv": _read_csv}
    try:
        if (reader := readers.get(path.suffix.lower())) is None:
            raise ValueError(f"the name must end in {' or '.join(readers)}")
        rows = reader(path)
        if not rows:
            raise ValueError("no rows: nothing in it could become a trial")
    except OSError as error:
        raise TableError(str(path), [f"{path}: cannot be read: {error.strerror or error}"]) from None
    except ValueError as error:
        raise TableError(str(path), [f"{path}: {one_line(error)}"]) from None
    columns = dict.fromkeys(name for row in rows for name in row.cells)
    # As a metric of its own it would make all rows other trials than those that the sweep has.
    behind = dropwhile(_PANDAS_INDEX.fullmatch, columns)
    named = tuple(name for name in behind if not _PARQUET_INDEX.fullmatch(name))
    return Table(file=str(path), columns=named, rows=tuple(rows))


def _read_csv(path: Path) -> list[Row]:
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            if b"\0" in file.buffer.read(_HEAD):
                raise ValueError("not UTF-8, but UTF-16 or no text at all; save it as CSV in UTF-8")
            file.buffer.seek(0)
            mark = csv_format.separator(file.readline())
            file.seek(0)
            reader = csv.reader(file, strict=True, delimiter=mark)
            header = [csv_format.text_of(cell) for cell in next(reader, [])]
            if not header:
                raise ValueError("the file is empty; its first line must name the columns")
            if doubled := sorted({name for name in header if header.count(name) > 1}):
                raise TableError(str(path), [f"{path}:1: two columns are called {doubled[0]!r}; rename one"])
            # A quoted cell may contain newlines: the row is numbered by its last line.
            numbered = [(reader.line_num, [*map(csv_format.text_of, cells)]) for cells in reader if cells]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"not a CSV file in UTF-8: {error}") from None
    if ragged := [(number, len(cells)) for number, cells in numbered if len(cells) != len(header)]:
        problems = [
            f"{path}:{n}: {counted(cells, 'cell')}, but the header has {len(header)}" for n, cells in ragged
        ]
        raise TableError(str(path), problems)
    points = [
        csv_format.decimal_points(cells, mark) for cells in zip(*(row for _, row in numbered), strict=True)
    ]
    rows = zip(*points, strict=True)
    return [
        _row(number, dict(zip(header, cells, strict=True)))
        for (number, _), cells in zip(numbered, rows, strict=True)
    ]


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    size = 0
    try:
        with open_regular(path) as stream, parquet.ParquetFile(stream) as file:
            cells = file.metadata.num_rows * file.metadata.num_columns
            if cells > MOST_CELLS:
                raise ValueError(f"it has {cells:,} cells; {MOST_CELLS:,} is the most")
            for batch in file.iter_batches(_BATCH_ROWS):
                size += batch.nbytes
                if size > MOST_BYTES:
                    raise ValueError(
                        f"its cells have more than {MOST_BYTES >> 20} MiB, which no results have"
                    )
                rows += batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"not a Parquet file: {one_line(error)}") from None
    for row in rows:
        for name, value in row.items():
            if isinstance(value, float) and math.isnan(value):
                row[name] = None  # pandas writes NaN for missing values
    return [_row(number, row) for number, row in enumerate(rows, 1)]


def _read_json(path: Path) -> list[Row]:
    document = json_reader.read(path)
    of_run = isinstance(document, dict) and "trials" not in document
    if of_run and (path.name == RESULT_FILE or isinstance(document.get("metrics"), dict)):
        parameters = document.get("parameters")
        if not isinstance(parameters, dict):  # they stand in `trial.json` beside it
            trial_file = path.with_name(TRIAL_FILE)
            try:
                parameters = json_reader.read(trial_file)["parameters"]
                if not isinstance(parameters, dict):
                    raise TypeError(parameters)
            except (OSError, ValueError, KeyError, TypeError):
                raise ValueError(
                    f"the result of one run, and {trial_file} does not say with which parameters; "
                    "write a table with a row for it: a column for each parameter and metric"
                ) from None
            status, metrics = document.get("status", "completed"), document.get("metrics", document)
            document = {"status": status, "parameters": parameters, "metrics": metrics}
        document = [{"status": "completed", **document}]
    rows = document.get("trials") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            "expected a list of objects, as `sweep trials --format json` or `sweep export` write it"
        )
    for row in rows:
        for field, prefix in (("parameters", PARAMETER), ("metrics", METRIC)):
            if not isinstance(row.get(field), dict):
                continue  # a flat row stays as it is
            for name, value in row.pop(field).items():
                # The null of a parameter is a value; an empty cell would be none.
                row[prefix + name] = "null" if value is None and prefix == PARAMETER else value
    return [_row(number, row) for number, row in enumerate(rows, 1)]


def _row(number: int, values: Mapping[str, Any]) -> Row:
    cells: dict[str, Cell] = {}
    for name, value in values.items():
        if isinstance(value, bool | int | float):
            cells[name] = value
        elif isinstance(value, list):  # as `space.definition.cell_of` writes it
            cells[name] = json.dumps(value, ensure_ascii=False, default=str)
        else:
            cells[name] = str("" if value is None else value).strip() or None
    return Row(number=number, cells=MappingProxyType(cells))
