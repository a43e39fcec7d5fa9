"""Which rows of a table may become trials: columns given a meaning, cells checked against the space.

Pure: `importing` reads the table before and writes the trials after. Every problem is told at once, one line
each, since whoever brings a table of a hundred rows does not want to hear of them one by one.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sweeps.export.table import METRIC, PARAMETER, TRIAL_COLUMNS
from sweeps.space.constraints import parse
from sweeps.space.definition import Choice, Fixed, Parameter, Range, Space, Value, same_value
from sweeps.space.yaml_cursor import nearest
from sweeps.trials import storable
from sweeps.trials.record import STATUSES
from sweeps.upkeep.tables import Cell, Row, Table, TableError
from sweeps.worker.result import needed_metrics

log = logging.getLogger(__name__)

_STATUS = "status"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row that may become a trial: the active parameters in the space's order, and finite metrics."""

    parameters: Mapping[str, Value]
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """What a table gives: its results in order, and how many rows did not complete, by their status."""

    results: tuple[Result, ...]
    left_out: Mapping[str, int]


@dataclass(kw_only=True)
class _Columns:
    """The column of every parameter and metric that the table has."""

    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)


def admit(table: Table, space: Space) -> Admitted:
    """The completed rows of the table as results of this space.

    A parameter's column is called `param.<name>` or like the parameter, a metric's like the metric or
    `metric.<name>`. A parameter with a fixed value needs no column, one that is switched off by another
    must be empty.

    Raises:
        TableError: with every problem of every row; then nothing of the table is good enough.
    """
    problems: list[str] = []
    columns = _columns(table, space, problems)
    if problems:
        raise TableError(table.file, problems)
    results: list[Result] = []
    left_out: Counter[str] = Counter()
    for row in table.rows:
        told: list[str] = []
        status = str(row.cells.get(_STATUS) or "completed")
        if status not in STATUSES:
            told.append(f"{_STATUS}: {status!r} is none of {', '.join(STATUSES)}")
        elif status != "completed":
            left_out[status] += 1
            continue
        else:
            parameters = _parameters(row, columns, space, told)
            results.append(Result(parameters=parameters, metrics=_metrics(row, columns, space, told)))
        problems += [f"{table.file}:{row.number}: {problem}" for problem in told]
    if problems:
        raise TableError(table.file, problems)
    return Admitted(results=tuple(results), left_out=MappingProxyType(dict(left_out)))


def _columns(table: Table, space: Space, problems: list[str]) -> _Columns:
    """Find out what each column is; those that only describe a trial, or have no name, are passed over."""
    names = [parameter.name for parameter in space.parameters]
    needed = needed_metrics(space)
    found = _Columns()
    for column in table.columns:
        if column.startswith(PARAMETER):
            name = column.removeprefix(PARAMETER)
            if name in names:
                found.parameters[name] = column
            else:
                problems.append(
                    f"{table.file}: {column}: not among the sweep's parameters; {nearest(name, names)}"
                )
        elif not column or column in TRIAL_COLUMNS:
            continue
        elif column in names and PARAMETER + column not in table.columns and column not in needed:
            found.parameters[column] = column
        elif not storable.is_name(column.removeprefix(METRIC)):
            log.warning(
                "%s: the column %s is left out: a metric cannot be called so",
                *(table.file, ascii(column[:80])),
            )
        else:
            name = column.removeprefix(METRIC)
            if name in found.metrics:
                other = found.metrics[name]
                problems.append(f"{table.file}: {column}: says the same as {other}; keep one of the two")
            found.metrics[name] = column
    for parameter in space.parameters:
        if parameter.name not in found.parameters and _is_wanted(parameter, space):
            like = nearest(parameter.name, table.columns)
            problems.append(f"{table.file}: no column {PARAMETER}{parameter.name} ({like})")
    for metric in needed:
        if metric not in found.metrics:
            told = METRIC + metric if metric in TRIAL_COLUMNS else metric
            problems.append(f"{table.file}: no column {told} ({nearest(metric, table.columns)})")
    return found


def _is_wanted(parameter: Parameter, space: Space) -> bool:
    """Whether a table must have the column: a conditional parameter may be switched off in every row."""
    return not isinstance(parameter, Fixed) and parameter.name not in space.parents()


def _parameters(row: Row, columns: _Columns, space: Space, problems: list[str]) -> dict[str, Value]:
    """The active parameters of the row; what does not fit is told in `problems`."""
    values: dict[str, Value] = {}
    wrong: set[str] = set()
    for parameter in space.parameters:
        column = columns.parameters.get(parameter.name)
        cell = None if column is None else row.cells.get(column)
        if isinstance(parameter, Fixed) and cell is None:
            values[parameter.name] = parameter.value
        elif cell is not None:
            try:
                values[parameter.name] = _value(parameter, cell)
            except ValueError as error:
                wrong.add(parameter.name)
                problems.append(f"{column}: {error}")
    active = space.active(values)
    problems += [
        f"{columns.parameters.get(name, PARAMETER + name)}: empty, but the trial had a value for it"
        for name in active
        if name not in values and name not in wrong
    ]
    problems += [
        f"{columns.parameters[name]}: switched off unless {parent} is {_shown(needed)}; leave it empty"
        for name, (parent, needed) in space.parents().items()
        if name in columns.parameters
        and name not in active
        and parent not in wrong
        and row.cells.get(columns.parameters[name]) is not None
    ]
    chosen = {name: values[name] for name in active if name in values}
    if not problems:
        problems += _broken_constraints(chosen, space)
    return chosen


def _broken_constraints(values: Mapping[str, Value], space: Space) -> list[str]:
    broken = []
    for text in space.parameter_constraints:
        linear = parse(text)
        if not linear.holds({name: float(values[name]) for name in linear.coefficients}):
            shown = ", ".join(f"{name} = {_shown(values[name])}" for name in linear.coefficients)
            broken.append(f"breaks `{text}` of the search space ({shown})")
    return broken


def _value(parameter: Parameter, cell: Cell) -> Value:
    """The cell as a value of the parameter. Raises ValueError with a clause."""
    if isinstance(parameter, Range):
        number = _number(cell)
        if number is None or not math.isfinite(number):
            raise ValueError(f"{cell!r:.80} is not a finite number")
        if not parameter.min <= number <= parameter.max:
            raise ValueError(f"{_shown(number)} is outside of {parameter.min} to {parameter.max}")
        if parameter.kind == "float":
            return float(number)
        if number != int(number):
            raise ValueError(f"{_shown(number)} is not a whole number")
        return int(number)
    allowed = parameter.values if isinstance(parameter, Choice) else (parameter.value,)
    for member in allowed:
        if _means(cell, member):
            return member
    raise ValueError(f"{_shown(cell):.80} is not among its values ({', '.join(map(_shown, allowed))})")


def _means(cell: Cell, member: Value) -> bool:
    """Whether the cell says `member`, which in a text file is a matter of reading."""
    if isinstance(member, str):
        return str(cell) == member.strip()
    if isinstance(member, bool):
        return str(cell).lower() == str(member).lower()
    number = _number(cell)
    return number is not None and same_value(number, member)


def _metrics(row: Row, columns: _Columns, space: Space, problems: list[str]) -> dict[str, float | None]:
    """Every metric of the row that is a number, and the needed ones without fail."""
    needed = needed_metrics(space)
    metrics: dict[str, float | None] = {}
    for name, column in columns.metrics.items():
        cell = row.cells.get(column)
        number = _number(cell)
        finite = number is not None and math.isfinite(number)
        if name in needed and not finite:
            problems.append(
                f"{column}: {'empty' if cell is None else f'{cell!r:.80} is not a finite number'}"
            )
        elif number is not None:  # notes beside the numbers are welcome, but nothing here can use them
            metrics[name] = number if finite else None
    return metrics


def _number(cell: Cell) -> int | float | None:
    """The cell as a number, which may be infinite or NaN; None for anything else."""
    if cell is None or isinstance(cell, bool):
        return None
    if not isinstance(cell, str):
        return cell if isinstance(cell, float) or abs(cell) <= _LARGEST_INT else math.inf
    if "_" in cell or not cell.isascii():
        return None  # Python would read them, other programs would not
    for kind in (int, float):
        try:
            return _number(kind(cell))
        except ValueError:
            continue
    return None


_LARGEST_INT = 2**53
"""Beyond it a float is no longer exact, and no count of steps or tokens in a table is as large."""


def _shown(value: Cell) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
