"""Layout of a drawing of trunks and branches, for the report and for pictures alike.

Each trunk is a line over the compute of its stage, from left to right. Where a branch leaves it, a line goes
down to the branch's own row and on to the stage's end. Those that leave last have the topmost rows, so that
no two lines cross.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from analysis import labels
from analysis.report.style import BLUE, GREY, ORANGE, PURPLE
from analysis.statistics.pareto import Goal
from analysis.summaries.trunks import Branch, Trunk
from sweeps.text.counted import counted

TRUNKS, ENDS = 6, 8
"""Most trunks of a stage, and most ends of each, that are drawn."""

GAP = 1.0
"""Rows between two trunks."""

HEAD = 3.0
"""Rows above the first trunk, for the labels of its parts."""

BELOW = 1.6
"""Rows from a trunk to its first end, if the trunk goes on beyond that."""

NAME = 26
"""Most characters of a line of a trunk's name."""

PARTS = ("trunk: shared by its ends", "point to branch off at (hollow: removed)", "decay: each end its own")
"""Parts of the first trunk, as they are labelled."""


@dataclass(frozen=True, kw_only=True)
class End:
    """A branch as it is drawn: from `leaves` on the trunk's row down to row `y` and on to `end`.

    Args:
        y: its row, of the same unit as the trunk's.
        colour: of its value.
        text: its value and its trials.
    """

    branch: Branch
    y: float
    colour: str
    is_best: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """A trunk as it is drawn; `y` grows downwards from 0."""

    trunk: Trunk
    y: float
    name: tuple[str, ...]
    ends: tuple[End, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A drawing of a stage's trunks.

    Args:
        rows: height of the drawing.
        reach: largest compute in it.
        left_out: what is not drawn, in words; "" if all is.
    """

    stage: str
    lines: tuple[Line, ...]
    rows: float
    reach: float
    left_out: str

    @property
    def ends(self) -> tuple[End, ...]:
        """Return the ends of all trunks."""
        return tuple(end for line in self.lines for end in line.ends)

    def landmarks(self) -> tuple[tuple[str, float, float, float], ...]:
        """Return labels of the first trunk's parts, as (text, compute, row, rows above that).

        Each text begins above what it is about, lower than those to its left, so that no line down to a
        trunk crosses another's text, however short the trunk is.
        """
        line, (trunk, point, decay) = self.lines[0], PARTS
        first = line.ends[0]
        places = [(decay, first.branch.leaves + 0.01 * self.reach, first.y, 0.7)]
        costs = [point.cost for point in line.trunk.points if point.cost < first.branch.leaves]
        if costs:
            middle = min(costs, key=lambda cost: abs(cost - 0.5 * line.trunk.reach))
            places.append((point, middle, line.y, 1.5))
        start = min(0.04 * self.reach, 0.5 * min(x for _, x, _, _ in places))
        return ((trunk, start, line.y, 2.3), *reversed(places))


def layouts(trunks: Sequence[Trunk], goal: Goal) -> tuple[Layout, ...]:
    """Return a drawing of each stage with trunks.

    Args:
        trunks: by stage, the best of each first.
    """
    stages = dict.fromkeys(trunk.stage for trunk in trunks)
    return tuple(_layout(stage, [t for t in trunks if t.stage == stage], goal) for stage in stages)


def _layout(stage: str, trunks: Sequence[Trunk], goal: Goal) -> Layout:
    sign = 1.0 if goal == "minimize" else -1.0
    shown = [(trunk, _shown(trunk, sign)) for trunk in trunks[:TRUNKS]]
    values = [sign * b.best for _, branches in shown for b in branches if b.best is not None]
    lines, y = [], 0.0
    for trunk, branches in shown:
        at, ends = y, []
        for nth, branch in enumerate(branches):
            if nth or branch.leaves < trunk.reach:  # the longest goes on in the trunk's own row
                y += 1 if nth else BELOW
            value = None if branch.best is None else sign * branch.best
            is_best = value is not None and value == min(values)
            colour = _colour(value, values)
            others = len(branch.trials) - 1
            none = "outside of the constraints" if branch.is_outside else "no result"
            text = f"{none} · trial {branch.best_trial}" + (f" and {others} more" if others else "")
            if branch.best is not None:
                best = f", best of {len(branch.trials)}" if others else ""
                text = f"{labels.number(branch.best)} · trial {branch.best_trial}{best}"
            ends.append(End(branch=branch, y=y, colour=colour, is_best=is_best, text=text))
        name = [f"trial {trunk.trial}"]
        for parameter, setting in trunk.parameters[:2]:
            text = f"{parameter.removeprefix(trunk.stage + '.')} {setting}"
            name.append(text if len(text) <= NAME else f"…{text[1 - NAME :]}")  # the value stands at the end
        lines.append(Line(trunk=trunk, y=at, name=tuple(name), ends=tuple(ends)))
        y += 1 + GAP
    reach = max(max(trunk.reach, *(branch.end for branch in branches)) for trunk, branches in shown)
    left_out = []
    if len(trunks) > len(shown):
        left_out.append(f"the best {len(shown)} of {counted(len(trunks), 'trunk')}")
    if any(len(trunk.branches) > len(branches) for trunk, branches in shown):
        left_out.append(
            f"of a trunk with more than {ENDS} ends the longest and the best of each range of lengths"
        )
    return Layout(
        stage=stage, lines=tuple(lines), rows=y - GAP, reach=reach or 1.0, left_out=", and ".join(left_out)
    )


def _shown(trunk: Trunk, sign: float) -> list[Branch]:
    """Return the branches to draw, in their order: the longest, then the best of each part of the lengths.

    The best of all would mostly be the longest few, and hide what the shorter ones lose.
    """
    longest, *others = trunk.branches
    others.sort(key=lambda b: float("inf") if b.best is None else sign * b.best)
    ends = [branch.end for branch in trunk.branches]
    width = (max(ends) - min(ends)) / (ENDS - 1) or 1.0
    parts = {int((branch.end - min(ends)) / width): branch for branch in reversed(others)}  # the best is last
    chosen = sorted(parts.values(), key=others.index)
    chosen += [branch for branch in others if branch not in chosen]
    kept = [longest, *chosen[: ENDS - 1]]
    return [branch for branch in trunk.branches if branch in kept]


def _colour(value: float | None, values: Iterable[float]) -> str:
    """Return a colour from blue, the best, through purple to orange.

    The scale ends at twice the median's distance from the best, so that one diverged run does not take all of
    it.
    """
    if value is None:
        return GREY
    ordered = sorted(values)
    best, span = ordered[0], 2 * (median(ordered) - ordered[0])
    share = min(1.0, (value - best) / span) if span > 0 else 0.0
    ends = (BLUE, PURPLE) if share < 0.5 else (PURPLE, ORANGE)
    part = 2 * share if share < 0.5 else 2 * share - 1
    channels = ([int(colour[at : at + 2], 16) for colour in ends] for at in (1, 3, 5))
    return "#" + "".join(f"{round(low + (high - low) * part):02x}" for low, high in channels)
