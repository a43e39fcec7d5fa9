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
        return self.plain(name).axis(self._axis(name) if self.visible else None)

    def plain(self, name: Literal["x", "y"], column: str | None = None) -> Any:
        """Return a channel on the same scale that draws a column."""
        of = alt.X if name == "x" else alt.Y
        quantitative = self.scale.type in ("linear", "log")
        channel = of(
            column or name, type="quantitative" if quantitative else "ordinal", title=self.title or None
        )
        return channel.scale(**self._scale())

    def _scale(self) -> dict[str, Any]:
        if self.scale.type in ("linear", "log"):
            domain = {} if self.scale.domain is None else {"domain": list(self.scale.domain)}
            zero = {"zero": False} if self.scale.type == "linear" else {}
            return {"type": self.scale.type, "nice": False} | zero | domain
        padding = (
            {"paddingInner": self.inner, "paddingOuter": self.inner}
            if self.scale.type == "band"
            else {"padding": 0.5}
        )
        return {"type": self.scale.type, "domain": [at for at, _ in self.scale.ticks]} | padding

    def _axis(self, name: Literal["x", "y"]) -> alt.Axis:
        given: dict[str, Any] = {"grid": self.grid}
        if self.scale.ticks:
            values = [at for at, _ in self.scale.ticks]
            names = [name for _, name in self.scale.ticks]
            given["values"] = values
            given["labelExpr"] = f"{literal(names)}[indexof({literal(values)}, datum.value)]"
            given["labelAngle"] = 0
        elif self.scale.domain and not 1e-3 <= max(map(abs, self.scale.domain)) < 1e7:
            given["format"] = ".3~e"
        wide = alt.ExprRef("ceil(width / 75)" if name == "x" else "ceil(height / 45)")
        given["tickCount"] = wide if self.count is None else self.count
        if not self.line:
            given |= {"domain": False, "ticks": False}
        if self.integers:
            given["tickMinStep"] = 1
        return alt.Axis(**given)


def literal(value: object) -> str:
    """Return a value as a literal of Vega's expressions, which ends where JSON says."""
    return json.dumps(value)
