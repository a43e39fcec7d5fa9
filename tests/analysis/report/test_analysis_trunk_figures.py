"""Trunks and branches, and values against lengths, in the report and in pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import notebook
from analysis.report import trunk_figures, trunk_pictures
from analysis.report.report import render
from analysis.report.trunk_layout import PARTS, Layout, layouts
from analysis.summaries.reuse import Reuse, reuse
from analysis.table import TrialsTable


def found(document: dict[str, Any]) -> Reuse:
    shared = reuse(TrialsTable.of_document(document), "final_loss")
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
    assert "1,100 of 1,720 effective steps paid; 36 % saved by 1 reused stage and 4 branches" in text
    assert "each branches off where its own decay begins" in text
    assert "each end pays for its decay alone" in text
    assert "drawn are" not in text
    footer = page.split("<footer>")[1]
    assert "counts as if it had computed it, and so does the part from a trunk" in footer
    for subject in ("Trunks and branches", "Lengths", "whose part saved was not paid", "column trunk_points"):
        assert subject in footer, subject
    assert "trunk_points" not in page.split("All trials")[1].split("</table>")[0]  # a list is no cell


def test_a_sweep_that_reused_only_ends_has_no_word_of_trunks(shared: dict[str, Any]) -> None:
    page = render(shared)
    assert "trunk" not in words(page)
    assert "trunk" not in page.split("<footer>")[1].split("</dl>")[0]


def test_branches_without_reuse_have_no_tree_of_prefixes(branched: dict[str, Any]) -> None:
    del branched["trials"][3]
    page = render(branched)
    assert 'id="trunks-0"' in page
    assert 'id="prefixes"' not in page
    assert "Trials that agree up to the end of a stage" not in words(page)


def test_a_branch_goes_from_its_trunk_down_to_its_row_and_on_to_its_end(branched: dict[str, Any]) -> None:
    figure = trunk_figures.trunks(drawing(branched), found(branched))
    ends = [trace for trace in figure.data if trace.mode == "lines+markers+text"]
    assert [(list(trace.x), list(trace.y)) for trace in ends] == [
        ([320, 320, 400], [0, 1.6, 1.6]),
        ([208, 208, 260], [0, 2.6, 2.6]),
        ([160, 160, 200], [0, 3.6, 3.6]),
        ([80, 80, 100], [0, 4.6, 4.6]),
        ([160, 160, 200], [6.6, 6.6, 6.6]),
        ([80, 80, 100], [6.6, 7.6, 7.6]),
    ]
    texts = [trace.text[-1].strip() for trace in ends]
    assert texts[:2] == ["<b>3.2 · trial 2</b>", "no result · trial 5"]
    assert "2 trials: 1, 3" in ends[3].hovertemplate


def test_a_trunk_is_a_line_with_its_points(branched: dict[str, Any]) -> None:
    figure = trunk_figures.trunks(drawing(branched), found(branched))
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [(list(trace.x), list(trace.y)) for trace in lines] == [([0, 360], [0, 0]), ([0, 160], [6.6, 6.6])]
    assert "trunk of trial 0, 51 % saved" in lines[0].hovertemplate
    stored, removed = (trace for trace in figure.data if trace.mode == "markers")
    assert list(removed.x) == [40, 80, 120, 160]
    assert (set(stored.marker.symbol), set(removed.marker.symbol)) == ({"circle"}, {"circle-open"})
    assert removed.customdata[0] == "20, removed since"
    assert figure.layout.yaxis.ticktext[0].startswith("trial 0<br>")
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # downwards
    assert figure.layout.xaxis.title.text == "compute of stage1_9 (effective steps)"
    assert tuple(note.text for note in figure.layout.annotations) == PARTS


def test_lengths_are_joined_by_trunk_the_best_in_front(branched: dict[str, Any]) -> None:
    totals = found(branched)
    trials, other, best, star = trunk_figures.lengths(totals.lengths[0], totals, "final_loss").data
    assert len(trials.x) == 6
    assert (list(other.x), list(best.x), list(best.y)) == ([50, 100], [50, 100, 200], [3.7, 3.5, 3.2])
    assert (other.name, best.name, star.name) == ("another trunk", "the best trunk", "best: trial 2")
    assert best.line.width > other.line.width


def test_a_hostile_name_stays_text(branched: dict[str, Any]) -> None:
    for trial in branched["trials"]:
        for entry in (*trial.get("stages", ())[:1], *trial.get("trunk_points", ())):
            entry["name"] = "<img src=x onerror=alert(1)>"
        trial["parameters"]["<b>lr"] = trial["parameters"].pop("stage1_9.lr")
    page = render(branched)
    assert "<img" not in page
    (figure,) = [json.loads(text) for text in re.findall(r'data-plot="trunks-0">(.*?)</script>', page)]
    assert "&lt;b&gt;lr 0.1" in figure["figure"]["layout"]["yaxis"]["ticktext"][0]


def test_without_any_result_the_trunk_is_drawn_and_no_length(branched: dict[str, Any]) -> None:
    for trial in branched["trials"]:
        trial["metrics"].pop("final_loss", None)
    page = render(branched)
    assert 'id="trunks-0"' in page
    assert 'id="lengths-0"' not in page
    assert not any(end.is_best for end in drawing(branched).ends)


class TestPictures:
    def test_they_show_what_the_report_shows(self, branched: dict[str, Any], tmp_path: Path) -> None:
        once = notebook.shared(TrialsTable.of_document(branched), "final_loss")
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

    def test_their_lines_are_those_of_the_layout(self, branched: dict[str, Any]) -> None:
        (axes,) = trunk_pictures.trunks(found(branched)).axes
        paths = [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
        assert [[0, 0], [360, 0]] in paths
        assert [[80, 0], [80, 4.6], [100, 4.6]] in paths
        assert axes.yaxis_inverted()

    @pytest.mark.parametrize("stages", [1, 2])
    def test_each_stage_has_its_own_axes(self, branched: dict[str, Any], stages: int) -> None:
        if stages == 2:
            for trial in branched["trials"]:
                later = [entry | {"name": "stage1_8"} for entry in trial.get("stages", ())[:1]]
                trial["stages"] = [*later, *trial.get("stages", ())]
        totals = found(branched)
        assert len(trunk_pictures.trunks(totals).axes) == stages
        assert len(trunk_pictures.lengths(totals, "final_loss").axes) == stages

    def test_without_trunks_there_is_no_picture(self, shared: dict[str, Any], tmp_path: Path) -> None:
        for once in (None, notebook.shared(TrialsTable.of_document(shared), "final_loss")):
            assert notebook.trunks_picture(once, str(tmp_path)) is None
            assert notebook.lengths_picture(once, "final_loss", str(tmp_path)) is None
