"""Trunks and branches, and values against lengths, in the report and in pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from drawn_layers import axis, layers, ticks

from analysis import notebook
from analysis.report import trunk_figures
from analysis.report.page_scripts import vega_bundle
from analysis.report.report import render
from analysis.report.trunk_layout import PARTS, Layout, layouts
from analysis.summaries.reuse import Reuse, reuse
from analysis.table import TrialsTable


def found(document: dict[str, Any]) -> Reuse:
    shared = reuse(TrialsTable.from_document(document), "final_loss")
    assert shared is not None
    return shared


def drawing(document: dict[str, Any]) -> Layout:
    (only,) = layouts(found(document).trunks, "minimize")
    return only


def words(html: str) -> str:
    """The section of the page, without markup."""
    section = html.split("<h2>What was paid for once")[1].split("<h2>")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", section).split())


def test_the_page_draws_trunks_and_lengths_and_explains_them(branched: dict[str, Any]) -> None:
    page = render(branched)
    assert page.index('id="trunks-0"') < page.index('id="lengths-0"') < page.index('id="prefixes"')
    text = words(page)
    assert "1,160 of 1,780 effective steps paid; 35 % saved by 1 reused stage and 4 branches" in text
    assert "each branches off where its own decay begins" in text
    assert "each end pays for its decay alone" in text
    assert "drawn are" not in text
    notes = page.split("<h2>The front</h2>")[1]
    assert "counts as if it had computed it, and so does the part from a trunk" in notes
    for subject in ("Trunks and branches", "Lengths", "whose part saved was not paid", "column trunk_points"):
        assert subject in notes, subject
    assert "trunk_points" not in page.split("All trials")[1].split("</table>")[0]  # a list is no cell


def test_a_sweep_that_reused_only_ends_has_no_word_of_trunks(shared: dict[str, Any]) -> None:
    page = render(shared)
    assert "trunk" not in words(page)
    assert "trunk" not in page.split("<h2>The front</h2>")[1].split("<footer>")[0]


def test_branches_without_reuse_have_no_tree_of_prefixes(branched: dict[str, Any]) -> None:
    del branched["trials"][3]
    page = render(branched)
    assert 'id="trunks-0"' in page
    assert 'id="prefixes"' not in page
    assert "Trials that agree up to the end of a stage" not in words(page)


def test_branch_is_drawn_from_trunk_to_end(branched: dict[str, Any]) -> None:
    figure = trunk_figures.trunks(drawing(branched), found(branched))
    branches = [line for line in layers(figure, "line") if line.name == "branch"]
    assert [line.points for line in branches] == [
        [(320, 0), (320, 1.6), (400, 1.6)],
        [(208, 0), (208, 2.6), (260, 2.6)],
        [(160, 0), (160, 3.6), (200, 3.6)],
        [(80, 0), (80, 4.6), (100, 4.6)],
        [(160, 6.6), (160, 6.6), (200, 6.6)],
        [(80, 6.6), (80, 7.6), (100, 7.6)],
    ]
    texts = [text for text in layers(figure, "text") if "fontWeight" in text.mark]
    assert [text.column("text") for text in texts][:2] == [["3.2 · trial 2"], ["no result · trial 5"]]
    assert [text.mark["fontWeight"] for text in texts] == ["bold"] + ["normal"] * 5
    assert "2 trials: 1, 3" in branches[3].rows[0]["more"]


def test_an_end_outside_of_the_constraints_is_no_end_without_a_result(branched: dict[str, Any]) -> None:
    known = {end.text for line in drawing(branched | {"infeasible": [2]}).lines for end in line.ends}
    assert {"outside of the constraints · trial 2", "no result · trial 5"} <= known


def test_a_trunk_is_a_line_with_its_points(branched: dict[str, Any]) -> None:
    figure = trunk_figures.trunks(drawing(branched), found(branched))
    lines = [line for line in layers(figure, "line") if line.name == "trunk"]
    assert [line.points for line in lines] == [[(0, 0), (360, 0)], [(0, 6.6), (160, 6.6)]]
    assert "trunk of trial 0, 51 % saved" in lines[0].rows[0]["more"]
    stored, removed = (points for points in layers(figure, "point") if points.name == "point")
    assert removed.column("x") == [40, 80, 120, 160]
    assert (stored.is_filled, removed.is_filled) == (True, False)
    assert removed.rows[0]["more"] == "point at step 20, removed since"
    assert ticks(figure, "y")[0][0] == "trial 0"
    upper, lower = axis(figure, "y")["scale"]["domain"][::-1]
    assert upper < lower  # downwards
    assert axis(figure, "x")["title"] == "compute of stage1_9 (effective steps)"
    assert tuple(text.rows[0]["text"] for text in layers(figure, "text") if "fontStyle" in text.mark) == PARTS


def test_lengths_are_joined_by_trunk_the_best_in_front(branched: dict[str, Any]) -> None:
    totals = found(branched)
    figure = trunk_figures.lengths(totals.lengths[0], totals, "final_loss")
    trials, *_, star = layers(figure, "point")
    assert len(trials.rows) == 6
    other, best = layers(figure, "line")
    assert other.column("x") == [50, 100]
    assert best.points == [(50, 3.7), (100, 3.5), (200, 3.2)]
    assert (other.name, best.name, star.name) == ("another trunk", "the best trunk", "best: trial 2")
    assert best.mark["strokeWidth"] > other.mark["strokeWidth"]


def test_a_hostile_name_stays_text(branched: dict[str, Any]) -> None:
    for trial in branched["trials"]:
        for entry in (*trial.get("stages", ())[:1], *trial.get("trunk_points", ())):
            entry["name"] = "<img src=x onerror=alert(1)>"
        trial["parameters"]["<b>lr"] = trial["parameters"].pop("stage1_9.lr")
    page = render(branched)
    assert "<img" not in page.replace(vega_bundle(), "")
    (figure,) = [json.loads(text) for text in re.findall(r'data-plot="trunks-0">(.*?)</script>', page)]
    assert r'["trial 0", "<b>lr 0.1"]' in figure["layer"][0]["encoding"]["y"]["axis"]["labelExpr"]


def test_without_any_result_the_trunk_is_drawn_and_no_length(branched: dict[str, Any]) -> None:
    for trial in branched["trials"]:
        trial["metrics"].pop("final_loss", None)
    page = render(branched)
    assert 'id="trunks-0"' in page
    assert 'id="lengths-0"' not in page
    assert not any(end.is_best for end in drawing(branched).ends)


class TestPictures:
    def test_they_show_what_the_report_shows(self, branched: dict[str, Any], tmp_path: Path) -> None:
        once = notebook.shared(TrialsTable.from_document(branched), "final_loss")
        for picture in (
            notebook.trunks_picture(once, str(tmp_path)),
            notebook.lengths_picture(once, "final_loss", str(tmp_path)),
        ):
            assert isinstance(picture, notebook.Picture)
            assert picture.png.stat().st_size > 2000
        drawn = (tmp_path / "trunks.svg").read_text()
        for text in (*PARTS, "3.7 · trial 3, best of 2", "lr 0.4", "compute of stage1_9 (effective steps)"):
            assert text in drawn, text
        assert "best: trial 2" in (tmp_path / "lengths.svg").read_text()

    @pytest.mark.parametrize("stages", [1, 2])
    def test_each_stage_has_its_own_axes(self, branched: dict[str, Any], stages: int) -> None:
        if stages == 2:
            for trial in branched["trials"]:
                later = [entry | {"name": "stage1_8"} for entry in trial.get("stages", ())[:1]]
                trial["stages"] = [*later, *trial.get("stages", ())]
        totals = found(branched)
        drawings = layouts(totals.trunks, totals.goal)
        assert len(trunk_figures.all_trunks(drawings, totals).spec["concat"]) == stages
        lengths = trunk_figures.all_lengths(totals, "final_loss")
        assert len(lengths.spec.get("concat", [lengths])) == stages
        svg = lengths.to_svg()
        assert svg.count(">best: trial 2<") == 1  # one legend
        assert svg.count(">4.2<") == stages  # each has its ticks

    def test_without_trunks_there_is_no_picture(self, shared: dict[str, Any], tmp_path: Path) -> None:
        for once in (None, notebook.shared(TrialsTable.from_document(shared), "final_loss")):
            assert notebook.trunks_picture(once, str(tmp_path)) is None
            assert notebook.lengths_picture(once, "final_loss", str(tmp_path)) is None
