"""Stages that trials shared: the tree of prefixes, what was saved, and the best value against paid compute.

A prefix is a stage's end that trials have in common: they agree in everything up to there. Its first trial
computes it, the others start from that trial's snapshot. Costs are nominal where each trial counts as if it
had computed all of its stages, and paid where each stage counts for the trial that computed it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis import labels
from analysis.errors import AnalysisError
from analysis.statistics.pareto import Floats, Goal
from analysis.statistics.stages import Stage, computed, reused, total
from analysis.table import PARAMETER, TrialsTable, is_confirming

IMPORTED = "imported"
STEPS = "effective_steps"


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """A stage's end and the trials that have it in common.

    A row may stand for several prefixes that one trial each has: nothing was saved there.

    Args:
        stage: its name.
        count: number of prefixes that the row stands for.
        depth: number of prefixes that it goes on from.
        computed_by: the trials that computed it, by index: one, unless some could not wait for it, or had to
            compute it again.
        trials: all that have it.
        cost: of computing the stage once; the mean of several prefixes.
        paid: cost of the stage, as often as it was computed.
        rest: cost of the later stages of the trials that share nothing beyond it.
        saved: cost of the stage for the trials that reused it.
        best: value of the metric among its completed trials; None without any.
        parameters: that its trials have in common and that other prefixes vary, (name, value) for people.
    """

    stage: str
    count: int = 1
    depth: int
    computed_by: tuple[int, ...]
    trials: tuple[int, ...]
    cost: float
    paid: float
    rest: float
    saved: float
    best: float | None
    parameters: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """The stages that a sweep's trials shared, and their costs.

    Args:
        prefixes: each before those that go on from it, and those of most trials first; all that one trial
            alone has are one row at the end.
        nominal: cost of all trials but imported ones, as if each had computed all of its stages.
        paid: cost of what was computed.
        stages: number of stages that were reused.
        unit: of the costs in words; "" if unknown.
        unknown: number of trials that ran and whose cost is not known.
        trials: [M] indices of the search's trials in order, without those of a confirmation.
        nominal_until, paid_until: [M] costs of the search up to and including each of them.
        best: [M] best value of the metric so far, NaN before the first.
    """

    prefixes: tuple[Prefix, ...]
    nominal: float
    paid: float
    stages: int
    unit: str
    unknown: int
    trials: tuple[int, ...]
    nominal_until: Floats
    paid_until: Floats
    best: Floats

    @property
    def saved(self) -> float:
        """Return the share of the nominal cost that was not paid, 0 to 1."""
        return 1 - self.paid / self.nominal if self.nominal > 0 else 0.0

    def to_json(self) -> dict[str, float | int | str]:
        """Return the totals, as `sweep pareto --format json` shows them."""
        return {
            "nominal": self.nominal,
            "paid": self.paid,
            "saved": self.saved,
            "reused_stages": self.stages,
            "unit": self.unit,
        }

    def summary(self) -> str:
        """Return the totals in one clause."""
        unit = f" {self.unit}" if self.unit else ""
        stages = labels.counted(self.stages, "reused stage")
        costs = f"{labels.number(self.paid)} of {labels.number(self.nominal)}{unit} paid"
        return f"{costs}; {labels.share(self.saved)} saved by {stages}"


def reuse(table: TrialsTable, metric: str, goal: Goal = "minimize") -> Reuse | None:
    """Return what the trials of a sweep shared; None if nothing was reused.

    Imported trials were paid for elsewhere and do not count. A trial without stages, of before stages were
    recorded, counts its effective steps, if the costs of the others are in these or proportional to them.

    Args:
        table: a sweep's own.
        metric: column of the first objective; values that are not numbers count as missing.
        goal: whether less or more of it is better.
    """
    if not table.is_sweep:
        return None
    table = table.take(np.argsort(table.trials, kind="stable"))
    table = table.take((table.frame["generator"] != IMPORTED).to_numpy(dtype=np.bool_))
    count = sum(len(reused(stages)) for stages in table.stages)
    if not count:
        return None
    nominal, paid, unit = _costs(table)
    searched = ~is_confirming(table)
    values = _values(table, metric)
    best = _best_so_far(np.where(table.completed & searched, values, np.nan), goal)
    ran = ~table.has_status("pending")
    return Reuse(
        prefixes=_prefixes(table, np.where(table.completed, values, np.nan), goal),
        nominal=float(np.nansum(nominal)),
        paid=float(np.nansum(paid)),
        stages=count,
        unit=unit,
        unknown=int((np.isnan(nominal) & ran).sum()),
        trials=tuple(table.trials[searched].tolist()),
        nominal_until=np.nancumsum(nominal[searched]),
        paid_until=np.nancumsum(paid[searched]),
        best=best[searched],
    )


def _costs(table: TrialsTable) -> tuple[Floats, Floats, str]:
    """Return [N] the nominal and paid costs, NaN where unknown, and their unit."""
    known = np.array([bool(stages) for stages in table.stages])
    nominal = np.array([total(stage.cost for stage in stages) for stages in table.stages])
    paid = np.array([total(stage.cost for stage in computed(stages)) for stages in table.stages])
    steps = _values(table, STEPS)
    both = known & table.completed & np.isfinite(steps)
    rate = steps[both].sum() / nominal[both].sum() if nominal[both].sum() > 0 else math.nan
    others = np.where(np.isfinite(steps), steps, np.nan) / (rate or math.nan)
    unit = "effective steps" if abs(rate - 1) < 1e-9 else ""
    return np.where(known, nominal, others), np.where(known, paid, others), unit


def _values(table: TrialsTable, column: str) -> Floats:
    try:
        return table.floats(column)
    except AnalysisError:
        return np.full(len(table), np.nan)


def _best_so_far(values: Floats, goal: Goal) -> Floats:
    sign = 1.0 if goal == "minimize" else -1.0
    finite = np.where(np.isfinite(values), sign * values, np.inf)
    best = np.minimum.accumulate(finite)
    return np.where(np.isfinite(best), sign * best, np.nan)


@dataclass
class _Node:
    """A prefix while its trials are collected; `rows` are those of the table."""

    stage: Stage
    parent: str
    rows: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    paid: float = 0.0
    rest: float = 0.0
    saved: float = 0.0

    @property
    def is_alone(self) -> bool:
        return len(self.rows) == 1 and not self.saved


def _prefixes(table: TrialsTable, values: Floats, goal: Goal) -> tuple[Prefix, ...]:
    nodes = _nodes(table)
    common = _common(table, nodes)
    _fold(nodes)
    children: dict[str, list[str]] = defaultdict(list)
    alone = []
    for key, node in nodes.items():
        if node.is_alone:
            alone.append(node)
        else:
            children[node.parent].append(key)

    def row(node: _Node, depth: int) -> Prefix:
        return Prefix(
            stage=node.stage.name,
            depth=depth,
            computed_by=tuple(table.trials[node.computed].tolist()),
            trials=tuple(table.trials[node.rows].tolist()),
            cost=node.stage.cost,
            paid=node.paid,
            rest=node.rest,
            saved=node.saved,
            best=_best_of(values[node.rows], goal),
            parameters=_described(table, node, common[node.stage.name]),
        )

    def below(parent: str, depth: int) -> Iterator[Prefix]:
        for key in sorted(children[parent], key=lambda key: (-len(nodes[key].rows), nodes[key].rows[0])):
            yield row(nodes[key], depth)
            yield from below(key, depth + 1)

    last = [_together([row(node, 0) for node in alone], goal)] if alone else []
    return (*below("", 0), *last)


def _fold(nodes: dict[str, _Node]) -> None:
    """Take prefixes beyond others that one trial alone has as later stages of that trial."""
    for key, node in reversed(list(nodes.items())):
        if node.is_alone and node.parent:
            nodes[node.parent].rest += node.paid + node.rest
            del nodes[key]


def _together(rows: Sequence[Prefix], goal: Goal) -> Prefix:
    """Return one row for prefixes that one trial each has."""
    if len(rows) == 1:
        return rows[0]
    trials = tuple(trial for row in rows for trial in row.trials)
    paid = total(row.paid for row in rows)
    return replace(
        rows[0],
        count=len(rows),
        computed_by=trials,
        trials=trials,
        cost=paid / len(rows),
        paid=paid,
        rest=total(row.rest for row in rows),
        best=_best_of(np.array([math.nan if row.best is None else row.best for row in rows]), goal),
        parameters=(),
    )


def _nodes(table: TrialsTable) -> dict[str, _Node]:
    """Return the prefixes by stage and key. A repeat of a confirmation is shown where it has reused one."""
    shared = {stage.name for stages in table.stages for stage in reused(stages)}
    confirming = is_confirming(table)
    nodes: dict[str, _Node] = {}
    for row, stages in enumerate(table.stages):
        if confirming[row] and not reused(stages):
            continue
        path = [stage for stage in stages if stage.key and stage.name in shared]
        parent = ""
        for stage in path:
            key = f"{stage.name}\0{stage.key}"
            node = nodes.setdefault(key, _Node(stage, parent))
            node.rows.append(row)
            if stage.reused_from is None:
                node.computed.append(row)
                node.paid += stage.cost
            else:
                node.saved += stage.cost
            parent = key
        if path:
            nodes[parent].rest += total(stage.cost for stage in computed(stages) if stage not in path)
    return nodes


def _best_of(values: Floats, goal: Goal) -> float | None:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    return float(finite.min() if goal == "minimize" else finite.max())


def _common(table: TrialsTable, nodes: Mapping[str, _Node]) -> Mapping[str, Sequence[str]]:
    """Return by stage the parameters that are equal within each of its prefixes and vary between them."""
    found: dict[str, list[str]] = {}
    for stage in dict.fromkeys(node.stage.name for node in nodes.values()):
        groups = [node.rows for node in nodes.values() if node.stage.name == stage]
        earlier = {name for names in found.values() for name in names}
        found[stage] = [
            name
            for name in table.parameters
            if name not in earlier and _is_common(table.frame[name].map(labels.cell).tolist(), groups)
        ]
    return found


def _is_common(cells: Sequence[str], groups: Sequence[Sequence[int]]) -> bool:
    within = [{cells[row] for row in rows} for rows in groups]
    return all(len(values) == 1 for values in within) and len(set().union(*within)) > 1


def _described(table: TrialsTable, node: _Node, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    cells = table.frame.iloc[node.rows[0]]
    shown = ((name.removeprefix(PARAMETER), labels.cell(cells[name])) for name in names)
    return tuple((name, value) for name, value in shown if value != labels.MISSING)
