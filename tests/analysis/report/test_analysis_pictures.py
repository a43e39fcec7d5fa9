"""The figures for papers, by what their SVG holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import notebook
from analysis.report import pictures
from analysis.statistics.curve import fit_curve
from analysis.statistics.lengths import fit_surface
from analysis.summaries.insight import insight
from analysis.summaries.paired import Paired
from analysis.summaries.seeds import over_seeds
from analysis.summaries.summary import pareto
from analysis.summaries.uncertainty import estimate_uncertainty
from analysis.table import TrialsTable, from_document, read

SVG = "{http://www.w3.org/2000/svg}"


def words(figure: Figure, folder: Path) -> list[str]:
    """All text of the figure's SVG."""
    _, svg = pictures.save(figure, folder / "figure")
    return ["".join(text.itertext()) for text in ElementTree.parse(svg).iter(f"{SVG}text")]


def tradeoff_of_the_length_sweep(file: Path) -> Figure:
    table = TrialsTable.of(read(file))
    result = pareto(table, x="effective_steps", y="final_loss", baseline=7.83)
    return pictures.tradeoff(
        table, result, fit_curve([p.x for p in result.points], table.floats("final_loss"))
    )


def test_the_length_sweep_as_a_picture(length_sweep_file: Path, tmp_path: Path) -> None:
    figure = tradeoff_of_the_length_sweep(length_sweep_file)
    shown = words(figure, tmp_path)
    for word in (
        "effective steps",
        "final loss (nats per token)",
        "Pareto front",
        "fitted curve",
        "95 % of the fit",
        "baseline",
        "knee (trial 3)",
        "most efficient (trial 2)",
    ):
        assert word in shown
    axes = figure.axes[0]
    step = next(line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert np.asarray(step.get_xydata()).tolist() == [
        [300, 7.52],
        [400, 6.92],
        [600, 6.39],
        [1200, 5.39],
        [2200, 4.84],
    ]
    # Nobody needs colours: each kind of point has its own shape, each line its own dashes.
    dashes = [line.get_linestyle() for line in axes.lines if line.get_linestyle() != "None"]
    assert len(dashes) == len(set(dashes)) == 3


def test_the_same_table_gives_the_same_svg_and_both_formats(length_sweep_file: Path, tmp_path: Path) -> None:
    both = [
        pictures.save(tradeoff_of_the_length_sweep(length_sweep_file), tmp_path / name) for name in ("a", "b")
    ]
    assert both[0][1].read_bytes() == both[1][1].read_bytes()
    assert both[0][0].read_bytes().startswith(b"\x89PNG")
    assert not re.search(rb"<dc:date>", both[0][1].read_bytes())


def test_efficiency_stars_the_most_efficient(sweep: dict[str, Any], tmp_path: Path) -> None:
    table = TrialsTable.of(from_document(sweep))
    result = pareto(table, x="effective_steps", y="final_loss")
    shown = words(pictures.efficiency(result, estimate_uncertainty(table, result)), tmp_path)
    assert "improvement per 100 effective steps" in shown
    assert "most efficient (trial 1)" in shown


def test_iso_compute_says_which_splits_nobody_tried(tmp_path: Path) -> None:
    pairs = np.array([(a, b) for a in (0, 25, 50, 100) for b in (60, 120, 240)], dtype=float)
    losses = 2.5 + 0.8 * (1 + pairs[:, 0]) ** -0.3 + 12 * (1 + pairs[:, 1]) ** -0.6
    surface = fit_surface(pairs[:, 0], pairs[:, 1], losses, draws=2)
    shown = words(pictures.iso_compute(surface, [200, 5000]), tmp_path)
    assert "200 effective steps" in shown
    assert "5,000 effective steps (best split not tried)" in shown


def test_comparisons_show_every_pair_its_mean_and_interval(tmp_path: Path) -> None:
    figure = pictures.comparison([("with − without", Paired(differences=(-0.1, -0.2, -0.15)))])
    assert "with − without" in words(figure, tmp_path)
    dots, interval, mean, zero = figure.axes[0].lines
    assert list(dots.get_xdata()) == [-0.1, -0.2, -0.15]
    assert list(interval.get_xdata()) == pytest.approx(Paired(differences=(-0.1, -0.2, -0.15)).interval)
    assert mean.get_xdata()[0] == pytest.approx(-0.15)
    assert list(zero.get_xdata()) == [0, 0]


def test_sensitivities_have_the_most_important_on_top(mattered: dict[str, Any], tmp_path: Path) -> None:
    ((_, view),) = insight(mattered["insight"]).metrics
    figure = pictures.sensitivities(view)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][-1] == "lr"
    assert "with others" in words(figure, tmp_path)


def test_means_over_seeds_have_students_bars(document: Any, trial: Any, tmp_path: Path) -> None:
    trials = [trial(i, 3.0 + 0.1 * i, stage1_9=50 * (i // 2)) for i in range(4)]
    for row in trials:
        row["parameters"]["seed"] = row["trial"] % 2
    rows = over_seeds(from_document(document(*trials)))
    assert "final loss (nats per token): mean over seeds" in words(
        pictures.over_seeds(rows, "effective_steps"), tmp_path
    )


class TestNotebookCalls:
    """What cannot be answered is answered with the reason."""

    def test_a_table_of_points_holds_the_three_words(self, sweep: dict[str, Any]) -> None:
        result, sure = notebook.tradeoff(from_document(sweep), "effective_steps", "final_loss")
        rows = notebook.points(result, sure)
        assert rows.index[rows["front"]].tolist() == [0, 1, 4, 5]
        assert rows.index[rows["knee"]].tolist() == [4]
        assert rows.index[rows["most efficient"]].tolist() == [1]
        assert rows["chance: front"].between(0, 1).all()

    def test_what_is_missing_is_told(self, document: Any, trial: Any, tmp_path: Path) -> None:
        table = from_document(document(trial(0, 3.0), trial(1, 2.9, stage1_9=100)))
        result, sure = notebook.tradeoff(table, "effective_steps", "final_loss")
        out = str(tmp_path)
        assert "needs a baseline" in str(notebook.efficiency_picture(result, sure, out))
        assert "4 different amounts" in str(notebook.what_buys(table, "effective_steps", "final_loss", [100]))
        assert "3 different lengths" in str(notebook.iso_compute(table, "final_loss", [100], out))
        pairs, answers = notebook.ablations(table, [["stage1_9.max_steps", 3, 4]], "final_loss")
        assert "no pairs" in answers["note"].iloc[0]
        assert "no pairs" in str(notebook.ablation_picture(pairs, "final_loss", out))
        assert "param.seed" in str(notebook.means(table))
        png, size = notebook.tradeoff_picture(table, result, out)._repr_png_()
        assert png == (tmp_path / "pareto.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert size == {"width": 640}
        empty, nothing = notebook.tradeoff(pd.DataFrame({"x": [], "y": []}), "x", "y")
        assert notebook.points(empty, nothing).empty
        assert notebook.hypervolume(empty, nothing) == "There are no points."


def test_pictures_fill_what_is_confirmed(confirmed: dict[str, Any], tmp_path: Path) -> None:
    table = TrialsTable.of_document(confirmed)
    result = pareto(table, x="effective_steps", y="final_loss")
    for figure in (
        pictures.tradeoff(table, result),
        pictures.efficiency(result, estimate_uncertainty(table, result)),
    ):
        assert "confirmed by 2 seeds" in words(figure, tmp_path)
        lines = [line for line in figure.axes[0].lines if line.get_marker() in ("o", "s", "H")]
        assert {line.get_markerfacecolor() == "none" for line in lines if line.get_marker() != "H"} == {True}
        (filled,) = (line for line in lines if line.get_marker() == "H")
        assert filled.get_markerfacecolor() != "none"
        assert list(filled.get_xdata()) == [260, 860]


def test_the_notebooks_table_counts_seeds_only_where_trials_are_confirmed(
    sweep: dict[str, Any], confirmed: dict[str, Any]
) -> None:
    x, y = "effective_steps", "final_loss"
    rows = notebook.points(*notebook.tradeoff(TrialsTable.of_document(confirmed), x, y))
    assert rows["confirmed by seeds"].to_dict() == {0: 0, 1: 0, 2: 0, 4: 2, 5: 2}
    plain = notebook.points(*notebook.tradeoff(TrialsTable.of_document(sweep), x, y))
    assert "confirmed by seeds" not in plain
