"""Configurations: trials that differ in nothing but their seed, and those that `sweep confirm` ran again.

The best of many noisy numbers is too good to be true (the winner's curse). `sweep confirm` runs the best
trials again with fresh seeds, as trials of generator `confirm`. With two such runs a configuration is
confirmed: one point, at the mean of its fresh runs, without the observation that it was selected for.

The spread over seeds is pooled over all configurations with repeats (the residual variance of a one-way
analysis of variance), as two or three repeats of one say little. The error of a mean over k runs is
√(text² + spread²/k), where `text` is the error from the text. A part of `text` differs between seeds and is
counted twice: this errs to the large side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api import types

from analysis.statistics.pareto import Floats
from analysis.table.columns import SEED
from sweeps.text.columns import RESERVED, SEM

if TYPE_CHECKING:
    from analysis.table.trials_table import TrialsTable

CONFIRM = "confirm"
"""Generator of the trials that confirm others."""

MIN_RUNS = 2
"""Least fresh runs that confirm a configuration."""

EVAL_TEST = "param.eval.test"
"""Asks the trainer for the loss on the test text, as every fresh run does."""


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


def seed_columns(table: TrialsTable) -> list[str]:
    """Return the parameters that are no part of a configuration: the seed, and all that confirming adds."""
    confirming = is_confirming(table)
    if not confirming.any():
        return [name for name in (SEED, EVAL_TEST) if name in table]
    searched = table.frame[~confirming]
    return [
        name
        for name in table.parameters
        if name == EVAL_TEST or name.endswith(".seed") or (len(searched) and not searched[name].notna().any())
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
    """Rows of the completed trials of one configuration: of the search, and its fresh runs."""

    searched: tuple[int, ...]
    fresh: tuple[int, ...]

    @property
    def is_confirmed(self) -> bool:
        return len(self.fresh) >= MIN_RUNS

    @property
    def stands(self) -> int:
        """Return the row that stands for the configuration: its first trial, or else its first fresh run."""
        return (self.searched or self.fresh)[0]

    @property
    def shown(self) -> set[int]:
        return {self.stands} if self.is_confirmed else {self.stands, *self.searched}

    @property
    def repeats(self) -> tuple[int, ...]:
        """Return the runs that differ by their seed; no observation that was selected is among fresh ones."""
        return self.fresh if self.is_confirmed else self.searched


def by_configuration(table: TrialsTable) -> TrialsTable:
    """Return the table with one row for each confirmed configuration, and errors that include the seeds.

    A confirmed configuration stands under its first trial, with the means over its fresh runs. Runs that do
    not confirm yet are left out. Where configurations were repeated, `<metric>_sem` includes the spread over
    seeds (see above). A table without repeats, or of configurations, is returned as it is.
    """
    confirming = is_confirming(table)
    done = bool(table.repeats.runs or table.repeats.spreads)
    if done or not table.is_sweep or not (confirming.any() or SEED in table):
        return table
    configurations = _configurations(table, confirming)
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


def _configurations(table: TrialsTable, confirming: npt.NDArray[np.bool_]) -> list[_Configuration]:
    groups: dict[str, list[int]] = defaultdict(list)
    keys, order = configuration_keys(table), np.argsort(table.trials, kind="stable")
    for row in order[table.completed[order]].tolist():
        groups[keys[row]].append(row)
    return [
        _Configuration(
            searched=tuple(row for row in rows if not confirming[row]),
            fresh=tuple(row for row in rows if confirming[row]),
        )
        for rows in groups.values()
    ]


def _with_errors(
    table: TrialsTable, means: Mapping[int, tuple[int, ...]], repeats: Sequence[tuple[int, ...]]
) -> tuple[pd.DataFrame, Mapping[str, Spread]]:
    """Return the frame with the means of confirmed rows and errors that include the seeds; the spreads."""
    columns: dict[str, Any] = {}
    spreads: dict[str, Spread] = {}
    seeds = _keys(table, seed_columns(table))
    for name in _metrics(table, everything=bool(means)):
        values, sems = table.floats(name).copy(), table.standard_errors(name)
        spread = _spread(values, seeds, repeats)
        runs = np.ones(len(table))
        texts = _text_errors(table, name, sems, means)
        for row, fresh in means.items():
            known = [run for run in fresh if np.isfinite(table.floats(name)[run])]
            runs[row] = max(1, len(known))
            values[row] = table.floats(name)[known].mean() if known else np.nan
        if means:
            columns[name] = values
        if spread is not None:
            spreads[name] = spread
            total = np.hypot(texts, spread.sd / np.sqrt(runs))
            columns[name + SEM] = np.where(np.isfinite(values) & (total > 0), total, np.nan)
    return table.frame.assign(**columns), spreads


def _metrics(table: TrialsTable, *, everything: bool) -> list[str]:
    """Return the columns of numbers that seeds vary: those with a standard error, or all of them."""
    fixed = {*RESERVED, *table.parameters} - {"seconds"}
    names = [name for name in table.columns if name not in fixed and not _is_error(name, table)]
    frame = table.frame
    return [
        name
        for name in names
        if (everything or name + SEM in table)
        and types.is_numeric_dtype(frame[name])
        and not types.is_bool_dtype(frame[name])
    ]


def _is_error(name: str, table: TrialsTable) -> bool:
    return name.endswith(SEM) and name.removesuffix(SEM) in table


def _text_errors(table: TrialsTable, name: str, sems: Floats, means: Mapping[int, tuple[int, ...]]) -> Floats:
    """Return the [N] errors from the text, 0 where unknown; runs of one configuration share theirs."""
    texts = np.nan_to_num(sems)
    names = table.trials.tolist()
    for row, fresh in means.items():
        factors = table.held_out.factors(name, [[names[run] for run in fresh]])
        joint = float(np.sqrt((factors**2).sum()))
        texts[row] = joint or np.sqrt(np.mean(np.nan_to_num(sems[list(fresh)]) ** 2))
    return texts


def _spread(values: Floats, seeds: Sequence[str], repeats: Sequence[tuple[int, ...]]) -> Spread | None:
    """Return the pooled spread of groups of runs with different seeds; None without any."""
    squares, freedom = 0.0, 0
    for rows in repeats:
        distinct = {seeds[row]: values[row] for row in reversed(rows) if np.isfinite(values[row])}
        found = np.array(list(distinct.values()))
        if found.size >= MIN_RUNS:
            squares += float(((found - found.mean()) ** 2).sum())
            freedom += found.size - 1
    return Spread(sd=float(np.sqrt(squares / freedom)), freedom=freedom) if freedom else None
