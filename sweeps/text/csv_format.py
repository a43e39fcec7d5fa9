"""CSV of the command line, `sweep export` and `sweep import`.

A spreadsheet evaluates a cell that begins with `=`, `+`, `-`, `@`, a tab or a line end as a formula, and
errors and names of metrics come from programs. As OWASP advises, such a cell is prefixed with a single quote,
unless it is a number; reading removes that quote, so that every text survives. A contract test compares
`analysis.table`, which may not import this.
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


def _runs(text: str) -> bool:
    return bool(_FORMULA.match(text)) and not _NUMBER.fullmatch(text)
