"""Axes of a figure: a scale, and how Vega-Lite marks it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import altair as alt

from analysis.report.style import Scale


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
            return self.plain(name).axis(None)
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
        given["tickCount"] = count if self.count is None else self.count
        if not self.line:
            given |= {"domain": False, "ticks": False}
        if self.integers:
            given["tickMinStep"] = 1
        return self.plain(name).axis(alt.Axis(**given))

    def plain(self, name: Literal["x", "y"], column: str | None = None) -> Any:
        """Return a channel on the same scale that draws a column."""
        scale: dict[str, Any] = {"type": self.scale.type}
        if self.scale.type in ("linear", "log"):
            data_type = "quantitative"
            scale["nice"] = False
            if self.scale.type == "linear":
                scale["zero"] = False
            if self.scale.domain is not None:
                scale["domain"] = list(self.scale.domain)
        else:
            data_type = "ordinal"
            scale["domain"] = [at for at, _ in self.scale.ticks]
            padding = ("paddingInner", "paddingOuter") if self.scale.type == "band" else ("padding",)
            scale |= dict.fromkeys(padding, self.inner if self.scale.type == "band" else 0.5)
        channel = alt.X if name == "x" else alt.Y
        return channel(column or name, type=data_type, title=self.title or None).scale(**scale)


def literal(value: object) -> str:
    """Return a value as a literal of Vega's expressions, which ends where JSON says."""
    return json.dumps(value)
