"""Tables that Optuna, W&B and Ray Tune write, in the terms of `sweep import`. Pure.

Optuna: `study.trials_dataframe()`. W&B: the table of runs, exported on its web page. Ray Tune:
`results.get_dataframe()`. Each row has a trial's last values, whatever became of it: rows of trials that did
not complete are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sweeps.space.definition import Space
from sweeps.text.columns import COMPLETED, METRIC, PARAMETER, STATES
from sweeps.upkeep.tables import Row, Table

OPTUNA, WANDB, RAY = "Optuna", "W&B", "Ray Tune"

_OWN_COLUMNS = {
    OPTUNA: ("number", "datetime_start", "datetime_complete", "duration"),
    WANDB: (
        "Name",
        "Notes",
        "User",
        "Tags",
        "Created",
        "Runtime",
        "Sweep",
        "ID",
        "Updated",
        "End Time",
        "Hostname",
    ),
    RAY: (
        *("timestamp", "checkpoint_dir_name", "done", "trial_id", "date", "pid", "hostname", "node_ip"),
        *("time_since_restore", "iterations_since_restore", "logdir", "experiment_id", "experiment_tag"),
    ),
}
"""Columns about a trial that are neither parameters nor metrics."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Table that was read, and what of it was not used.

    Args:
        tool: which wrote it, if it is not of a sweep: Optuna, W&B or Ray Tune.
        left_out: number of rows that did not complete, by status or by the tool's own word.
        columns: those that were not used.
    """

    tool: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()


def understand(table: Table, space: Space, needed: tuple[str, ...]) -> tuple[Table, Source]:
    """Return the completed rows of a table with the columns of an exported one, and what it was.

    A table of no other tool is returned as it is.
    """
    own = {*(parameter.name for parameter in space.parameters), *needed}
    state, tool = ("", "") if "state" in own else _state(table)
    if any(column.startswith("params_") for column in table.columns if column not in own):
        tool = OPTUNA
    elif any(column.startswith("config/") for column in table.columns if column not in own):
        tool = RAY
    if not tool:
        return table, Source()
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    for row in table.rows:
        word = str(row.cells.get(state) or "without a state") if state else ""
        if state and word.lower() not in COMPLETED:
            left_out[word] += 1
        else:
            rows.append(row)
    names = _names(tool, replace(table, rows=tuple(rows)), space, needed)
    translated: list[Row] = []
    for row in rows:
        cells = {names[column]: cell for column, cell in row.cells.items() if column in names}
        lacking = [m for m in needed if cells.get(m) is None and cells.get(METRIC + m) is None]
        known = [m for m in lacking if m in names.values() or METRIC + m in names.values()]
        if known:  # a metric without a column is a problem of the table
            left_out[f"without {known[0]}"] += 1
        else:
            translated.append(Row(number=row.number, cells=MappingProxyType(cells)))
    source = Source(
        tool=tool,
        left_out=MappingProxyType(dict(left_out)),
        columns=tuple(column for column in table.columns if column and column not in (*names, state)),
    )
    return replace(table, columns=tuple(names.values()), rows=tuple(translated)), source


def _state(table: Table) -> tuple[str, str]:
    """Return the column of the states and the tool whose words they are; "" and "" if there is none."""
    column = next((column for column in table.columns if column.lower() == "state"), "")
    words = {str(cell).lower() for row in table.rows if (cell := row.cells.get(column)) is not None}
    if column and words and "status" not in table.columns:
        for tool, states in STATES.items():
            if words <= states:
                return column, tool
    return "", ""


def _names(tool: str, table: Table, space: Space, needed: tuple[str, ...]) -> dict[str, str]:
    """Return our name of each column that is used, by its own name."""
    parameters = [parameter.name for parameter in space.parameters]
    state, _ = _state(table)
    name_of: Callable[[str], str] = _of_optuna(space) if tool == OPTUNA else lambda column: column
    found: dict[str, str] = {}
    for column in table.columns:
        if column not in (*parameters, *needed) and (not column or column in (*_OWN_COLUMNS[tool], state)):
            continue
        name = name_of(column)
        for prefix in ("params_", "config/"):
            if tool != WANDB and column.startswith(prefix):
                plain = column.removeprefix(prefix)
                dotted = plain.replace("/", ".")
                name = PARAMETER + (dotted if plain not in parameters and dotted in parameters else plain)
        constant = len({row.cells.get(column) for row in table.rows}) <= 1
        unknown = name.startswith(PARAMETER) and name.removeprefix(PARAMETER) not in parameters
        if not name or name in found.values() or (unknown and constant and name != column):
            continue  # a setting that was the same in all trials
        found[column] = name
    return found


def _of_optuna(space: Space) -> Callable[[str], str]:
    """Return a function from a column of Optuna to ours; "" for one that is not used."""
    metrics = space.metrics()

    def name_of(column: str) -> str:
        kind, _, rest = column.partition("_")
        if column == "value" and len(metrics) == 1:
            return METRIC + metrics[0]
        if kind == "values" and rest.isdecimal() and int(rest) < len(metrics):
            return METRIC + metrics[int(rest)]
        if kind in ("value", "values") and rest:
            return METRIC + rest
        if column.startswith("user_attrs_"):
            return METRIC + column.removeprefix("user_attrs_")
        return "" if column.startswith("system_attrs_") else column

    return name_of
