"""The tree of prefixes: stages' ends that trials have in common, with what each cost and saved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis import labels
from analysis.statistics.pareto import Floats, Goal
from analysis.statistics.stages import Stage, computed, reused, total
from analysis.table import PARAMETER, TrialsTable, is_confirming


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """A stage's end and the trials that have it in common.

    A row may stand for several prefixes that one trial each has: nothing was saved there.

    Args:
        count: number of prefixes that the row stands for.
        depth: number of prefixes that it goes on from.
        computed_by: the trials that computed it, by index: one, unless some could not wait for it, or had to
            compute it again.
        cost: of computing the stage once; the mean of several prefixes.
        paid: cost of the stage, as often as it was computed.
        rest: cost of the later stages of the trials that share nothing beyond it.
        saved: cost of the stage for the trials that reused it, and of the beginnings of stages that trials
            took from a trunk.
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
    reused: bool = False

    @property
    def is_alone(self) -> bool:
        return len(self.rows) == 1 and not self.reused


def prefixes(table: TrialsTable, values: Floats, goal: Goal) -> tuple[Prefix, ...]:
    """Return the prefixes of a sweep's own trials, each before those that go on from it.

    Args:
        values: [N] of the metric, NaN where there is none.
    """
    nodes = _nodes(table)
    rows: dict[str, list[list[int]]] = defaultdict(list)
    for node in nodes.values():
        rows[node.stage.name].append(node.rows)
    common = common_parameters(table, rows)
    for key, node in reversed(list(nodes.items())):  # what one trial alone has is a later stage of that trial
        if node.is_alone and node.parent:
            nodes[node.parent].rest += node.paid + node.rest
            nodes[node.parent].saved += node.saved
            del nodes[key]
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
            best=best_of(values[node.rows], goal),
            parameters=parameter_texts(table, node.rows[0], common[node.stage.name]),
        )

    def below(parent: str, depth: int) -> Iterator[Prefix]:
        for key in sorted(children[parent], key=lambda key: (-len(nodes[key].rows), nodes[key].rows[0])):
            yield row(nodes[key], depth)
            yield from below(key, depth + 1)

    last = [_together([row(node, 0) for node in alone], goal)] if alone else []
    return (*below("", 0), *last)


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
        cost=total(row.cost for row in rows) / len(rows),
        paid=paid,
        rest=total(row.rest for row in rows),
        saved=total(row.saved for row in rows),
        best=best_of(np.array([math.nan if row.best is None else row.best for row in rows]), goal),
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
            node.reused |= stage.reused_from is not None
            node.paid += stage.paid
            node.saved += stage.cost - stage.paid
            parent = key
        if path:
            later = [stage for stage in computed(stages) if stage not in path]
            nodes[parent].rest += total(stage.paid for stage in later)
            nodes[parent].saved += total(stage.saved for stage in later)
    return nodes


def best_of(values: Floats, goal: Goal) -> float | None:
    """Return the best of values [N]; None if all are missing."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    return float(finite.min() if goal == "minimize" else finite.max())


def common_parameters(
    table: TrialsTable, rows: Mapping[str, Sequence[Sequence[int]]]
) -> Mapping[str, Sequence[str]]:
    """Return by stage the parameters that are equal within each group of its rows and vary between them."""
    found: dict[str, list[str]] = {}
    for stage, groups in rows.items():
        earlier = {name for names in found.values() for name in names}
        found[stage] = []
        for name in (name for name in table.parameters if name not in earlier):
            cells = table.frame[name].map(labels.cell).tolist()
            values = [{cells[row] for row in group} for group in groups]
            if all(len(each) == 1 for each in values) and len(set().union(*values)) > 1:
                found[stage].append(name)
    return found


def parameter_texts(table: TrialsTable, row: int, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return columns of parameters in a row, as (name, value) for people; without those that it lacks."""
    cells = table.frame.iloc[row]
    shown = ((name.removeprefix(PARAMETER), labels.cell(cells[name])) for name in names)
    return tuple((name, value) for name, value in shown if value != labels.MISSING)
