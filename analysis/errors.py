"""Errors that `analysis` raises on purpose.

    AnalysisError           exit status 2: the table or the question asked of it is wrong
    ├── TableError              a file or document is not a table that can be read
    ├── MissingColumn           the table has no column of that name
    └── NotNumeric              a column that must hold numbers holds something else

A message says what is wrong, where, and what to do instead, in one line. The command line prints it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sweeps.text.columns import METRIC, PARAMETER

SHOWN = 40  # a wide table has too many names for a message


class AnalysisError(Exception):
    """Root of the package's errors."""

    exit_status: int = 2


class TableError(AnalysisError):
    """A file or document is not a table that can be read.

    Args:
        source: the file's name as the user gave it, or what the document is called.
    """

    def __init__(self, source: str, problem: str) -> None:
        self.source, self.problem = source, problem
        super().__init__(f"{source}: {problem}")


class MissingColumn(AnalysisError):
    """The table has no column of that name."""

    def __init__(self, column: str, columns: Sequence[str]) -> None:
        self.column, self.columns = column, tuple(columns)
        prefixed = [name for name in self.columns if name in (f"{PARAMETER}{column}", f"{METRIC}{column}")]
        near = prefixed or difflib.get_close_matches(str(column), self.columns, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        listed = ", ".join(repr(name) for name in self.columns[:SHOWN]) or "none"
        more = f" and {len(self.columns) - SHOWN} more" if len(self.columns) > SHOWN else ""
        super().__init__(f"no column {column!r}{hint}; the columns are: {listed}{more}")


class NotNumeric(AnalysisError):
    """A column that must hold numbers holds something else.

    Args:
        row: zero-based number of the first row that does not fit.
    """

    def __init__(self, column: str, row: int, value: object) -> None:
        self.column, self.row, self.value = column, row, value
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        super().__init__(
            f"column {column!r} is not numeric: row {row} holds {shown}; name a column of numbers, "
            "or leave that cell empty"
        )
