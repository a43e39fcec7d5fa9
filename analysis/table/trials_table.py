"""A table of trials whose columns were checked when it was built, and its configurations.

Trials of one configuration differ in nothing but their seed. The best of many noisy numbers is too good to be
true (the winner's curse). So `sweep confirm` runs the best trials again with fresh seeds, as trials of
generator `confirm`. With two such runs a configuration is confirmed: one point, at the mean of its fresh
runs, without the observation that it was selected for. One that failed with a fresh seed is not: the mean
of the seeds that it survived says too much good of it.

The spread over seeds is pooled over all configurations with repeats (the residual variance of a one-way
analysis of variance), as two or three repeats of one say little. The error of a mean over k runs is
√(text² + spread²/k), where `text` is the error from the text. A part of `text` differs between seeds and is
counted twice: this errs to the large side.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from analysis.errors import AnalysisError, MissingColumn, NotNumeric, TableError
from analysis.statistics.efficiency import effective_steps
from analysis.statistics.pareto import Floats
from analysis.statistics.stages import Point, Stage, parse, parse_points, total
from analysis.table.files import (
    OWN_COLUMNS,
    STEP_COLUMNS,
    from_document,
    incomplete,
    read,
    read_held_out,
    refuse_repeated,
)
from analysis.table.held_out import HeldOut
from sweeps.text.columns import (
    HOSTS,
    INFEASIBLE,
    MACHINE_SECONDS,
    NOMINAL,
    PAID,
    PARAMETER,
    POINTS,
    RESERVED,
    SEM,
    STAGES,
    is_seed,
    metric_column,
)
from sweeps.text.fresh_runs import MIN_RUNS, failed_configurations

CONFIRM = "confirm"
"""Generator of the trials that confirm others."""

FIDELITY = "fidelity"
"""Generator of trials below the target of a sweep with fidelities, which are no results."""

FAILURE, LOST = "failure", "lost"
"""Column of a failed trial's kind of failure, and the kind that says nothing of its parameters."""

EVAL_TEST = "param.eval.test"
"""Asks the trainer for the loss on the test text, as every fresh run does."""

Rows = npt.NDArray[np.bool_] | npt.NDArray[np.intp]
"""Rows of a table: a mask [N], or zero-based positions."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Standard deviation of a metric over seeds, and its degrees of freedom."""

    sd: float
    freedom: int


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Repeats of configurations in a table of configurations.

    Args:
        runs: fresh runs of each confirmed configuration, by the trial that stands for it.
        spreads: over seeds, by column; empty if no configuration was repeated.
    """

    runs: Mapping[int, tuple[int, ...]]
    spreads: Mapping[str, Spread]

    def seeds(self, trials: Collection[int]) -> dict[int, int]:
        """Return the number of fresh seeds of each of these trials whose configuration is confirmed."""
        return {trial: len(self.runs[trial]) for trial in trials if trial in self.runs}

    def standing_for(self, trial: int) -> int:
        """Return the trial that stands for the configuration of a fresh run; else the trial itself."""
        return next((first for first, runs in self.runs.items() if trial in runs), trial)


@dataclass(frozen=True, eq=False)
class TrialsTable:
    """A table of trials, one row each. `TrialsTable.from_frame` builds it and checks it once.

    The trials of a sweep's own table have statuses and indices. In any other table each row counts as a
    completed trial, and its zero-based number is its index.

    Args:
        frame: [N] rows with columns of different names, all strings. Not to be changed.
        trials: [N] indices of the trials, each once; also column `trial` of a sweep's own table.
        held_out: losses of each sequence, as far as they are known.
        repeats: of configurations, in a table of `configurations`; else there are none.
        left_out: number of rows of a file that Optuna or W&B did not complete, by its word for it.
        infeasible: completed trials outside of the sweep's outcome constraints, which no front may have.
        objective: column and goal of the sweep's first one; None if it is not known, as in a file of cells.
    """

    frame: pd.DataFrame
    is_sweep: bool
    trials: npt.NDArray[np.int64]
    held_out: HeldOut = field(default_factory=lambda: HeldOut({}), repr=False)
    repeats: Repeats = field(default_factory=lambda: Repeats(runs={}, spreads={}), repr=False)
    left_out: Mapping[str, int] = field(default_factory=dict, repr=False)
    infeasible: Collection[int] = field(default=(), repr=False)
    objective: tuple[str, str] | None = field(default=None, repr=False)
    _numbers: dict[str, pd.Series[Any]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_frame(cls, table: pd.DataFrame | TrialsTable) -> TrialsTable:
        """Check a table; one that was checked before is returned as it is.

        Of tables put together, some may lack the column of all attempts' seconds: there it is `seconds`.

        Raises:
            TableError: it is no DataFrame, or a column's name appears twice.
            AnalysisError: column `trial` of a sweep's own table does not hold indices, each once, or one of
                seconds that is to be filled holds a text.
        """
        if isinstance(table, TrialsTable):
            return table
        if not isinstance(table, pd.DataFrame):
            raise TableError(f"{table!r:.80}", "give a DataFrame; `analysis.table.read` makes one of a file")
        if not all(isinstance(name, str) for name in table.columns):
            table = table.rename(columns=str)
        refuse_repeated(table.columns, "the table")
        if not table.index.is_unique:  # of tables that were put together
            table = table.reset_index(drop=True)
        if not set(table.columns) >= OWN_COLUMNS:
            return cls(table, is_sweep=False, trials=np.arange(len(table), dtype=np.int64))
        values = _numbers_of(table, "trial")
        for row in np.flatnonzero(~(values >= 0) | (values % 1 != 0) | values.duplicated()):
            cell = table["trial"].iloc[row]
            shown = cell.item() if isinstance(cell, np.generic) else cell
            raise AnalysisError(
                f"column 'trial': row {row} holds {shown!r}; it must hold each trial's index once"
            )
        if MACHINE_SECONDS in table and "seconds" in table:
            longer = table[MACHINE_SECONDS]
            if (longer.isna() & table["seconds"].notna()).any():  # put together with a table that lacks it
                longer = _numbers_of(table, MACHINE_SECONDS).fillna(_numbers_of(table, "seconds"))
                table = table.assign(**{MACHINE_SECONDS: longer})
        trials = values.to_numpy("int64")
        outside: list[int] = []
        if INFEASIBLE in table:  # as text: where it is not known in each row, its column is of objects
            outside = trials[[str(cell).lower() == "true" for cell in table[INFEASIBLE]]].tolist()
        return cls(table.assign(trial=trials), is_sweep=True, trials=trials, infeasible=tuple(outside))

    @classmethod
    def open(cls, path: str | Path) -> TrialsTable:
        """Read a table from a file, with the losses of each sequence if it has them.

        Rows of a table of Optuna or W&B that did not complete are left out.

        Raises:
            AnalysisError: see `files.read`, and `from_frame`.
        """
        table = replace(cls.from_frame(read(path)), held_out=HeldOut.from_document(read_held_out(path)))
        left_out = incomplete(table.frame)
        if not left_out:
            return table
        rows = np.array([row for row in range(len(table)) if row not in left_out], dtype=np.intp)
        return replace(table.take(rows), left_out=dict(Counter(left_out.values())))

    @classmethod
    def from_document(cls, document: object, *, source: str = "document") -> TrialsTable:
        """Return the table of an export document, with the losses of each sequence if it has them.

        Raises:
            TableError: see `files.from_document`, and `from_frame`.
        """
        table = cls.from_frame(from_document(document, source=source))
        fields = document if isinstance(document, Mapping) else {}
        return replace(
            table, held_out=HeldOut.from_document(fields.get("held_out")), objective=_first_objective(fields)
        )

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, column: str) -> bool:
        return column in self.frame.columns

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return list(self.frame.columns)

    @property
    def parameters(self) -> list[str]:
        """Return the columns of the parameters, with their prefix."""
        return [name for name in self.frame.columns if name.startswith(PARAMETER)]

    @cached_property
    def completed(self) -> npt.NDArray[np.bool_]:
        """Return [N] whether each trial has completed, and is a result: not one below the sweep's target."""
        if not self.is_sweep:
            return np.ones(len(self), dtype=np.bool_)
        return self.has_status("completed") & (self.frame["generator"] != FIDELITY).to_numpy(dtype=np.bool_)

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Return [N] whether each trial has completed within the sweep's outcome constraints."""
        return self.completed & ~np.isin(self.trials, list(self.infeasible))

    @cached_property
    def configurations(self) -> TrialsTable:
        """Return the table with each confirmed configuration as one row (see `by_configuration`)."""
        return by_configuration(self)

    @cached_property
    def row_of(self) -> Mapping[int, int]:
        """Return the zero-based row of each trial, by its index."""
        return {trial: row for row, trial in enumerate(self.trials.tolist())}

    @cached_property
    def stages(self) -> tuple[tuple[Stage, ...], ...]:
        """Return [N] the stages of each trial; () for one without any."""
        if STAGES not in self:
            return ((),) * len(self)
        cells = zip(self.frame[STAGES].tolist(), self.trials.tolist(), strict=True)
        return tuple(parse(cell, trial) for cell, trial in cells)

    @cached_property
    def points(self) -> tuple[tuple[Point, ...], ...]:
        """Return [N] the points of trunks that each trial published."""
        if POINTS not in self:
            return ((),) * len(self)
        return tuple(map(parse_points, self.frame[POINTS].tolist()))

    @property
    def reused_seconds(self) -> Floats:
        """Return [N] what others took for what each trial did not compute of its stages.

        In seconds of machines, as column MACHINE_SECONDS: on as many hosts as the trial has.
        """
        # In tables put together, some may lack the column: theirs have one host.
        hosts = self.numbers(HOSTS).fillna(1).to_numpy("float64") if HOSTS in self else 1.0
        return hosts * np.array(
            [total(stage.not_paid(stage.seconds) for stage in row) for row in self.stages]
        )

    @property
    def length_columns(self) -> tuple[str, str] | None:
        """Return the columns of the steps of Stage 1.9 and Stage 2, None if there are none."""
        return next((pair for pair in STEP_COLUMNS if set(pair) <= set(self.frame.columns)), None)

    def has_status(self, *statuses: str) -> npt.NDArray[np.bool_]:
        """Return [N] whether the status of each trial of a sweep is one of these."""
        return self.frame["status"].isin(statuses).to_numpy(dtype=np.bool_)

    def is_known(self, column: str) -> bool:
        """Return whether there is such a column with at least one value."""
        return column in self and bool(self.frame[column].notna().any())

    def numbers(self, column: str) -> pd.Series[Any]:
        """Return a column as [N] int64 or float64, NaN for missing values.

        Raises:
            MissingColumn: there is none of that name.
            NotNumeric: a value is neither a number nor missing.
        """
        if not isinstance(column, str):
            raise MissingColumn(column, self.columns)
        if column not in self._numbers:
            self._numbers[column] = _numbers_of(self.frame, column)
        return self._numbers[column]

    def floats(self, column: str) -> Floats:
        """Return `numbers` as an array [N] of float64."""
        return self.numbers(column).to_numpy("float64")

    def standard_errors(self, column: str) -> Floats:
        """Return the [N] standard errors of a column, NaN for each one that is not known."""
        try:
            errors = self.floats(column + SEM)
        except (MissingColumn, NotNumeric):
            return np.full(len(self), np.nan)  # a point without its error is still a point
        return np.where(np.isfinite(errors) & (errors > 0), errors, np.nan)

    def take(self, rows: Rows) -> TrialsTable:
        """Return the table of some of the rows, in the order of their positions."""
        return replace(self, frame=self.frame.iloc[rows], trials=self.trials[rows])

    def assign(self, **columns: Any) -> TrialsTable:
        """Return the table with further columns, which are not those of every trial."""
        return replace(self, frame=self.frame.assign(**columns))

    def with_effective_steps(self) -> TrialsTable:
        """Return the table with `effective_steps`, computed from the lengths of the stages if missing."""
        if "effective_steps" in self or self.length_columns is None:
            return self
        stage1_9, stage2 = (self.numbers(column) for column in self.length_columns)
        return self.assign(effective_steps=effective_steps(stage1_9, stage2))


TableLike = pd.DataFrame | TrialsTable
"""Argument of the functions that users call; they check a DataFrame with `TrialsTable.from_frame`."""


def seed_columns(table: TrialsTable) -> list[str]:
    """Return the parameters that are no part of a configuration: the seed, and all that confirming adds."""
    confirming = is_confirming(table)
    if not confirming.any():
        return [name for name in table.parameters if is_seed(name) or name == EVAL_TEST]

    def differs_in_repeats(name: str) -> bool:
        """Return whether the search has one value or none, and the fresh runs have others, as of a seed."""
        keys = np.array(_keys(table, [name]), dtype=object)
        known, fresh = ({key for key in keys[rows] if key} for rows in (~confirming, confirming))
        return len(known) < 2 and bool(fresh) and not fresh & known

    has_search = not confirming.all()
    return [
        name
        for name in table.parameters
        if is_seed(name) or name == EVAL_TEST or (has_search and differs_in_repeats(name))
    ]


def configuration_keys(table: TrialsTable) -> list[str]:
    """Return a text for each row that is equal where all parameters are, but the `seed_columns`."""
    left_out = seed_columns(table)
    return _keys(table, [name for name in table.parameters if name not in left_out])


def _keys(table: TrialsTable, names: Sequence[str]) -> list[str]:
    columns = [[_key(cell) for cell in table.frame[name].tolist()] for name in names]
    return ["\0".join(cells) for cells in zip(*columns, strict=True)] if columns else [""] * len(table)


def _key(cell: object) -> str:
    """Return a text for a cell; a number that a file has made a float is still the same."""
    if cell is None or cell is pd.NA or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    return repr(float(cell)) if isinstance(cell, int | float) and not isinstance(cell, bool) else repr(cell)


def is_confirming(table: TrialsTable) -> npt.NDArray[np.bool_]:
    """Return [N] whether each row is a run of `sweep confirm`."""
    if not table.is_sweep:
        return np.zeros(len(table), dtype=np.bool_)
    return (table.frame["generator"] == CONFIRM).to_numpy(dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class _Configuration:
    """Rows of the completed trials of one configuration: of the search, and its fresh runs.

    Args:
        stands: the row that stands for it: the best of the search, as in a confirmation, or its first one if
            the objective is not known; without any, the first fresh run.
        has_failed: with a fresh seed, by its own parameters, and was not confirmed anew since.
    """

    stands: int
    searched: tuple[int, ...]
    fresh: tuple[int, ...]
    has_failed: bool

    @property
    def is_confirmed(self) -> bool:
        return len(self.fresh) >= MIN_RUNS and not self.has_failed

    @property
    def shown(self) -> set[int]:
        return {self.stands} if self.is_confirmed else {self.stands, *self.searched}

    @property
    def repeats(self) -> tuple[int, ...]:
        """Return the runs that differ by their seed; no observation that was selected is among fresh ones."""
        return self.fresh if len(self.fresh) >= MIN_RUNS else self.searched


def by_configuration(table: TrialsTable) -> TrialsTable:
    """Return the table with one row for each confirmed configuration, and errors that include the seeds.

    A confirmed configuration stands under one of its trials, with the means over its fresh runs. Runs that do
    not confirm it are left out. Where configurations were repeated, `<metric>_sem` includes the spread over
    seeds (see above). A table without repeats, or of configurations, is returned as it is.
    """
    confirming = is_confirming(table)
    done = bool(table.repeats.runs or table.repeats.spreads)
    if done or not table.is_sweep or not (confirming.any() or any(map(is_seed, table.parameters))):
        return table
    groups: dict[str, list[int]] = defaultdict(list)
    keys, order = configuration_keys(table), np.argsort(table.trials, kind="stable")
    for row in order[table.completed[order]].tolist():
        groups[keys[row]].append(row)
    failed = confirming & table.has_status("failed")
    if FAILURE in table:  # not in tables of before there was the column
        failed &= ~table.frame[FAILURE].isin((LOST,)).to_numpy(dtype=np.bool_)
    seeds = _keys(table, seed_columns(table))
    results = [
        (keys[row], seeds[row], True if table.completed[row] else False if failed[row] else None)
        for row in order[confirming[order]].tolist()
    ]
    failures = failed_configurations(results)
    losses = _losses(table)
    configurations = [
        _Configuration(
            stands=min(rows, key=lambda row: (confirming[row], losses[row])),  # of equals, the first
            searched=tuple(row for row in rows if not confirming[row]),
            fresh=tuple(row for row in rows if confirming[row]),
            has_failed=key in failures,
        )
        for key, rows in groups.items()
    ]
    if not confirming.any() and all(len(c.repeats) < MIN_RUNS for c in configurations):
        return table
    means = {c.stands: c.fresh for c in configurations if c.is_confirmed}
    kept = {row for c in configurations for row in c.shown}
    kept |= set(np.flatnonzero(~table.completed & ~confirming).tolist())
    frame, spreads = _with_errors(table, means, [c.repeats for c in configurations])
    names = table.trials.tolist()
    runs = {names[row]: tuple(names[run] for run in fresh) for row, fresh in means.items()}
    shown = replace(table, frame=frame, repeats=Repeats(runs=runs, spreads=spreads))
    return shown.take(np.array(sorted(kept), dtype=np.intp))


def _first_objective(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the column and the goal of the first objective of an export document, None if there is none."""
    try:
        first = document["objectives"][0]
        return metric_column(first["metric"]), first.get("goal", "minimize")
    except (LookupError, TypeError, AttributeError):  # of another program; who needs them says what is wrong
        return None


def _losses(table: TrialsTable) -> Floats:
    """Return the first objective [N], lower is better; the same for all if it is not known."""
    if table.objective is None:
        return np.zeros(len(table))
    metric, goal = table.objective
    try:
        values = table.floats(metric)
    except (MissingColumn, NotNumeric):
        return np.zeros(len(table))
    return np.where(np.isfinite(values), -values if goal == "maximize" else values, np.inf)


def _with_errors(
    table: TrialsTable, means: Mapping[int, tuple[int, ...]], repeats: Sequence[tuple[int, ...]]
) -> tuple[pd.DataFrame, Mapping[str, Spread]]:
    """Return the frame with the means of confirmed rows and errors that include the seeds; the spreads."""
    columns: dict[str, Any] = {}
    spreads: dict[str, Spread] = {}
    seeds = _keys(table, seed_columns(table))
    trials = table.trials.tolist()
    for name in _metrics(table):
        values, sems = table.floats(name).copy(), table.standard_errors(name)
        spread = _spread(values, seeds, repeats)
        runs = np.ones(len(table))
        texts = np.nan_to_num(sems)  # errors from the text, 0 where unknown
        for row, fresh in means.items():  # runs of one configuration share theirs
            factors = table.held_out.factors(name, [[trials[run] for run in fresh]])
            joint = float(np.sqrt((factors**2).sum()))
            texts[row] = joint or np.sqrt(np.mean(np.nan_to_num(sems[list(fresh)]) ** 2))
        for row, fresh in means.items():
            known = [run for run in fresh if np.isfinite(table.floats(name)[run])]
            runs[row] = max(1, len(known))
            values[row] = table.floats(name)[known].mean() if known else np.nan
        if means:
            columns[name] = values
        if name in (NOMINAL, PAID):  # what was paid is known without an error
            continue
        if spread is not None and (spread.sd or means or name + SEM in table):  # steps are those of any seed
            spreads[name] = spread
            total = np.hypot(texts, spread.sd / np.sqrt(runs))
            columns[name + SEM] = np.where(np.isfinite(values) & (total > 0), total, np.nan)
    return table.frame.assign(**columns), spreads


def _metrics(table: TrialsTable) -> list[str]:
    """Return the columns of numbers that seeds may vary."""
    fixed = {*RESERVED, *table.parameters} - {"seconds", MACHINE_SECONDS, NOMINAL, PAID}
    frame = table.frame
    return [
        name
        for name in table.columns
        if name not in fixed
        and not (name.endswith(SEM) and name.removesuffix(SEM) in table)
        and types.is_numeric_dtype(frame[name])
        and not types.is_bool_dtype(frame[name])
    ]


def _spread(values: Floats, seeds: Sequence[str], repeats: Sequence[tuple[int, ...]]) -> Spread | None:
    """Return the pooled spread of groups of runs with different seeds; None without any."""
    squares, freedom = 0.0, 0
    for rows in repeats:
        distinct = {seeds[row]: values[row] for row in reversed(rows) if np.isfinite(values[row])}
        found = np.array(list(distinct.values()))
        if found.size >= MIN_RUNS:
            found = found - found[0]  # equal runs have no spread, whatever the rounding of their mean
            squares += float(((found - found.mean()) ** 2).sum())
            freedom += found.size - 1
    return Spread(sd=float(np.sqrt(squares / freedom)), freedom=freedom) if freedom else None


def is_finite(value: object) -> bool:
    """Return whether it is a finite number, of Python or NumPy."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _numbers_of(table: pd.DataFrame, column: str) -> pd.Series[Any]:
    if column not in table.columns:
        raise MissingColumn(column, list(table.columns))
    values = table[column]
    if types.is_numeric_dtype(values) and not types.is_bool_dtype(values):
        plain = isinstance(values.dtype, np.dtype) and values.dtype.kind in "if"
        return values if plain else _float_series(values.to_numpy("float64", na_value=np.nan), values)
    numbers = []
    for row, value in enumerate(values):
        try:
            numbers.append(_number(value))
        except (TypeError, ValueError, OverflowError):
            raise NotNumeric(column, row, value) from None
    return _float_series(numbers, values)


def _float_series(numbers: npt.ArrayLike, like: pd.Series[Any]) -> pd.Series[Any]:
    return pd.Series(np.asarray(numbers, dtype=np.float64), index=like.index, name=like.name)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number here")
    if isinstance(value, Real | Decimal | str):
        return float(value)
    if value is None or value is pd.NA or value is pd.NaT:
        return math.nan
    raise TypeError(type(value).__name__)
