"""The report's section of what trials shared, its two figures, and the same two for papers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from drawn_layers import axis, layer, layers, ticks

from analysis import notebook
from analysis.report import reuse_figures
from analysis.report.page_scripts import vega_bundle
from analysis.report.report import render
from analysis.summaries.costs import Rate
from analysis.summaries.reuse import Reuse, reuse
from analysis.table import TrialsTable

HEADING = "What was paid for once"


def found(document: dict[str, Any]) -> Reuse:
    shared = reuse(TrialsTable.from_document(document), "final_loss")
    assert shared is not None
    return shared


def words(html: str) -> str:
    """The section of the page, without markup."""
    section = html.split(f"<h2>{HEADING}")[1].split("<h2>")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", section).split())


def many(shared: dict[str, Any], count: int) -> dict[str, Any]:
    """The sweep with so many more prefixes, of two trials each."""
    template, index = shared["trials"][2], 20
    for nth in range(count):
        for source in (None, index):
            stages = [dict(stage) for stage in template["stages"]]
            stages[0] |= {"key": f"many {nth}", "reused_from": source}
            shared["trials"].append(template | {"trial": index + (source is not None), "stages": stages})
        index += 2
    return shared


def test_a_sweep_that_reused_nothing_has_no_such_section(sweep: dict[str, Any]) -> None:
    page = render(sweep)
    assert HEADING not in page
    assert "ominal" not in page.split("<h2>The front</h2>")[1].split("</footer>")[0]


def test_the_section_says_what_was_saved_and_by_whom(shared: dict[str, Any]) -> None:
    text = words(render(shared))
    assert "710 of 1,110 effective steps paid; 36 % saved by 4 reused stages" in text
    assert "trial 1 stage1_9 5 100 400 3.4 stage1_9.max_steps 50" in text.replace("\xa0", " ").replace(
        "&nbsp;", " "
    )
    assert "trial 4 stage1_9 1 100 0" in text.replace("\xa0", " ")


def test_the_trade_off_is_nominal_and_says_so(shared: dict[str, Any]) -> None:
    page = render(shared)
    caption = page.split('id="tradeoff"')[1].split("</figcaption>")[0]
    assert "as if it had computed all of its stages itself" in caption
    assert "the trial reused counts as if it had computed it" in page.split("<h2>The front</h2>")[1]
    shared["objectives"].append({"metric": "seconds", "goal": "minimize"})  # real time is not nominal
    for row in shared["trials"]:
        row["metrics"]["seconds"] = 1.0
    assert "as if it had computed all of its stages itself" not in render(shared)


def test_dollars_count_reused_stages_once_and_the_note_says_so(shared: dict[str, Any]) -> None:
    for row in shared["trials"]:
        row["metrics"]["usd"] = 3.0
        for stage in row.get("stages", ()):
            stage["usd"] = 2.0
    page = render(shared)
    assert "so far</dt><dd" in page
    assert ">$16.00<" in page  # eight own trials of 3 dollars, less four reused stages of 2
    assert "less the usd of reused stages in column stages" in page
    assert "less the usd" not in render(shared, Rate(name="x", usd_per_hour=1, kind="spot", dated="2026-11"))


def test_a_bar_has_what_was_computed_and_what_was_saved(shared: dict[str, Any]) -> None:
    figure = reuse_figures.prefixes(found(shared))
    bars = {bar.name: [(row["y"], row["x"], row["end"]) for row in bar.rows] for bar in layers(figure, "bar")}
    assert bars == {
        "the shared stage": [(0, 0, 100), (1, 0, 100)],
        "later stages": [(0, 100, 340)],
        "saved": [(0, 340, 740)],
    }
    (labels,) = layers(figure, "text")
    assert labels.column("text") == ["5 trials", "1 trial"]
    assert ticks(figure, "y") == ["trial 1", "trial 4"]
    assert axis(figure, "y")["title"] == "stage1_9 by"
    assert "stage1_9.max_steps 50" in layer(figure, "bar", "saved").rows[0]["more"].splitlines()
    assert axis(figure, "x")["title"] == "compute (effective steps)"


def test_the_nominal_line_stands_behind_the_paid_one(shared: dict[str, Any]) -> None:
    nominal, paid = layers(reuse_figures.best_by_compute(found(shared), "final_loss"), "line")
    assert (paid.name, nominal.name) == ("paid", "without reuse (nominal)")
    assert paid.column("x") == [110, 270, 330, 390, 490, 490, 550]
    assert nominal.column("x") == [110, 270, 430, 590, 690, 790, 950]
    assert paid.column("y") == nominal.column("y")
    assert {paid.mark["interpolate"], nominal.mark["interpolate"]} == {"step-after"}
    assert nominal.mark["opacity"] < paid.mark["opacity"]


def test_no_more_prefixes_are_drawn_than_can_be_read(shared: dict[str, Any]) -> None:
    document = many(shared, 40)
    figure = reuse_figures.prefixes(found(document))
    assert len(layer(figure, "bar", "the shared stage").rows) == 30
    page = render(document)
    assert "; the first 30" in words(page)
    assert words(page).count("stage1_9 2 100 100") == 40  # the table has them all


def test_unusual_prefixes_have_names(shared: dict[str, Any]) -> None:
    rows = shared["trials"]
    rows[1]["stages"] = rows[1]["stages"][1:]  # it runs again, and has not ended its Stage 1.9 yet
    first = found(shared).prefixes[0]
    assert reuse_figures.name_of(first) == "unknown"
    for row in (rows[2], rows[3]):
        row["stages"][0]["reused_from"] = None
    first = found(shared).prefixes[0]
    assert reuse_figures.name_of(first) == "trials 2, 3"
    for row in (rows[5], rows[6]):
        row["stages"][0]["reused_from"] = None
    rows.append(rows[6] | {"trial": 9, "stages": [rows[6]["stages"][0] | {"reused_from": 2}]})
    assert reuse_figures.name_of(found(shared).prefixes[0]) == "trials 2 and 3 more"


def test_a_hostile_name_of_a_stage_stays_text(shared: dict[str, Any]) -> None:
    for row in shared["trials"]:
        for stage in row.get("stages", ()):
            stage["name"] = "<img src=x onerror=alert(1)>"
    page = render(shared)
    assert "<img" not in page.replace(vega_bundle(), "")


def test_without_a_result_there_is_a_tree_and_no_curve(shared: dict[str, Any]) -> None:
    for row in shared["trials"]:
        if row["status"] == "completed":
            row["metrics"]["final_loss"] = None
    page = render(shared)
    assert 'id="prefixes"' in page
    assert 'id="paid"' not in page


def test_several_objectives_are_drawn_by_the_first(shared: dict[str, Any]) -> None:
    shared["objectives"] = [
        {"metric": "accuracy", "goal": "maximize"},
        {"metric": "final_loss", "goal": "minimize"},
        {"metric": "effective_steps", "goal": "minimize"},
    ]
    for row in shared["trials"]:
        row["metrics"]["accuracy"] = 0.1 * row["trial"]
    text = words(render(shared))
    assert "best accuracy" in text
    assert "5 100 400 0.6" in text.replace("\xa0", " ")


class TestPictures:
    def test_they_show_what_the_report_shows(self, shared: dict[str, Any], tmp_path: Path) -> None:
        once = notebook.shared(TrialsTable.from_document(shared), "final_loss")
        for picture in (
            notebook.paid_picture(once, "final_loss", str(tmp_path)),
            notebook.prefixes_picture(once, str(tmp_path)),
        ):
            assert isinstance(picture, notebook.Picture)
            assert picture.png.stat().st_size > 2000
        assert {path.stem for path in tmp_path.iterdir()} == {"paid", "prefixes"}
        drawn = (tmp_path / "prefixes.svg").read_text()
        for text in ("5 trials", "stage1_9 by", "saved", "compute (effective steps)"):
            assert text in drawn, text
        assert "without reuse (nominal)" in (tmp_path / "paid.svg").read_text()

    def test_without_reuse_the_notebook_says_so_once(self, sweep: dict[str, Any], tmp_path: Path) -> None:
        once = notebook.shared(TrialsTable.from_document(sweep), "final_loss")
        assert "Nothing was reused" in str(notebook.paid_picture(once, "final_loss", str(tmp_path)))
        assert notebook.prefixes_picture(once, str(tmp_path)) is None

    @pytest.mark.parametrize("value", [None, 0.0], ids=["no value", "all equal"])
    def test_values_that_draw_no_curve_are_no_error(
        self, shared: dict[str, Any], tmp_path: Path, value: float | None
    ) -> None:
        for row in shared["trials"]:
            row["metrics"]["final_loss"] = value
        once = notebook.shared(TrialsTable.from_document(shared), "final_loss")
        answer = notebook.paid_picture(once, "final_loss", str(tmp_path))
        assert isinstance(answer, notebook.Picture) == (value is not None)
