"""Validation of an imported table: matches columns with the space and checks every cell against it.

Pure functions. All problems are reported at once, one line each.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast, get_args

from sweeps.programs.result import needed_metrics
from sweeps.space.constraints import parse
from sweeps.space.definition import (
    Fixed,
    Parameter,
    Range,
    Space,
    Value,
    cell_of,
    from_plain,
    is_number,
    is_value,
    same_value,
    to_plain,
)
from sweeps.space.domain import is_repeat_key
from sweeps.space.scale import ends, is_level
from sweeps.space.yaml_cursor import nearest
from sweeps.text import json_reader
from sweeps.text.columns import (
    PARAMETER,
    STAGE_COLUMNS,
    SWEEP_COLUMNS,
    TRIAL_COLUMNS,
    metric_column,
    metric_of,
)
from sweeps.trials import storable
from sweeps.trials.record import STATUSES, Failure
from sweeps.upkeep.other_tools import Source, understand
from sweeps.upkeep.tables import Cell, Row, Table, TableError

log = logging.getLogger(__name__)

_STATUS, _FAILURE, _GENERATOR, _ERROR = "status", "failure", "generator", "error"
_OWN = frozenset(("trial", _STATUS, "attempt", _GENERATOR))
"""Columns of an exported table; `analysis.table` knows it by the same ones."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Valid row: the active parameters in the space's order, and the metrics.

    Args:
        is_repeat: whether the row says that it is a repeat of `sweep confirm`.
        error: of a repeat that has failed, so that its configuration is not confirmed; None if it has not.
        failure: how; None if the table does not say it.
    """

    parameters: Mapping[str, Value]
    metrics: Mapping[str, float | None]
    is_repeat: bool = False
    error: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Admitted(Source):
    """Results of a valid table."""

    results: tuple[Result, ...]


@dataclass(kw_only=True)
class _Columns:
    """Column of every parameter and metric in the table."""

    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)


def admit(table: Table, space: Space) -> Admitted:
    """Return the completed rows of the table, and failed repeats, as results of this space.

    A parameter's column is called `param.<name>` or `<name>`, a metric's `<name>` or `metric.<name>`. A fixed
    parameter needs no column; an inactive conditional parameter must be empty.

    Raises:
        TableError: lists every problem of every row.
    """
    problems: list[str] = []
    needed = needed_metrics(space)
    table, source = understand(table, space, needed)
    columns = _columns(table, space, problems)
    if problems:
        raise TableError(table.file, problems)
    results: list[Result] = []
    left_out: Counter[str] = Counter(source.left_out)
    for row in table.rows:
        in_row: list[str] = []
        status = str(row.cells.get(_STATUS) or "completed")
        is_repeat = row.cells.get(_GENERATOR) == "confirm"
        if status not in STATUSES:
            in_row.append(f"{_STATUS}: {status!r} is none of {', '.join(STATUSES)}")
        elif status == "failed" and is_repeat and (failure := row.cells.get(_FAILURE)) != "lost":
            results.append(
                Result(
                    parameters=_parameters(row, columns, space, in_row),
                    metrics={},
                    is_repeat=True,
                    error=storable.text(str(row.cells.get(_ERROR) or "")),
                    failure=cast("Failure", failure) if failure in get_args(Failure) else None,
                )
            )
        elif status != "completed":
            left_out[status] += 1
            continue
        else:
            parameters = _parameters(row, columns, space, in_row)
            metrics: dict[str, float | None] = {}
            for name, column in columns.metrics.items():
                cell = row.cells.get(column)
                number = _number(cell)
                finite = number is not None and math.isfinite(number)
                if name in needed and not finite:
                    what = "empty" if cell is None else f"{cell!r:.80} is not a finite number"
                    in_row.append(f"{column}: {what}")
                elif number is not None:  # columns of text are ignored
                    metrics[name] = number if finite else None
            results.append(Result(parameters=parameters, metrics=metrics, is_repeat=is_repeat))
        problems += [f"{table.file}:{row.number}: {problem}" for problem in in_row]
    if problems:
        raise TableError(table.file, problems)
    texts = [
        column
        for name, column in columns.metrics.items()
        if all(name not in result.metrics for result in results)
        and any(row.cells.get(column) is not None for row in table.rows)
    ]
    return Admitted(
        results=tuple(results),
        left_out=MappingProxyType(dict(left_out)),
        tool=source.tool,
        columns=(*source.columns, *texts) if results else (),
    )


def _columns(table: Table, space: Space, problems: list[str]) -> _Columns:
    """Match the columns with parameters and metrics; others of an exported table are ignored."""
    names = [parameter.name for parameter in space.parameters]
    needed = needed_metrics(space)
    found = _Columns()
    is_own = set(table.columns) >= _OWN  # there parameters have their prefix, without exception
    # Other programs' rates of failure are metrics, and so were columns of that name in our earlier versions.
    is_metric = not is_own or any(_number(row.cells.get(_FAILURE)) is not None for row in table.rows)
    trial_columns = set(TRIAL_COLUMNS) - ({_FAILURE} if is_metric else set())
    for column in table.columns:
        if column.startswith(PARAMETER):
            name = column.removeprefix(PARAMETER)
            if name in names or is_repeat_key(name):
                found.parameters[name] = column
            else:
                problems.append(
                    f"{table.file}: {column}: not among the sweep's parameters; {nearest(name, names)}"
                )
        elif not column or column in trial_columns:
            continue
        elif (
            column in names
            and not is_own
            and PARAMETER + column not in table.columns
            and column not in needed
        ):
            found.parameters[column] = column
        elif column in STAGE_COLUMNS or (is_own and column in SWEEP_COLUMNS):
            continue
        elif not storable.is_name(metric_of(column)):
            log.warning(
                "%s: the column %s is left out: a metric cannot be called so",
                *(table.file, ascii(column[:80])),
            )
        else:
            name = metric_of(column)
            if name in found.metrics:
                other = found.metrics[name]
                problems.append(f"{table.file}: {column}: says the same as {other}; keep one of the two")
            found.metrics[name] = column
    for parameter in space.parameters:
        if parameter.name not in found.parameters and _is_required(parameter, space):
            like = nearest(parameter.name, table.columns)
            problems.append(f"{table.file}: no column {PARAMETER}{parameter.name} ({like})")
    for metric in needed:
        if metric not in found.metrics:
            like = nearest(metric, table.columns)
            problems.append(f"{table.file}: no column {metric_column(metric)} ({like})")
    return found


def _is_required(parameter: Parameter, space: Space) -> bool:
    """Return whether a table must have the column; a conditional parameter may be inactive in every row."""
    return not isinstance(parameter, Fixed) and parameter.name not in space.parents()


def _parameters(row: Row, columns: _Columns, space: Space, problems: list[str]) -> dict[str, Value]:
    """Return the active parameters of the row; append what does not fit to `problems`."""
    values: dict[str, Value] = {}
    wrong: set[str] = set()
    for parameter in space.parameters:
        column = columns.parameters.get(parameter.name)
        cell = None if column is None else row.cells.get(column)
        if cell == "null" and not any(_matches(cell, member) for member in ends(parameter)):
            cell = None  # JSON of other tools says so that there is no value
        blank = [member for member in ends(parameter) if member in (None, "")]
        if cell is None and column is not None and blank and _is_required(parameter, space):
            values[parameter.name] = None if None in blank else ""  # other tools leave a null's cell empty
        elif isinstance(parameter, Fixed) and cell is None:
            values[parameter.name] = parameter.value
        elif cell is not None:
            try:
                values[parameter.name] = _value(parameter, cell)
            except ValueError as error:
                if isinstance(parameter, Fixed) and is_repeat_key(parameter.name):
                    values[parameter.name] = _of_repeat(cell)
                else:
                    wrong.add(parameter.name)
                    problems.append(f"{column}: {error}")
    active = space.active(values)
    problems += [
        f"{columns.parameters.get(name, PARAMETER + name)}: empty, but the trial had a value for it"
        for name in active
        if name not in values and name not in wrong
    ]
    problems += [
        f"{columns.parameters[name]}: switched off unless {condition}; leave it empty"
        for name, condition in space.parents().items()
        if name in columns.parameters
        and name not in active
        and condition.parent not in wrong
        and row.cells.get(columns.parameters[name]) is not None
    ]
    chosen = {name: values[name] for name in active if name in values}
    own = {parameter.name for parameter in space.parameters}
    for name, column in columns.parameters.items():
        cell = row.cells.get(column)
        if cell is not None and name not in own:  # a seed of the program, which is none of the parameters
            chosen[name] = _of_repeat(cell)
    if not problems:
        numbers = {name: value for name, value in chosen.items() if is_number(value)}
        for text in space.parameter_constraints:
            linear = parse(text, space.names())
            if not linear.holds({name: float(numbers[name]) for name in linear.coefficients}):
                shown = ", ".join(f"{name} = {_cell_text(numbers[name])}" for name in linear.coefficients)
                problems.append(f"breaks `{text}` of the search space ({shown})")
    return chosen


def _value(parameter: Parameter, cell: Cell) -> Value:
    """Return the cell as a value of the parameter. Raises ValueError, whose message is a clause."""
    if isinstance(parameter, Range):
        number = _number(cell)
        if number is None or not math.isfinite(number):
            raise ValueError(f"{cell!r:.80} is not a finite number")
        if not parameter.min <= number <= parameter.max:
            raise ValueError(f"{_cell_text(number)} is outside of {parameter.min} to {parameter.max}")
        if parameter.step is not None and not is_level(parameter, number):
            raise ValueError(f"{_cell_text(number)} is no step of {parameter.step:g} from {parameter.min}")
        if parameter.kind == "float":
            return float(number)
        if number != int(number):
            raise ValueError(f"{_cell_text(number)} is not a whole number")
        return int(number)
    allowed = ends(parameter)
    # First a text as it is: "None" stands for null only where it is no value itself.
    texts = [member for member in allowed if isinstance(cell, str) and isinstance(member, str)]
    for member in (*texts, *allowed):
        if _matches(cell, member):
            return member
    shown = ", ".join(_cell_text(cell_of(member)) for member in allowed)
    raise ValueError(f"{_cell_text(cell):.80} is not among its values ({shown})")


def _of_repeat(cell: Cell) -> Value:
    """Return the seed of a repeat, or its switch `eval.test`, as it is."""
    number = _number(cell)
    if number is not None and math.isfinite(number):
        return number
    return str(cell).lower() == "true" if str(cell).lower() in ("true", "false") else str(cell)


def _matches(cell: Cell, member: Value) -> bool:
    """Return whether the cell, which may be text, stands for `member`."""
    if isinstance(member, str):
        return str(cell) == member.strip()
    if member is None:
        return str(cell).lower() in ("null", "none")
    if isinstance(member, tuple):
        if str(cell) == str(to_plain(member)):  # as pandas writes the lists of `sweep.trials()`
            return True
        try:
            value = from_plain(json_reader.parse(str(cell)))
        except ValueError:
            return False
        return is_value(value) and same_value(value, member)
    if isinstance(member, bool):
        return str(cell).lower() == str(member).lower()
    number = _number(cell)
    return number is not None and same_value(number, member)


def _number(cell: Cell) -> int | float | None:
    """Return the cell as a number, which may be infinite or NaN; None for anything else."""
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
"""Limit of exact floats; no count of steps or tokens in a table is as large."""


def _cell_text(value: Cell) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
