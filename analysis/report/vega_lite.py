"""Axes and layers of a figure, as Vega-Lite draws them: points, lines, bands, bars, error bars and text.

A `Drawing` collects them over shared axes. Each kind of mark is a `Series`, whose style is also its entry in
the legend. Columns of data have names of our own (`x`, `y`, `low`, `high`), so that no name that a program
wrote is read as a path of fields; where such a text has to stand in an expression, it is a JSON literal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import altair as alt
from altair.utils import schemapi

from analysis.report.figure import Figure
from analysis.report.style import GREY, Scale

Row = dict[str, Any]
Step = Literal["linear", "step-after", "step-before"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

HEIGHT = 440
"""Height of a figure in pixels, with its axes and its legend."""

CANVAS = 2000
"""With more rows a browser draws pixels, not a tree of elements: moving it stays smooth."""

COLUMNAR = 100
"""More rows are stored as columns, which Vega-Lite makes rows of again."""

FAINT = 0.08
"""Opacity of what is not chosen in the legend."""

ORDERED = (alt.StrokeWidth, alt.Opacity, alt.Size)
"""Channels of the legend that have an order."""

LEGEND, ZOOM = "shown", "zoom"
"""Names of the parameters: the entries chosen in the legend, and the part of the axes that is shown."""

WHEEL = "wheel![event.ctrlKey || event.metaKey]"
"""Zooming takes Ctrl, so that a wheel over a figure scrolls the page; a pinch of a touchpad is the same."""

NUMBER = "',.5~g'"
POSITION = f"format(datum.x, {NUMBER}) + ' · ' + format(datum.y, {NUMBER})"
"""Expression of a point's position, for `tip`."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis: its title, its scale, and how Vega marks it.

    Args:
        title: with the unit.
        scale: with its ticks; bands and points stand for its names, in the order of their indices.
        grid: draw lines across the figure.
        line: draw the axis itself and its ticks, not only their labels.
        visible: draw anything of it.
        count: about how many ticks; None for as many as Vega likes.
        integers: no ticks between whole numbers.
        inner: share of a band that is left empty.
    """

    title: str
    scale: Scale = field(default_factory=Scale)
    grid: bool = True
    line: bool = True
    visible: bool = True
    count: int | None = None
    integers: bool = False
    inner: float = 0.3

    def channel(self, name: Literal["x", "y"]) -> Any:
        """Return the channel that has the axis, drawing the column of its name."""
        if not self.visible:
            return self.plain(name, axis=None)
        given: dict[str, Any] = {"grid": self.grid}
        if self.scale.ticks:
            values = [at for at, _ in self.scale.ticks]
            names = [name for _, name in self.scale.ticks]
            given["values"] = values
            given["labelExpr"] = f"{literal(names)}[indexof({literal(values)}, datum.value)]"
            given["labelAngle"] = 0
        elif self.scale.domain and not 1e-3 <= max(map(abs, self.scale.domain)) < 1e7:
            given["format"] = ".3~e"
        count = alt.ExprRef("ceil(width / 75)" if name == "x" else "ceil(height / 45)")
        if self.scale.type != "band":  # there Vega would leave out names, and a bar without one says nothing
            given["tickCount"] = count if self.count is None else self.count
        if not self.line:
            given |= {"domain": False, "ticks": False}
        if self.integers:
            given["tickMinStep"] = 1
        return self.plain(name, axis=alt.Axis(**given))

    def plain(self, name: Literal["x", "y"], column: str | None = None, **options: Any) -> Any:
        """Return a channel on the same scale that draws a column."""
        scale: dict[str, Any] = {"type": self.scale.type}
        data_type: Literal["quantitative", "ordinal"] = "ordinal"
        if self.scale.type in ("linear", "log"):
            data_type = "quantitative"
            scale["nice"] = False
            if self.scale.type == "linear":
                scale["zero"] = False
            if self.scale.domain is not None:
                scale["domain"] = list(self.scale.domain)
        else:
            scale["domain"] = [at for at, _ in self.scale.ticks]
            padding = ("paddingInner", "paddingOuter") if self.scale.type == "band" else ("padding",)
            scale |= dict.fromkeys(padding, self.inner if self.scale.type == "band" else 0.5)
        channel = alt.X if name == "x" else alt.Y
        # By keywords: a method such as `.scale()` puts its documentation together at each use.
        options["scale"] = alt.Scale(**scale)
        return channel(column or name, type=data_type, title=self.title or None, **options)


def literal(value: object) -> str:
    """Return a value as a literal of Vega's expressions, which ends where JSON says."""
    return json.dumps(value)


@dataclass(frozen=True, kw_only=True)
class Series:
    """The style of a kind of marks.

    Args:
        shape: one of Vega's symbols or an SVG path within -1 and 1; "stroke" for lines without points.
        size: width of a symbol in pixels.
        filled: symbols are not hollow.
        width: of its lines in pixels.
        dash: lengths of dashes and of the gaps between them.
    """

    name: str
    colour: str
    shape: str = "stroke"
    size: float = 9
    filled: bool = True
    width: float = 1.5
    dash: tuple[int, ...] = ()
    opacity: float = 1.0

    @property
    def mark(self) -> Row:
        """Return the properties of its symbols."""
        return {
            "shape": self.shape,
            "size": self.size**2,
            "stroke": self.colour,
            "strokeWidth": self.width,
            "fill": self.colour if self.filled else "transparent",
            "opacity": self.opacity,
        }


@dataclass(kw_only=True)
class Drawing:
    """A figure in the making.

    Args:
        height: in pixels, with the axes.
        legend: draw one, in which an entry can be chosen.
        order: series that come first in the legend, if they are drawn; the others follow as they were added.
        zoom: let a pointer move and enlarge what is shown; needs two axes of numbers.
    """

    x: Axis
    y: Axis
    height: int = HEIGHT
    legend: bool = True
    order: Sequence[Series] = ()
    zoom: bool = True
    _layers: list[alt.Chart] = field(default_factory=list)
    _data: dict[str, list[Row]] = field(default_factory=dict)
    _series: dict[str, Series] = field(default_factory=dict)

    def points(
        self, series: Series, rows: Sequence[Row], *, tip: str = "", listed: bool = True, bottom: bool = False
    ) -> None:
        """Add symbols at `x` and `y`.

        Args:
            rows: with `x` and `y`.
            tip: expression of the text that a pointer shows; "" for none.
            listed: the series is in the legend.
            bottom: the rows have no `y`; the symbols stand along the lower edge.
        """
        chart = self._chart(rows, series, listed=listed).mark_point(clip=self.zoom, **series.mark)
        if bottom:
            self._add(chart.mark_point(yOffset=-8, **series.mark), series, tip=tip, y=alt.value("height"))
        else:
            self._add(chart, series, tip=tip)

    def line(
        self,
        series: Series,
        rows: Sequence[Row],
        *,
        step: Step = "linear",
        tip: str = "",
        by: str = "",
        listed: bool = True,
    ) -> None:
        """Add a line through `x` and `y` in the order of the rows, or one for each value of column `by`."""
        style: Row = {"stroke": series.colour, "strokeWidth": series.width, "opacity": series.opacity}
        dash: Row = {"strokeDash": list(series.dash)} if series.dash else {}
        chart = self._chart(rows, series, listed=listed).mark_line(
            clip=self.zoom, interpolate=step, strokeJoin="round", **style, **dash
        )
        more = {"detail": alt.Detail(by, type="nominal")} if by else {}
        self._add(chart, series, tip=tip, order=alt.OrderValue(0), **more)

    def band(self, series: Series, rows: Sequence[Row]) -> None:
        """Add an area over `x` between `low` and `high`."""
        chart = self._chart(rows, series).mark_area(
            clip=self.zoom, fill=series.colour, opacity=series.opacity, strokeWidth=0
        )
        self._add(chart, series, y=self.y.plain("y", "low"), y2=alt.Y2("high"))

    def errors(self, series: Series, rows: Sequence[Row], *, across: bool = False) -> None:
        """Add error bars from `low` to `high` at `x`, or across at `y`; rows without the two have none."""
        own, end = (("x", self.x), ("x2", alt.X2)) if across else (("y", self.y), ("y2", alt.Y2))
        within = own[1].scale.within
        barred = [
            {**row, "low": within(row["low"]), "high": within(row["high"])}
            for row in rows
            if row.get("low") is not None
        ]
        if not barred:
            return
        rows = rows if barred == rows else barred  # the same rows are stored once
        style: Row = {"clip": self.zoom, "opacity": series.opacity, "color": series.colour}
        name = own[0]
        bar = self._chart(rows, series, listed=False).mark_rule(strokeWidth=1.2, **style)
        self._add(bar, series, **{name: own[1].plain(name, "low"), end[0]: end[1]("high")})  # type: ignore[arg-type]
        for column in ("low", "high"):
            cap = self._chart(rows, series, listed=False).mark_tick(
                orient="vertical" if across else "horizontal", size=6, thickness=1.2, **style
            )
            self._add(cap, series, **{name: own[1].plain(name, column)})  # type: ignore[arg-type]

    def bars(self, series: Series, rows: Sequence[Row], *, height: float = 1.0, tip: str = "") -> None:
        """Add bars across from `x` to `end` in the bands of `y`, each `height` of its band high."""
        chart = self._chart(rows, series).mark_bar(
            height={"band": height}, fill=series.mark["fill"], stroke=series.colour,
            strokeWidth=series.width, fillOpacity=series.opacity,
        )  # fmt: skip
        self._add(chart, series, tip=tip, x2=alt.X2("end"))

    def cells(self, rows: Sequence[Row], *, title: str, tip: str) -> None:
        """Add a rectangle of the colour of `mean` in each pair of bands `x` and `y`, and a legend of it."""
        colour = alt.Color(
            "mean", type="quantitative", title=title, scale=alt.Scale(scheme="viridis", zero=False)
        )
        self._add(self._chart(rows, None).mark_rect(), None, tip=tip, color=colour)

    def rules(
        self, series: Series, *, x: float | None = None, y: float | None = None, listed: bool = False
    ) -> None:
        """Add a line all across at `x` or at `y`."""
        row = {"x": x} if x is not None else {"y": y}
        dash: Row = {"strokeDash": list(series.dash)} if series.dash else {}
        chart = self._chart([row], series, listed=listed).mark_rule(
            clip=self.zoom, stroke=series.colour, strokeWidth=series.width, **dash
        )
        self._add(chart, series, x=None if x is None else ..., y=None if y is None else ...)

    def text(self, rows: Sequence[Row], *, right: bool = False, **style: Any) -> None:
        """Add each row's `text` at `x` and `y`.

        Args:
            rows: with `x`, `y` and `text`.
            right: the rows have no `x`; the texts end at the right edge.
            style: properties of Vega-Lite's mark, such as `align`, and `dx` and `dy` in pixels.
        """
        chart = self._chart(rows, None).mark_text(**({"baseline": "middle", "align": "left"} | style))
        channels: Row = {"x": alt.value("width")} if right else {}
        self._add(chart, None, text=alt.Text("text", type="nominal"), **channels)

    def figure(self) -> Figure:
        """Return the figure."""
        # The first layer has the axes, the legend and what a pointer can do; it draws no marks.
        frame = alt.Chart(alt.NamedData("frame"), name="frame").mark_point(opacity=1)
        channels: Row = {"x": self.x.channel("x"), "y": self.y.channel("y")}
        if self.zoom and all(axis.scale.type in ("linear", "log") for axis in (self.x, self.y)):
            frame = frame.add_params(alt.selection_interval(name=ZOOM, bind="scales", zoom=WHEEL))
        if self.legend and self._series:
            names = [*(each.name for each in self.order), *self._series]
            channels |= _legend([self._series[name] for name in dict.fromkeys(names) if name in self._series])
            frame = frame.add_params(alt.selection_point(name=LEGEND, fields=["series"], bind="legend"))
        # Each by itself: `alt.layer` copies all of them four times, a third of a page's time.
        context = {"pre_transform": False, "top_level": False}
        first, *others = (
            chart.to_dict(validate=schemapi.DEBUG_MODE, context=context)
            for chart in (frame.encode(**channels), *self._layers)
        )
        params = [{**each, "views": [first["name"]]} for each in first.pop("params", [])]
        spec: Row = {"params": params} if params else {}
        spec |= {"layer": [first, *others], "$schema": SCHEMA, "width": "container", "height": self.height}
        spec |= {"autosize": {"type": "fit", "contains": "padding"}, "datasets": {"frame": []}}
        spec["datasets"] |= {
            name: [_columns(data)] if len(data) > COLUMNAR else data for name, data in self._data.items()
        }
        rows = sum(map(len, self._data.values()))
        longest = max((len(name) for name in self._series), default=0) if self.legend else 0
        spec["usermeta"] = {
            "renderer": "canvas" if rows > CANVAS else "svg",
            "entry": 34 + 7 * longest,  # width of an entry of the legend, in pixels
        }
        return Figure(spec=spec)

    def _chart(self, rows: Sequence[Row], series: Series | None, *, listed: bool = True) -> alt.Chart:
        if series is not None and listed:
            self._series.setdefault(series.name, series)
        known = next((name for name, data in self._data.items() if data is rows), None)
        name = known or f"data{len(self._data)}"
        self._data[name] = rows if isinstance(rows, list) else list(rows)
        chart = alt.Chart(alt.NamedData(name), description=series.name if series else "text")
        return chart.transform_flatten(list(rows[0])) if len(rows) > COLUMNAR else chart

    def _add(self, chart: alt.Chart, series: Series | None, *, tip: str = "", **channels: Any) -> None:
        channels = {"x": ..., "y": ...} | channels
        for name, axis in (("x", self.x), ("y", self.y)):
            if channels[name] is ...:
                channels[name] = axis.plain(name)  # type: ignore[arg-type]
        channels = {name: channel for name, channel in channels.items() if channel is not None}
        # By the channel's class: from `alt.value` Altair guesses it, which took a third of a figure's time.
        if tip:
            channels["tooltip"] = alt.TooltipValue(alt.ExprRef(tip))
        if self.legend and series is not None:
            is_faint = f"isValid({LEGEND}.series) && indexof({LEGEND}.series, {literal(series.name)}) < 0"
            channels["opacity"] = alt.OpacityValue(
                alt.Undefined, condition=[{"test": is_faint, "value": FAINT}]
            )
        self._layers.append(chart.encode(**channels))


def _legend(series: Sequence[Series]) -> Row:
    """Return the channels of a legend: they share their names, so Vega-Lite makes one of them."""
    names = [each.name for each in series]
    ranges: dict[str, tuple[Any, list[Any]]] = {
        "shape": (alt.Shape, [each.shape for each in series]),
        "stroke": (alt.Stroke, [each.colour for each in series]),
        "fill": (alt.Fill, [each.mark["fill"] for each in series]),
        "strokeDash": (alt.StrokeDash, [list(each.dash) or [1, 0] for each in series]),
        "strokeWidth": (alt.StrokeWidth, [min(2.0, each.width) for each in series]),
        "opacity": (alt.Opacity, [each.opacity for each in series]),
        "size": (alt.Size, [225 if each.shape == "stroke" else min(12.0, each.size) ** 2 for each in series]),
    }
    return {
        # Vega-Lite warns of names without an order where a channel has one, and the other way round.
        name: channel(
            "series",
            type="ordinal" if channel in ORDERED else "nominal",
            scale=alt.Scale(type="ordinal", domain=names, range=values),
        )
        for name, (channel, values) in ranges.items()
    }


def _columns(rows: Sequence[Row]) -> Row:
    """Return rows as one row of columns, with numbers as precise as a picture needs: a third of the size."""
    columns: Row = {}
    for name in rows[0]:
        values = columns[name] = [row.get(name) for row in rows]
        floats = [value for value in values if isinstance(value, float) and math.isfinite(value)]
        spread = max(floats, default=0.0) - min(floats, default=0.0)
        for at, value in enumerate(values):
            if isinstance(value, float) and math.isfinite(value):
                # To a hundred-thousandth of the range; smaller ones, for logarithms, to five digits.
                scale = min((abs(size) for size in (value, spread) if size), default=1.0)
                rounded = round(value, 5 - math.floor(math.log10(scale)))
                values[at] = int(rounded) if rounded.is_integer() else rounded  # without ".0"
    return columns


def grey(name: str, **style: Any) -> Series:
    """Return a grey series, for what matters less."""
    return Series(name=name, colour=GREY, **style)


def tip_of(rows: Sequence[Mapping[str, Any]], before: str = POSITION, trial: str = "datum.trial") -> str:
    """Return the expression of a tip: `before`, the `trial`, and what the rows have in column `more`.

    A browser works it out anew for every point in each step of a movement: that of very many is short.
    """
    if len(rows) > CANVAS:
        return f"'trial ' + {trial}"
    more = " + '\\n' + datum.more" if rows and "more" in rows[0] else ""
    return f"{before} + '\\ntrial ' + {trial}{more}"
