"""What a figure draws, read from its Vega-Lite specification."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from analysis.report.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer: the name of its series, its mark, its channels and its rows."""

    name: str
    mark: dict[str, Any]
    channels: dict[str, Any]
    rows: list[dict[str, Any]]

    def column(self, name: str) -> list[Any]:
        """The values of a column."""
        return [row[name] for row in self.rows]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Where the rows are."""
        return [(row["x"], row["y"]) for row in self.rows]

    @property
    def is_filled(self) -> bool:
        """Whether its symbols are."""
        return self.mark["fill"] != "transparent"


def layers(figure: Figure, kind: str | None = None) -> list[Layer]:
    """All layers, or those of one kind of mark, in the order in which they are drawn."""
    found = [
        Layer(
            name=layer["description"],
            mark=layer["mark"],
            channels=layer["encoding"],
            rows=figure.data[layer["data"]["name"]],
        )
        for layer in figure.spec["layer"]
        if layer.get("name") != "frame"
    ]
    return [layer for layer in found if kind in (None, layer.mark["type"])]


def layer(figure: Figure, kind: str, name: str) -> Layer:
    """The only layer of this kind of mark and this name."""
    (only,) = [each for each in layers(figure, kind) if each.name == name]
    return only


def axis(figure: Figure, name: str) -> dict[str, Any]:
    """The channel that has the axis "x" or "y"."""
    channel: dict[str, Any] = figure.spec["layer"][0]["encoding"][name]
    return channel


def ticks(figure: Figure, name: str) -> list[Any]:
    """The labels of an axis that has its own."""
    labels, _ = json.JSONDecoder().raw_decode(axis(figure, name)["axis"]["labelExpr"])
    return list(labels)


def legend(figure: Figure) -> list[str]:
    """The entries of the legend."""
    entries: list[str] = figure.spec["layer"][0]["encoding"]["shape"]["scale"]["domain"]
    return entries


def words(figure: Figure) -> list[str]:
    """All text of the figure's SVG."""
    root = ElementTree.fromstring(figure.to_svg())
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
