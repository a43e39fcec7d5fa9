"""CSV as the command line and `sweep export` write it, and how `sweep import` reads a cell of it.

A spreadsheet runs a cell that begins with `=`, `+`, `-`, `@`, a tab or a line end as a formula, and errors
and names of metrics come from programs. As OWASP advises, such a cell gets a single quote before it, unless
it is a number. Reading takes that quote away again: every text comes back as it was. `analysis.table`, which
may not import this, reads alike; a contract test holds the two together.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from sweeps.text.printable import escape_controls

# Quotes before it count, too: else a text that begins with one could not be told from a quote of ours.
# Spreadsheets pass over spaces; the double-width signs are the same to them.
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
    """Return what is written for a value: text that no spreadsheet runs, anything else as it is."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = escape_controls(value)
    return f"'{text}" if _runs(text) else text


def text_of(cell: str) -> str:
    """Return the text that `cell` was written for."""
    return cell[1:] if cell.startswith("'") and _runs(cell[1:]) else cell


def _runs(text: str) -> bool:
    return bool(_FORMULA.match(text)) and not _NUMBER.fullmatch(text)
