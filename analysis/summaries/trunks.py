"""Trunks of stages: which trials branched off each, where, and what came of it.

With a warmup-stable-decay schedule, a run of fewer steps is the first part of a longer one, and a decay. The
part that trials of several lengths have in common is a trunk. A trial begins at a point of it that another
has stored, and computes its own decay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.errors import AnalysisError
from analysis.statistics.pareto import Floats, Goal
from analysis.statistics.stages import Point, Stage, branched, total
from analysis.summaries.prefixes import best_of, common_parameters, described
from analysis.table import PARAMETER, TrialsTable

Runs = Mapping[int, Stage]
"""Rows of the table and what each had of one stage."""


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
    """

    leaves: float
    end: float
    length: float
    trials: tuple[int, ...]
    best: float | None
    best_trial: int


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """A trunk that trials branched off.

    Args:
        stage: its name.
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
        stage: its name.
        in_steps: whether lengths are steps, else costs.
        trunks: for each trunk that led to several lengths, the best value at each.
        points: of all trials.
        best: the best of all.
        trial: that has it.
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
        goal: whether less or more of it is better.
    """
    found = []
    names = dict.fromkeys(stage.name for stages in table.stages for stage in stages)
    used = {stage.name for stages in table.stages for stage in branched(stages)}
    for name in (name for name in names if name in used):
        runs = _runs(table, name)
        groups = [rows for rows in _groups(table, name, runs) if _is_branched(runs, rows)]
        common = common_parameters(table, {name: groups})[name]
        of_stage = [_trunk(table, name, runs, rows, values, goal, common) for rows in groups]
        found += sorted(of_stage, key=lambda trunk: (_rank(trunk.branches, goal), trunk.trial))
    return tuple(found)


def lengths(table: TrialsTable, found: Sequence[Trunk], values: Floats, goal: Goal) -> tuple[Lengths, ...]:
    """Return the values against the length of each stage with trunks; stages of a single length are left out.

    Args:
        table: as for `trunks`.
        found: what `trunks` returned.
        values: [N] of the metric, NaN where there is none or a trial is not to count.
        goal: whether less or more of it is better.
    """
    curves = []
    for stage in dict.fromkeys(trunk.stage for trunk in found):
        runs = _runs(table, stage)
        at, in_steps = _lengths(table, stage, runs)
        rows = [row for row in runs if np.isfinite(values[row])]
        if len({at[row] for row in rows}) < 2:
            continue
        best = min(rows, key=lambda row: values[row] if goal == "minimize" else -values[row])
        lines = (_line(trunk.branches, goal) for trunk in found if trunk.stage == stage)
        curves.append(
            Lengths(
                stage=stage,
                in_steps=in_steps,
                trunks=tuple(line for line in lines if len(line) > 1),
                points=tuple((at[row], float(values[row])) for row in rows),
                best=(at[best], float(values[best])),
                trial=int(table.trials[best]),
            )
        )
    return tuple(curves)


def _runs(table: TrialsTable, name: str) -> dict[int, Stage]:
    return {row: stage for row, stages in enumerate(table.stages) for stage in stages if stage.name == name}


def _points(table: TrialsTable, name: str, row: int) -> list[Point]:
    return [point for point in table.points[row] if point.stage == name]


def _groups(table: TrialsTable, name: str, runs: Runs) -> list[list[int]]:
    """Return the rows of each trunk: they branched off one another, or share a point or the stage's end."""
    home = list(range(len(table)))

    def find(row: int) -> int:
        while home[row] != row:
            home[row] = home[home[row]]
            row = home[row]
        return row

    first: dict[str, int] = {}
    members = []
    for row in range(len(table)):
        keys = {f"point {point.key}" for point in _points(table, name, row)}
        stage = runs.get(row)
        if stage is not None and stage.key:
            keys.add(f"end {stage.key}")
        others = [first.setdefault(key, row) for key in keys]
        others += [table.row_of[trial] for trial in _sources(table, name, runs, row) if trial in table.row_of]
        for other in others:
            home[find(row)] = find(other)
        if keys or stage is not None:
            members.append(row)
    groups: dict[int, list[int]] = defaultdict(list)
    for row in members:
        groups[find(row)].append(row)
    return list(groups.values())


def _sources(table: TrialsTable, name: str, runs: Runs, row: int) -> set[int]:
    """Return the trials whose trunk a trial took a part of; a running one has that in its points alone."""
    found = {point.branched_from for point in _points(table, name, row)}
    if row in runs:
        found |= {runs[row].branched_from, runs[row].reused_from}
    return {trial for trial in found if trial is not None}


def _is_branched(runs: Runs, rows: Iterable[int]) -> bool:
    return bool(branched(runs[row] for row in rows if row in runs))


def _trunk(
    table: TrialsTable,
    name: str,
    runs: Runs,
    rows: Sequence[int],
    values: Floats,
    goal: Goal,
    common: Sequence[str],
) -> Trunk:
    points: dict[int, Point] = {}
    for point in (point for row in rows for point in _points(table, name, row)):
        if point.step not in points or point.stored:  # several trials may have published one
            points[point.step] = point
    ends: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row in runs:
            ends[runs[row].key or f"trial {row}"].append(row)
    at, _ = _lengths(table, name, runs)
    branches = [_branch(table, name, runs, at, of_end, values, goal) for of_end in ends.values()]
    started = [row for row in rows if not _sources(table, name, runs, row)]
    of_stage = [runs[row] for row in rows if row in runs]
    return Trunk(
        stage=name,
        trial=int(table.trials[min(started or rows)]),
        reach=max([branch.leaves for branch in branches] + [point.cost for point in points.values()]),
        points=tuple(points[step] for step in sorted(points)),
        branches=tuple(sorted(branches, key=lambda branch: (-branch.leaves, -branch.end, branch.trials))),
        nominal=total(stage.cost for stage in of_stage),
        paid=total(stage.paid for stage in of_stage),
        parameters=described(table, rows[0], common),
    )


def _branch(
    table: TrialsTable,
    name: str,
    runs: Runs,
    at: Mapping[int, float],
    rows: Sequence[int],
    values: Floats,
    goal: Goal,
) -> Branch:
    end = runs[rows[0]].cost
    passed = [runs[row].saved for row in rows]
    passed += [point.cost for row in rows for point in _points(table, name, row)]
    best = best_of(values[list(rows)], goal)
    having = [row for row in rows if best is None or values[row] == best]
    return Branch(
        leaves=min(end, max(passed)),
        end=end,
        length=at[rows[0]],
        trials=tuple(table.trials[list(rows)].tolist()),
        best=best,
        best_trial=int(table.trials[having[0]]),
    )


def _lengths(table: TrialsTable, stage: str, runs: Runs) -> tuple[dict[int, float], bool]:
    """Return by row the length of a stage, in steps if all trials have a parameter of them, else its cost."""
    try:
        steps = table.floats(f"{PARAMETER}{stage}.max_steps")
    except AnalysisError:
        steps = np.full(len(table), np.nan)
    in_steps = all(np.isfinite(steps[row]) for row in runs)
    return {row: float(steps[row]) if in_steps else run.cost for row, run in runs.items()}, in_steps


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
