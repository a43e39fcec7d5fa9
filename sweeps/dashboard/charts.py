"""Curves as SVG without a style of its own: classes, which the style sheet colours for light and dark.

A chart is drawn for a card as wide as a phone; wider screens show several beside each other. The style sheet
chooses the size of text by the width of the card, so that it is about 12 pixels in each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from analysis.labels import number
from analysis.statistics.pareto import Goal
from sweeps.dashboard.curves import thin

WIDTH, HEIGHT = 320, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 8, 24, 38
_STAGES = 14
"""Height of the row of the stages' names."""
_LETTER = 6.5
"""Width of a letter, on average, for what must not be wider than its place."""
_NAME_HEIGHT = 16
COLOURS = 8
"""Classes `c0` to `c7`; more lines than that repeat them, dashed."""
_LOG_RATIO = 20.0
_POINTS = 300

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve with its name.

    Args:
        steps: it stays at a value until the next.
        breaks: places on the horizontal axis that the curve is not joined across.
    """

    name: str
    points: Sequence[Point]
    steps: bool = False
    marks: bool = False
    breaks: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Map of values to pixels.

    Args:
        names: texts at 0, 1, 2, and so on; () for numbers.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    names: Sequence[str] = ()

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = (math.log10(max(each, 1e-300)) for each in (low, high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Return round values within the scale, or the places of all names for which there is room."""
        if self.names:
            room = int(abs(self.end - self.start) / _NAME_HEIGHT)
            return [float(at) for at in range(0, len(self.names), -(-len(self.names) // room))]
        if self.log:
            last = min(math.ceil(math.log10(self.high)), sys.float_info.max_10_exp)  # above it is no number
            powers = range(math.floor(math.log10(self.low)), last + 1)
            shown: list[float] = []
            for factors in (
                (1.0, 2.0, 5.0) if len(powers) <= 3 else (1.0,),
                (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
            ):
                if len(shown) < 3:
                    found = [factor * 10.0**power for power in powers for factor in factors]
                    shown = [tick for tick in found if self.low <= tick <= self.high]
            return shown[:: -(-len(shown) // (count + 1)) or 1]  # at most so many
        step = (self.high - self.low) / count
        if step and math.isfinite(step):
            power = 10.0 ** math.floor(math.log10(step))
            step = next(m * power for m in (1, 2, 5, 10) if m * power >= step * 0.999)
        else:
            step = 1.0
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [at * step for at in range(first, last + 1)][: 4 * count]


def scale_of(values: Sequence[float], start: float, end: float, *, log: bool | None = None) -> Scale:
    """Return the scale of the values, logarithmic where a linear one would squeeze most of them.

    Args:
        values: finite; none is allowed.
        start: pixel of the least.
        end: pixel of the largest.
        log: None: decide by the values.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log is None:
        log = low > 0 and high / low > _LOG_RATIO
    if log and low > 0 and high > low:
        return Scale(low=low, high=high, start=start, end=end, log=True)
    room = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    if not math.isfinite((high + room) - (low - room)) or low - room == low:
        low, high, room = 0.0, 1.0, 0.0
    least = 0.0 if 0 <= low < room else low - room  # no negative ticks for what is never negative
    return Scale(low=least, high=high + room, start=start, end=end)


def name_scale(names: Sequence[str], start: float, end: float) -> Scale:
    """Return the scale of texts, which have places 0, 1, 2, and so on."""
    return Scale(low=-0.5, high=len(names) - 0.5, start=start, end=end, names=names)


def chart(
    lines: Sequence[Line],
    *,
    title: str,
    x: str,
    y: str,
    log_y: bool | None = None,
    stages: Sequence[tuple[str, float]] = (),
) -> Markup:
    """Return curves as an SVG element.

    Args:
        lines: the curves; those without points are left out, and keep their colour.
        title: for those who do not see it.
        x: title of the axis.
        y: likewise.
        log_y: whether y is logarithmic; None: as its values ask for.
        stages: (name, where it begins) of stages along x, which are marked if there are several.
    """
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points]
    across = scale_of(xs, _LEFT, WIDTH - _RIGHT, log=False)
    several = len(stages) > 1
    up = scale_of(ys, HEIGHT - _BOTTOM, _TOP + _STAGES * several, log=log_y)
    drawn = Markup("").join(_line(line, at, across, up) for at, line in enumerate(lines) if line.points)
    ends = [f"{line.name} ends at {number(line.points[-1][1])}" for line in lines[:COLOURS] if line.points]
    spoken = f"{title}: {', '.join(ends) or 'nothing to draw yet'}"
    marked = _stages(stages, across) if several else Markup("")
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>').format(
        WIDTH, HEIGHT, spoken, _axes(across, up, x, y), marked, drawn
    )


def scatter(
    points: Sequence[Point],
    front: Sequence[Point],
    *,
    title: str,
    x: str,
    y: str,
    goal: Goal = "minimize",
    log: tuple[bool, bool] = (False, False),
    names: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Markup:
    """Return points, those of the front larger and joined, as an SVG element.

    Args:
        goal: of x.
        log: whether x and y are logarithmic, even where their values do not ask for it.
        names: texts at places 0, 1, 2, and so on of x and y; () for numbers.
    """
    every = [*points, *front]
    across, up = (
        name_scale(names[axis], start, end)
        if names[axis]
        else scale_of([point[axis] for point in every], start, end, log=log[axis] or None)
        for axis, (start, end) in enumerate(((_LEFT, WIDTH - _RIGHT), (HEIGHT - _BOTTOM, _TOP)))
    )
    pale = Markup("").join(
        Markup('<circle class="point" cx="{}" cy="{}" r="2.5"/>').format(*_pixel(p, across, up))
        for p in points
    )
    marks = Markup("").join(
        Markup('<circle class="front" cx="{}" cy="{}" r="4"/>').format(*_pixel(p, across, up)) for p in front
    )
    # From the best x on: the best y for no worse an x improves at a point, not before it.
    steps = sorted(front, reverse=goal == "maximize")
    path = _path(Line(name="", points=steps, steps=True), across, up)
    line = Markup('<path class="front-line" d="{}"/>').format(path) if len(front) > 1 else Markup("")
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}{}</svg>').format(
        WIDTH, HEIGHT, title, _axes(across, up, x, y), pale, line, marks
    )


def _line(line: Line, at: int, across: Scale, up: Scale) -> Markup:
    points = thin(line.points, _POINTS)
    shown = Line(name=line.name, points=points, steps=line.steps, breaks=line.breaks)
    dashed = " dashed" if at >= COLOURS else ""
    path = Markup('<path class="line c{}{}" d="{}"><title>{}</title></path>').format(
        at % COLOURS, dashed, _path(shown, across, up), line.name
    )
    if not (line.marks or len(points) == 1):
        return path
    marks = Markup("").join(
        Markup('<circle class="mark c{}" cx="{}" cy="{}" r="3"><title>{}</title></circle>').format(
            at % COLOURS, *_pixel(point, across, up), f"{line.name} {number(point[1])} at {number(point[0])}"
        )
        for point in points
    )
    return path + marks


def _path(line: Line, across: Scale, up: Scale) -> str:
    parts: list[str] = []
    for at, point in enumerate(line.points):
        x, y = _pixel(point, across, up)
        if not parts or any(line.points[at - 1][0] <= place < point[0] for place in line.breaks):
            parts.append(f"M{x} {y}")
        else:
            parts.append(f"H{x}V{y}" if line.steps else f"L{x} {y}")
    return "".join(parts)


def _pixel(point: Point, across: Scale, up: Scale) -> tuple[str, str]:
    return f"{across.at(point[0]):.1f}", f"{up.at(point[1]):.1f}"


def _axes(across: Scale, up: Scale, x: str, y: str) -> Markup:
    grid = Markup('<path class="grid" d="M{} {}H{}"/>')
    label = Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>')
    parts = []
    for tick, text in _labels(up, up.ticks(), _LEFT - 8):
        at = up.at(tick)
        parts.append(grid.format(_LEFT, f"{at:.1f}", WIDTH - _RIGHT))
        parts.append(label.format(_LEFT - 5, f"{at + 4:.1f}", "end", text))
    below = HEIGHT - _BOTTOM + 15
    ticks = across.ticks(4)
    for tick, text in _labels(across, ticks, (WIDTH - _LEFT) / max(1, len(ticks))):
        parts.append(label.format(f"{across.at(tick):.1f}", below, "middle", text))
    axis = Markup('<text class="axis" x="{}" y="{}" text-anchor="{}">{}</text>')
    most = int(WIDTH / _LETTER)
    y, x = (title if len(title) <= most else f"{title[: most - 1]}…" for title in (y, x))
    parts += [axis.format(2, 13, "start", y), axis.format(WIDTH - _RIGHT, HEIGHT - 5, "end", x)]
    return Markup("").join(parts)


def _stages(stages: Sequence[tuple[str, float]], across: Scale) -> Markup:
    """Return a line where each stage but the first begins, and the stages' names where there is room."""
    parts: list[Markup] = []
    places = [*(across.at(max(begins, across.low)) for _, begins in stages), WIDTH - _RIGHT]
    for (name, _), start, end in zip(stages, places, places[1:], strict=False):
        if parts or start > _LEFT:
            parts.append(
                Markup('<path class="stage" d="M{} {}V{}"/>').format(f"{start:.1f}", _TOP, HEIGHT - _BOTTOM)
            )
        if end - start > _LETTER * len(name):
            label = Markup('<text class="tick" x="{}" y="{}">{}</text>')
            parts.append(label.format(f"{start + 3:.1f}", _TOP + _STAGES - 4, name))
    return Markup("").join(parts)


def _labels(scale: Scale, ticks: Sequence[float], room: float) -> list[tuple[float, str]]:
    """Return each tick with its name, cut to `room` pixels, or with as many digits as tell all apart."""
    if scale.names:
        most = max(3, int(room / _LETTER))
        named = [(tick, scale.names[int(tick)]) for tick in ticks]
        return [(tick, name if len(name) <= most else f"{name[: most - 1]}…") for tick, name in named]
    for digits in range(4, 13):
        texts = [_tick(value, digits) for value in ticks]
        if len(set(texts)) == len(texts):
            break
    return list(zip(ticks, texts, strict=True))


def _tick(value: float, digits: int) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        text = f"{value:.{digits - 3}e}"
        mantissa, _, exponent = text.partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return number(round(value, 12), digits)
