"""Specifications of figures: as they were, read by Vega-Lite, with nothing of the sweep in code or names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from altair.utils import schemapi
from drawn_layers import axis, layer, layers, legend, words

from analysis.report.figure import Figure, combine
from analysis.report.figures import history, tradeoff
from analysis.report.insight_figures import marginal, marginals
from analysis.report.optimum_figures import optima
from analysis.report.page_scripts import draw_script, vega_bundle
from analysis.report.parallel_figure import parallel
from analysis.report.reuse_figures import prefixes
from analysis.report.style import DARK_INK, LIGHT_INK, Scale, name_scale, scale, theme
from analysis.report.trunk_figures import trunks
from analysis.report.trunk_layout import layouts
from analysis.report.vega_lite import COLUMNAR, Axis, Drawing, Series, grey
from analysis.summaries.insight import insight
from analysis.summaries.reuse import reuse
from analysis.summaries.summary import pareto
from analysis.table import TrialsTable

GOLDEN = Path(__file__).parents[2] / "golden" / "figures"
DOTS = Series(name="dots", colour="#2f80d0", shape="circle")
HOSTILE = "\"); alert(1); datum['x'] </script>\\ \u2028"


def drawn(rows: list[dict[str, Any]], **style: Any) -> Figure:
    """A figure of a few points."""
    drawing = Drawing(x=Axis(title="x"), y=Axis(title="y"), **style)
    drawing.points(DOTS, rows, tip="datum.more")
    return drawing.figure()


def figures(sweep: Any, branched: Any, mattered: Any) -> dict[str, Figure]:
    """One figure of each kind."""
    table = TrialsTable.from_document(sweep)
    shared = reuse(TrialsTable.from_document(branched), "final_loss")
    assert shared is not None
    found = insight(mattered["insight"])
    (view,) = found.metrics.values()
    lines = parallel(table, "final_loss")
    assert lines is not None
    assert found.optimum is not None
    return {
        "tradeoff": tradeoff(table, pareto(table, x="effective_steps", y="final_loss")),
        "history": history(table, "final_loss"),
        "marginal": marginal(view, marginals(view)[0], "final_loss"),
        "parallel": lines,
        "prefixes": prefixes(shared),
        "trunks": trunks(layouts(shared.trunks, shared.goal)[0], shared),
        **optima(table, found.optimum, log=("lr",)),
    }


def json_lines(value: Any, depth: int = 0) -> str:
    """Return JSON with each value that fits in a line on one, so that a difference is read at once."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + depth <= 110 or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        inner = [f"{json.dumps(key)}: {json_lines(each, depth + 1)}" for key, each in value.items()]
    else:
        inner = [json_lines(each, depth + 1) for each in value]
    begin, end = line[0], line[-1]
    pad = "\n" + " " * depth
    return f"{begin}{pad} {f',{pad} '.join(inner)}{pad}{end}"


def test_specifications_are_those_that_were_looked_at(sweep: Any, branched: Any, mattered: Any) -> None:
    """After a change: UPDATE_FIGURES=1, and view each picture that differs."""
    for name, figure in figures(sweep, branched, mattered).items():
        path = GOLDEN / f"{name}.json"
        if os.environ.get("UPDATE_FIGURES"):
            path.write_text(json_lines(figure.spec) + "\n", encoding="utf-8")
        assert json.loads(figure.to_json()) == json.loads(path.read_text(encoding="utf-8")), name


def test_the_same_figure_gives_the_same_json(sweep: Any) -> None:
    table = TrialsTable.from_document(sweep)
    assert history(table, "final_loss").to_json() == history(table, "final_loss").to_json()


def test_a_wide_figure_is_drawn_in_the_width_that_is_asked_for() -> None:
    figure = drawn([{"x": 1, "y": 2, "more": "m"}])
    assert 'width="500"' in figure.to_svg(500)
    assert int.from_bytes(figure.to_png(500, scale=2)[16:20]) == 1000


def test_many_rows_are_stored_as_columns_and_drawn_all_the_same() -> None:
    rows = [{"x": nth, "y": nth / 3, "more": f"{nth}"} for nth in range(COLUMNAR + 1)]
    figure = drawn(rows)
    (stored,) = figure.spec["datasets"]["data0"]
    assert stored["x"] == list(range(COLUMNAR + 1))
    assert figure.data["data0"][1] == {"x": 1, "y": 0.333333, "more": "1"}
    assert figure.to_svg().count('d="M4.5,0A') >= COLUMNAR + 1
    assert figure.spec["usermeta"]["renderer"] == "svg"
    assert drawn(rows * 20).spec["usermeta"]["renderer"] == "canvas"


@pytest.mark.parametrize(
    "column",
    [
        pytest.param([3.0 + nth * 1e-7 for nth in range(COLUMNAR + 1)], id="a narrow range far from zero"),
        pytest.param([1.1**nth * 1e-6 for nth in range(COLUMNAR + 1)], id="decades"),
        pytest.param([1.7e9 + nth / 7 for nth in range(COLUMNAR + 1)], id="times"),
        pytest.param([-2.5] * (COLUMNAR + 1), id="one number"),
        pytest.param([0.0, *[nth * 1e9 for nth in range(COLUMNAR)]], id="large numbers and zero"),
    ],
)
def test_rounded_numbers_keep_visible_precision(column: list[float]) -> None:
    stored = drawn([{"x": x, "y": 1.0, "more": ""} for x in column]).spec["datasets"]["data0"][0]["x"]
    reach = max(column) - min(column)
    for value, kept in zip(column, stored, strict=True):
        assert kept == pytest.approx(value, rel=1e-4 if reach else 1e-9, abs=0)
        assert abs(kept - value) <= reach * 1e-5


def test_the_same_rows_are_stored_once() -> None:
    drawing = Drawing(x=Axis(title="x"), y=Axis(title="y"))
    rows = [{"x": 1, "y": 2, "low": 1.5, "high": 2.5}]
    drawing.errors(DOTS, rows)
    drawing.points(DOTS, rows)
    assert list(drawing.figure().data) == ["frame", "data0"]


def test_rows_without_an_error_have_no_bar() -> None:
    drawing = Drawing(x=Axis(title="x"), y=Axis(title="y"))
    drawing.errors(DOTS, [{"x": 1, "y": 2}, {"x": 2, "y": 3, "low": 2.5, "high": 3.5}])
    assert layer(drawing.figure(), "rule", "dots").column("x") == [2]
    bare = Drawing(x=Axis(title="x"), y=Axis(title="y"))
    bare.errors(DOTS, [{"x": 1, "y": 2}])
    assert layers(bare.figure()) == []


def test_every_entry_of_the_legend_looks_like_its_marks() -> None:
    drawing = Drawing(x=Axis(title="x"), y=Axis(title="y"), order=[grey("second"), DOTS])
    drawing.line(grey("line", dash=(6, 4)), [{"x": 0, "y": 0}, {"x": 1, "y": 1}])
    drawing.points(DOTS, [{"x": 0, "y": 0}])
    figure = drawing.figure()
    assert legend(figure) == ["dots", "line"]
    channels = figure.spec["layer"][0]["encoding"]
    assert channels["shape"]["scale"]["range"] == ["circle", "stroke"]
    assert channels["strokeDash"]["scale"]["range"] == [[1, 0], [6, 4]]
    assert words(figure)[-2:] == ["dots", "line"]


def test_hostile_names_stay_literals(tmp_path: Path) -> None:
    drawing = Drawing(
        x=Axis(title=HOSTILE, scale=Scale(domain=(0.0, 1.0))),
        y=Axis(title="y", scale=name_scale([HOSTILE, "b"])),
    )
    drawing.points(
        Series(name=HOSTILE, colour="#000", shape="circle"),
        [{"x": 0.5, "y": 0, "more": HOSTILE}],
        tip="datum.more",
    )
    figure = drawing.figure()
    assert "</" not in figure.to_json()
    shown = words(figure)  # an expression that a name had broken would be an error here
    assert sum(text.startswith('"); alert(1)') for text in shown) == 3  # the title, a tick, the legend


@pytest.mark.parametrize("reverse", [False, True], ids=["upwards", "downwards"])
def test_an_axis_goes_the_way_of_its_domain(reverse: bool) -> None:
    ends = (0.0, 4.0)
    ticks = ((0.0, "low"), (4.0, ("two", "lines")))
    y = Axis(title="", scale=Scale(domain=ends[::-1] if reverse else ends, ticks=ticks))
    drawing = Drawing(x=Axis(title="x"), y=y, legend=False)
    drawing.points(DOTS, [{"x": 1, "y": 1}])
    figure = drawing.figure()
    assert axis(figure, "y")["scale"]["domain"] == list(ends[::-1] if reverse else ends)
    assert {"low", "two", "lines"} <= set(words(figure)) | {"two", "lines"}


def test_parts_of_a_picture_keep_their_own_scales() -> None:
    def part(reach: float) -> Figure:
        values = [0.0, reach]
        drawing = Drawing(x=Axis(title="x", scale=scale(values)), y=Axis(title="y", scale=scale(values)))
        drawing.points(DOTS, [{"x": value, "y": value} for value in values])
        return drawing.figure()

    figure = combine([part(1.0), part(300.0)], columns=2, width=200)
    shown = words(figure)
    assert {"1.0", "300"} <= set(shown)
    assert shown.count("dots") == 1
    assert len(figure.data) == 4
    assert figure.to_png().startswith(b"\x89PNG")


def test_themes_differ_in_the_colour_of_text_alone() -> None:
    light, dark = theme(LIGHT_INK), theme(DARK_INK)
    assert light != dark
    assert json.dumps(light).replace(LIGHT_INK, DARK_INK) == json.dumps(dark)
    assert LIGHT_INK in draw_script()
    assert DARK_INK in draw_script()


def test_vega_bundle_is_one_embeddable_script() -> None:
    bundle = vega_bundle()
    assert "window.vegaEmbed" in bundle
    assert len(bundle.encode()) < 1e6
    assert "</script" not in bundle.lower()
    assert "<!--" not in bundle
    assert "import(" not in bundle


def test_figure_that_is_no_vega_lite_is_refused() -> None:
    """So each test that draws a figure checks it; the report does without."""
    drawing = Drawing(x=Axis(title="x"), y=Axis(title="y"))
    with schemapi.debug_mode(False):  # its parts are not
        drawing.text([{"x": 1, "y": 2, "text": "a"}], align="nowhere")
        drawing.figure()
    with pytest.raises(schemapi.SchemaValidationError, match="nowhere"):
        drawing.figure()
