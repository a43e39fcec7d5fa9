"""A figure: a Vega-Lite specification, and what it becomes on a page, in a paper and in a notebook.

A specification is plain data: the report puts it into a page, and vl-convert turns it into PNG and
SVG, without a browser. Its colours of text come from a theme (`style.theme`), which is
chosen where it is shown.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from analysis.report.style import theme

WIDTH = 640
"""Width of a picture in pixels; the page gives a figure the width that it has."""

SCALE = 2
"""Pixels of a PNG per pixel of the width: about 200 dots per inch in a paper."""

VEGA_LITE = "6.4"
"""Version of Vega-Lite, which vl-convert has and Altair's specifications are written for."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Figure:
    """A figure.

    Args:
        spec: Vega-Lite specification without a theme; its width is "container" unless it has several parts.
    """

    spec: Mapping[str, Any]

    @property
    def data(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the rows that are drawn, by the name of their dataset."""
        datasets: dict[str, list[dict[str, Any]]] = dict(self.spec["datasets"])
        for name, data in datasets.items():
            if len(data) == 1 and data[0] and all(isinstance(value, list) for value in data[0].values()):
                columns = data[0]  # as `Drawing.figure` stores many rows
                datasets[name] = [
                    dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
                ]
        return datasets

    def to_json(self) -> str:
        """Return the specification as JSON, without signs that could end an HTML element around it."""
        try:
            text = json.dumps(self.spec, allow_nan=False, separators=(",", ":"))
        except ValueError:  # an error bar of the largest float, for example: Vega leaves out what is null
            text = to_json(self.spec, inf_nan_mode="null").decode()
        for sign in "<>&":
            text = text.replace(sign, f"\\u{ord(sign):04x}")
        return text

    def for_picture(self, width: int = WIDTH) -> dict[str, Any]:
        """Return the specification of a picture: on white, of a fixed width, without interaction."""
        spec = _still(self.spec)
        if spec.get("width") == "container":
            spec["width"] = width
        config = theme() | {"background": "white"}
        config["legend"] = config["legend"] | {"columns": max(1, width // self.spec["usermeta"]["entry"])}
        return spec | {"config": config}

    def to_svg(self, width: int = WIDTH) -> str:
        """Return the figure as SVG, in which text stays text. The same figure gives the same SVG."""
        import vl_convert

        svg = vl_convert.vegalite_to_svg(self.for_picture(width), vl_version=VEGA_LITE)
        # vl-convert numbers clip paths through all figures of a process; here they count from 1.
        ids = dict.fromkeys(re.findall(r'id="clip(\d+)"', svg))
        number = {old: new for new, old in enumerate(ids, start=1)}
        return re.sub(
            r'(id="clip|url\(#clip)(\d+)', lambda found: f"{found[1]}{number.get(found[2], found[2])}", svg
        )

    def to_png(self, width: int = WIDTH, scale: float = SCALE) -> bytes:
        """Return the figure as PNG.

        Args:
            width: in pixels, before scaling.
            scale: pixels of the PNG per pixel of the width.
        """
        import vl_convert

        png: bytes = vl_convert.vegalite_to_png(self.for_picture(width), vl_version=VEGA_LITE, scale=scale)
        return png

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return what Jupyter shows: the PNG, and the width to show it at, half of its resolution."""
        png = self.to_png()
        return png, {"width": int.from_bytes(png[16:20]) // SCALE}

    def save(self, path: str | Path, width: int = WIDTH) -> tuple[Path, Path]:
        """Write the figure with the suffixes .png and .svg, in place of older ones, and return both paths."""
        path = Path(path)
        stem = path.stem if path.suffix in (".png", ".svg") else path.name  # of `at-1.7e9` all is the name
        png, svg = (path.with_name(stem + suffix) for suffix in (".png", ".svg"))
        png.parent.mkdir(parents=True, exist_ok=True)
        png.write_bytes(self.to_png(width))
        svg.write_text(self.to_svg(width), encoding="utf-8")
        return png, svg


def combine(figures: Sequence[Figure], *, columns: int, width: int) -> Figure:
    """Return one picture of several figures, in rows of `columns`; each plot is `width` pixels wide."""
    parts: list[dict[str, Any]] = []
    datasets = {}
    for nth, figure in enumerate(figures):
        names = {name: f"part{nth}_{name}" for name in figure.data}
        datasets.update({names[name]: rows for name, rows in figure.spec["datasets"].items()})
        spec = _still(figure.spec)
        part = {key: copy.deepcopy(spec[key]) for key in ("layer", "height")} | {"width": width}
        for layer in part["layer"]:
            layer.pop("name", None)
            layer["data"] = {"name": names[layer["data"]["name"]]}
        # A part has no signals `width` and `height`, by which a single figure chooses its number of ticks.
        for name, length in (("x", width / 75), ("y", part["height"] / 45)):
            axis = part["layer"][0]["encoding"][name].get("axis") or {}
            if isinstance(axis.get("tickCount"), Mapping):
                axis["tickCount"] = math.ceil(length)
        parts.append(part)
    entry = max(figure.spec["usermeta"]["entry"] for figure in figures)
    return Figure(
        spec={
            "concat": parts,
            "columns": columns,
            "spacing": 24,
            "datasets": datasets,
            "usermeta": {"entry": entry},
        }
    )


def _still(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy without Vega-Lite's parameters: without interaction."""
    still = {key: value for key, value in spec.items() if key not in ("params", "usermeta")}
    for parts in ("layer", "concat"):
        if parts in still:
            still[parts] = [_still(part) for part in still[parts]]
    if "condition" in still.get("encoding", {}).get("opacity", {}):  # of what is chosen in the legend
        still["encoding"] = {key: value for key, value in still["encoding"].items() if key != "opacity"}
    return still
