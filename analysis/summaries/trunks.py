"""Trunks of stages: which trials branched off each, where, and with what result.

With a warmup-stable-decay schedule, a run of fewer steps is the first part of a longer one, and a decay. The
part that trials of several lengths have in common is a trunk. A trial begins at a point of it that another
has stored, and computes its own decay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.errors import AnalysisError
from analysis.statistics.pareto import Floats, Goal
from analysis.statistics.stages import Point, Stage, branched, total
from analysis.summaries.prefixes import best_of, common_parameters, parameter_texts
from analysis.table import PARAMETER, TrialsTable


@dataclass(frozen=True, kw_only=True)
class Branch:
    """An end of a stage that trials left a trunk for; those of equal keys have one.

    Args:
        leaves: cost of the stage until the last point of the trunk that these trials had.
        end: cost of all of the stage.
        length: of the stage, in steps where a parameter has them, else its cost.
        trials: all that have it, by index.
        best: value of the metric among the completed ones; None without any.
        best_trial: the trial that has that value, else the first of all.
        is_outside: whether trials of it have ended, all of them outside of the outcome constraints.
    """

    leaves: float
    end: float
    length: float
    trials: tuple[int, ...]
    best: float | None
    best_trial: int
    is_outside: bool


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """A trunk that trials branched off.

    Args:
        trial: the first that computed a part of it.
        reach: cost of the stage until the furthest point that is known.
        points: by ascending step, each once.
        branches: longest first.
        nominal: cost of the stage for all trials that have it, as if each had computed it.
        paid: what these trials computed of it.
        parameters: that its trials have in common and that other trunks vary, (name, value) for people.
    """

    stage: str
    trial: int
    reach: float
    points: tuple[Point, ...]
    branches: tuple[Branch, ...]
    nominal: float
    paid: float
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def saved(self) -> float:
        """Return the share of the nominal cost that was not paid, 0 to 1."""
        return 1 - self.paid / self.nominal if self.nominal > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Values of the metric against the length of a stage; each point is (length, value).

    Args:
        in_steps: whether lengths are steps, else costs.
        trunks: for each trunk that led to several lengths, the best value at each.
    """

    stage: str
    in_steps: bool
    trunks: tuple[tuple[tuple[float, float], ...], ...]
    points: tuple[tuple[float, float], ...]
    best: tuple[float, float]
    trial: int


def trunks(table: TrialsTable, values: Floats, goal: Goal) -> tuple[Trunk, ...]:
    """Return the trunks that trials branched off: by stage in the order of the program, the best first.

    Args:
        table: of the trials that count, in the order of their indices.
        values: [N] of the metric, NaN where there is none.
    """
    found: list[Trunk] = []
    names = dict.fromkeys(stage.name for stages in table.stages for stage in stages)
    used = {stage.name for stages in table.stages for stage in branched(stages)}
    for stage in (_Stage(table, name) for name in names if name in used):
        groups = [rows for rows in stage.groups() if branched(stage.runs_in(rows))]
        common = common_parameters(table, {stage.name: groups})[stage.name]
        of_stage = [stage.trunk(rows, values, goal, common) for rows in groups]
        found += sorted(of_stage, key=lambda trunk: (_rank(trunk.branches, goal), trunk.trial))
    return tuple(found)


def lengths(table: TrialsTable, found: Sequence[Trunk], values: Floats, goal: Goal) -> tuple[Lengths, ...]:
    """Return the values against the length of each stage with trunks; stages of a single length are left out.

    Args:
        values: [N] of the metric, NaN where there is none or a trial is not to count.
    """
    curves = []
    for stage in (_Stage(table, name) for name in dict.fromkeys(trunk.stage for trunk in found)):
        rows = [row for row in stage.runs if np.isfinite(values[row])]
        if len({stage.lengths[row] for row in rows}) < 2:
            continue
        best = min(rows, key=lambda row: values[row] if goal == "minimize" else -values[row])
        lines = (_line(trunk.branches, goal) for trunk in found if trunk.stage == stage.name)
        curves.append(
            Lengths(
                stage=stage.name,
                in_steps=stage.in_steps,
                trunks=tuple(line for line in lines if len(line) > 1),
                points=tuple((stage.lengths[row], float(values[row])) for row in rows),
                best=(stage.lengths[best], float(values[best])),
                trial=int(table.trials[best]),
            )
        )
    return tuple(curves)


class _Stage:
    """A stage in all rows of the table.

    Attributes:
        runs: by row, for the trials that have ended it.
        points: by row, for those that have published any.
        in_steps: whether `lengths` are steps, else costs.
        lengths: by row of `runs`, in steps if all trials have a parameter of them.
    """

    def __init__(self, table: TrialsTable, name: str) -> None:
        self._table, self.name = table, name
        self.runs = {row: s for row, stages in enumerate(table.stages) for s in stages if s.name == name}
        found = ((row, [p for p in points if p.stage == name]) for row, points in enumerate(table.points))
        self.points = {row: points for row, points in found if points}
        try:
            steps = table.floats(f"{PARAMETER}{name}.max_steps")
        except AnalysisError:
            steps = np.full(len(table), np.nan)
        self.in_steps = all(np.isfinite(steps[row]) for row in self.runs)
        self.lengths = {
            row: float(steps[row]) if self.in_steps else run.cost for row, run in self.runs.items()
        }
        # Cost of the stage until the last point of the trunk that each row is known to have passed. A branch
        # may show more of the trial that it left than that trial's own record.
        self._passed: dict[int, float] = defaultdict(float)
        for row in {*self.runs, *self.points}:
            run = self.runs.get(row)
            self._passed[row] = max([self._passed[row], *(point.cost for point in self.points.get(row, ()))])
            if run is not None and run.branched_from is not None:
                self._passed[row] = max(self._passed[row], run.saved)
                if (source := table.row_of.get(run.branched_from)) is not None:
                    self._passed[source] = max(self._passed[source], run.saved)

    def runs_in(self, rows: Iterable[int]) -> list[Stage]:
        """Return the stage of those of the rows that have ended it."""
        return [self.runs[row] for row in rows if row in self.runs]

    def groups(self) -> list[list[int]]:
        """Return the rows of each trunk: they took parts of one another, or share a point or an end."""
        home = list(range(len(self._table)))

        def find(row: int) -> int:
            while home[row] != row:
                home[row] = home[home[row]]
                row = home[row]
            return row

        members, first = sorted({*self.runs, *self.points}), dict[str, int]()
        for row in members:
            keys = {f"point {point.key}" for point in self.points.get(row, ())}
            keys |= {f"end {run.key}" for run in self.runs_in([row]) if run.key}
            others = [first.setdefault(key, row) for key in keys]
            others += [self._table.row_of[t] for t in self._sources(row) if t in self._table.row_of]
            for other in others:
                home[find(row)] = find(other)
        groups: dict[int, list[int]] = defaultdict(list)
        for row in members:
            groups[find(row)].append(row)
        return list(groups.values())

    def _sources(self, row: int) -> set[int]:
        """Return the trials that a trial took a part of; a running one has that in its points alone."""
        found = {point.branched_from for point in self.points.get(row, ())}
        for run in self.runs_in([row]):
            found |= {run.branched_from, run.reused_from}
        return {trial for trial in found if trial is not None}

    def trunk(self, rows: Sequence[int], values: Floats, goal: Goal, common: Sequence[str]) -> Trunk:
        """Return the trunk of some rows.

        Args:
            rows: one of `groups`.
            values: [N] of the metric.
            common: columns of the parameters that set trunks apart.
        """
        points: dict[int, Point] = {}
        for point in (point for row in rows for point in self.points.get(row, ())):
            if point.step not in points or point.stored:  # several trials may have published one
                points[point.step] = point
        ends: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            if row in self.runs:
                ends[self.runs[row].key or f"trial {row}"].append(row)
        branches = [self._branch(of_end, values, goal) for of_end in ends.values()]
        started = [row for row in rows if not self._sources(row)]
        return Trunk(
            stage=self.name,
            trial=int(self._table.trials[min(started or rows)]),
            reach=max(self._passed[row] for row in rows),
            points=tuple(points[step] for step in sorted(points)),
            branches=tuple(sorted(branches, key=lambda branch: (-branch.leaves, -branch.end, branch.trials))),
            nominal=total(run.cost for run in self.runs_in(rows)),
            paid=total(run.paid for run in self.runs_in(rows)),
            parameters=parameter_texts(self._table, rows[0], common),
        )

    def _branch(self, rows: list[int], values: Floats, goal: Goal) -> Branch:
        end, trials = self.runs[rows[0]].cost, self._table.trials
        best = best_of(values[rows], goal)
        having = [row for row in rows if best is None or values[row] == best]
        return Branch(
            leaves=min(end, max(self._passed[row] for row in rows)),
            end=end,
            length=self.lengths[rows[0]],
            trials=tuple(trials[rows].tolist()),
            best=best,
            best_trial=int(trials[having[0]]),
            is_outside=best is None and bool(np.isin(trials[rows], list(self._table.infeasible)).any()),
        )


def _line(branches: Iterable[Branch], goal: Goal) -> tuple[tuple[float, float], ...]:
    """Return the best value at each length."""
    values: dict[float, list[float]] = defaultdict(list)
    for branch in branches:
        if branch.best is not None:
            values[branch.length].append(branch.best)
    best = min if goal == "minimize" else max
    return tuple((length, best(values[length])) for length in sorted(values))


def _rank(branches: Iterable[Branch], goal: Goal) -> float:
    values = [branch.best for branch in branches if branch.best is not None]
    if not values:
        return float("inf")
    return min(values) if goal == "minimize" else -max(values)
