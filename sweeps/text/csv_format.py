"""CSV of the command line, `sweep export` and `sweep import`.

A spreadsheet evaluates a cell that begins with `=`, `+`, `-`, `@`, a tab or a line end as a formula, and
errors and names of metrics come from programs. As OWASP advises, such a cell is prefixed with a single quote,
unless it is a number; reading removes that quote, so that every text survives. Tables of others may be
separated by semicolons or tabs, with decimal commas.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from sweeps.text.printable import escape_controls

# Leading quotes are included: else a text's own quote could not be distinguished from ours. Spreadsheets skip
# spaces and treat the double-width signs alike.
_FORMULA = re.compile(r"'*\s*[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(
    r"'*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)


def write(file: TextIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows. A missing value and None are empty cells; control characters are escaped."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([cell(row.get(name)) for name in columns] for row in rows)


def cell(value: Any) -> Any:
    """Return the cell of a value: text that no spreadsheet evaluates, other values as they are."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = escape_controls(value)
    return f"'{text}" if _runs(text) else text


def text_of(cell: str) -> str:
    """Return the text of a cell: the inverse of `cell`."""
    return cell[1:] if cell.startswith("'") and _runs(cell[1:]) else cell


def separator(header: str) -> str:
    """Return what separates the cells of a table with this first line: a comma, a semicolon or a tab."""
    cells = {mark: len(next(csv.reader([header], delimiter=mark), [])) for mark in ",;\t"}
    return "," if cells[","] > 1 else max(cells, key=cells.__getitem__)


def decimal_points(cells: Sequence[str], separated_by: str) -> list[str]:
    """Return a column of numbers with decimal commas with points; any other column as it is.

    `1,234` in a table with tabs may be a thousand: if no cell says otherwise, it stays a text, which is then
    refused as a number.
    """
    commas = [cell for cell in cells if "," in cell]
    if not commas or separated_by == "," or not all(_EUROPEAN.fullmatch(cell) for cell in cells if cell):
        return list(cells)
    if separated_by == "\t" and all(_THOUSANDS.fullmatch(cell) for cell in commas):
        return list(cells)
    return [cell.replace(",", ".") for cell in cells]


_EUROPEAN = re.compile(r"\s*[+-]?(?:\d+(?:,\d*)?|,\d+|nan|inf)(?:e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_THOUSANDS = re.compile(r"\s*[+-]?\d{1,3},\d{3}\s*", re.ASCII)


def _runs(text: str) -> bool:
    return bool(_FORMULA.match(text)) and not _NUMBER.fullmatch(text)
