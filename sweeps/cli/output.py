"""Output: tables for people, JSON and CSV for programs. With JSON, stdout holds one document only."""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sweeps.text import csv_format
from sweeps.text.printable import escape_json
from sweeps.text.shorten import shorten

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

_MOST_COLOURED = 1000
"""Rows of a table with colours: laying out one of 10,000 took six seconds."""

_PLAIN_WIDTH = 10_000
"""Width of a piped table in characters: lines are never wrapped or cut for a program or for `less -S`."""


def _format_option(*styles: str) -> Callable[[F], F]:
    help_text = "For people, or for programs."
    return click.option(
        "--format", "style", type=click.Choice(styles), default="table", show_default=True, help=help_text
    )


format_option = _format_option("table", "json", "csv")
document_option = _format_option("table", "json")
"""The option --format without csv, for what is no table."""


def console() -> Console:
    """Return a console: colours and the window's width on a terminal, plain unwrapped text in a pipe."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_PLAIN_WIDTH, soft_wrap=True)


def print_json(document: Any) -> None:
    """Print one JSON document. Raises ValueError for NaN, which other programs cannot read."""
    # JSON is UTF-8, and stdout's own escapes of what its encoding lacks are no JSON.
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    click.echo(escape_json(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=not is_utf8)))


def echo(text: str, *, err: bool = False) -> None:
    """Print text for people that may contain a program's output: without secrets and escape sequences."""
    from sweeps.trials.redaction import printable

    click.echo(printable(text), err=err)


def notify(line: str) -> None:
    """Print a message in one line to stderr."""
    echo(f"sweep: {line}", err=True)


def print_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Print rows as CSV, in these columns, or in those of all rows in order of appearance.

    It is in UTF-8 everywhere, as `sweep export` writes it and `sweep import` reads it.
    """
    names = list(columns) if columns is not None else list(dict.fromkeys(key for row in rows for key in row))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    csv_format.write(sys.stdout, names, rows)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows for people: numbers right-aligned and shortened, absent values empty.

    On a terminal it has colours, unless it is long or wider than the window. Lines are never cut.
    """
    from rich.cells import cell_len

    names = list(dict.fromkeys(key for row in rows for key in row))
    numeric = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    cells = [[shorten(row.get(name)) for name in names] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    screen = console()
    if sys.stdout.isatty() and len(rows) <= _MOST_COLOURED and sum(widths) + 2 * len(names) <= screen.width:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name, is_number in zip(names, numeric, strict=True):
            table.add_column(Text(name), justify="right" if is_number else "left", no_wrap=True)
        for line in cells:
            table.add_row(*map(Text, line))
        screen.print(table)
        return
    for line in (names, *cells):
        padded = []
        for text, width, is_number in zip(line, widths, numeric, strict=True):
            space = " " * (width - cell_len(text))
            padded.append(space + text if is_number else text + space)
        click.echo("  ".join(padded).rstrip())
