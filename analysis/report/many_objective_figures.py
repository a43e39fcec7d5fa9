"""Figures of three objectives or more, one per pair."""

from __future__ import annotations

from analysis import labels
from analysis.report.figure import Figure, combine
from analysis.report.figures import hollow, step_of
from analysis.report.style import BLUE, CROWD, HEXAGON, scale
from analysis.report.vega_lite import POSITION, Axis, Drawing, Row, Series, tip_of
from analysis.summaries.many_objective import ManyObjectiveFront

ACROSS = 3
"""Most pairs in a row of a picture."""


def pair(found: ManyObjectiveFront, x: int, y: int, *, legend: bool = False) -> Figure:
    """Draw trials by two objectives: squares are on the front in all, the line is the front of the two."""
    across, up = found.objectives[x], found.objectives[y]
    drawing = Drawing(
        x=Axis(title=labels.title(across.metric), scale=scale(found.values[:, x].tolist()), count=5),
        y=Axis(title=labels.title(up.metric), scale=scale(found.values[:, y].tolist()), count=6),
        height=300,
        legend=legend,
    )

    def rows(members: list[int]) -> list[Row]:
        return [
            {"x": float(found.values[at, x]), "y": float(found.values[at, y]), "trial": found.trials[at]}
            for at in members
        ]

    confirmed = [at for at, trial in enumerate(found.trials) if trial in found.confirmed]
    beaten = sorted({*range(len(found.trials))} - {*found.front, *confirmed})
    line = Series(name="front of the two alone", colour=BLUE)
    drawing.line(line, rows(list(found.pair_front(x, y))), step=step_of(across.goal))
    square = Series(name="front in all objectives", colour=BLUE, shape="square", size=7, filled=not confirmed)
    kinds = [(hollow("not on the front", 8, crowd=len(beaten) > CROWD), beaten), (square, list(found.front))]
    if confirmed:
        name = labels.confirmed(*found.confirmed.values())
        kinds.append((Series(name=name, colour=BLUE, shape=HEXAGON, size=10), confirmed))
    for style, members in kinds:
        drawing.points(style, rows(members), tip=tip_of((), POSITION))
    return drawing.figure()


def pairs(found: ManyObjectiveFront) -> Figure:
    """Return one picture of all pairs of objectives, with a legend."""
    figures = [pair(found, x, y, legend=not nth) for nth, (x, y) in enumerate(found.pairs)]
    return combine(figures, columns=min(ACROSS, len(figures)), width=250)
