"""The figures of papers and notebooks: their files, what their SVG holds, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn_layers import layer, layers, ticks, words

from analysis import notebook
from analysis.report.efficiency_figures import comparison, efficiency, iso_compute
from analysis.report.figure import Figure
from analysis.report.figures import tradeoff
from analysis.report.insight_figures import sensitivities
from analysis.statistics.curve import fit_curve
from analysis.statistics.lengths import fit_surface
from analysis.summaries.insight import insight
from analysis.summaries.paired import Paired
from analysis.summaries.summary import pareto
from analysis.summaries.uncertainty import estimate_uncertainty
from analysis.table import TrialsTable, from_document, read


def tradeoff_of_the_length_sweep(file: Path) -> Figure:
    table = TrialsTable.from_frame(read(file))
    result = pareto(table, x="effective_steps", y="final_loss", baseline=7.83)
    return tradeoff(table, result, fit_curve([p.x for p in result.points], table.floats("final_loss")))


def test_the_length_sweep_as_a_picture(length_sweep_file: Path) -> None:
    figure = tradeoff_of_the_length_sweep(length_sweep_file)
    shown = words(figure)
    for word in (
        "effective steps",
        "final loss (nats per token)",
        "Pareto front",
        "fitted curve",
        "95 % of the fit",
        "baseline 7.83",
        "knee (trial 3)",
        "most efficient (trial 2)",
    ):
        assert word in shown
    step = layer(figure, "line", "Pareto front")
    assert step.points == [(300, 7.52), (400, 6.92), (600, 6.39), (1200, 5.39), (2200, 4.84)]
    # Nobody needs colours: each kind of point has its own shape, each line its own dashes.
    lines = [*layers(figure, "line"), layer(figure, "rule", "baseline")]
    dashes = [tuple(line.mark.get("strokeDash", ())) for line in lines]
    assert len(dashes) == len(set(dashes)) == 3


def test_the_same_table_gives_the_same_files_in_both_formats(length_sweep_file: Path, tmp_path: Path) -> None:
    files, contents = (tmp_path / "a.png", tmp_path / "a.svg"), []
    for _ in range(2):
        assert tradeoff_of_the_length_sweep(length_sweep_file).save(tmp_path / "a.svg") == files
        contents.append([file.read_bytes() for file in files])
        for file in files:
            file.write_bytes(b"an older one, which is replaced")
    assert contents[0] == contents[1]
    png, svg = contents[0]
    assert png.startswith(b"\x89PNG")
    assert svg.startswith(b"<svg")


def test_a_number_in_a_name_is_no_suffix(tmp_path: Path) -> None:
    rule = comparison([("with", Paired(differences=(-0.1, -0.2)))])
    assert rule.save(tmp_path / "at-1.7e9") == (tmp_path / "at-1.7e9.png", tmp_path / "at-1.7e9.svg")


def test_efficiency_stars_the_most_efficient(sweep: dict[str, Any]) -> None:
    table = TrialsTable.from_frame(from_document(sweep))
    result = pareto(table, x="effective_steps", y="final_loss")
    shown = words(efficiency(result, estimate_uncertainty(table, result)))
    assert "improvement per 100 effective steps" in shown
    assert "most efficient (trial 1)" in shown


def test_iso_compute_says_which_splits_nobody_tried() -> None:
    pairs = np.array([(a, b) for a in (0, 25, 50, 100) for b in (60, 120, 240)], dtype=float)
    losses = 2.5 + 0.8 * (1 + pairs[:, 0]) ** -0.3 + 12 * (1 + pairs[:, 1]) ** -0.6
    surface = fit_surface(pairs[:, 0], pairs[:, 1], losses, draws=2)
    figure = iso_compute(surface, [200, 5000])
    shown = words(figure)
    assert "200 effective steps" in shown
    assert "5,000 effective steps (best split not tried)" in shown
    thick, thin = (line for line in layers(figure, "line") if line.name == "200 effective steps")
    assert 0 < len(thick.rows) < len(thin.rows)
    assert thick.mark["strokeWidth"] > thin.mark["strokeWidth"]


def test_comparisons_show_every_pair_its_mean_and_interval() -> None:
    paired = Paired(differences=(-0.1, -0.2, -0.15))
    figure = comparison([("with\n− without", paired)])
    assert ticks(figure, "y") == [["with", "− without"]]
    dots, mean = layers(figure, "point")
    assert dots.column("x") == [-0.1, -0.2, -0.15]
    assert mean.column("x") == pytest.approx([-0.15])
    interval = layer(figure, "rule", mean.name).rows[0]
    assert (interval["low"], interval["high"]) == pytest.approx(paired.interval)
    assert layer(figure, "rule", "no difference").column("x") == [0]
    assert "with− without" in "".join(words(figure))


def test_sensitivities_have_the_most_important_on_top(mattered: dict[str, Any]) -> None:
    (view,) = insight(mattered["insight"]).metrics.values()
    figure = sensitivities(view)
    assert ticks(figure, "y")[0] == "lr"
    together, alone = layers(figure, "bar")
    assert (together.column("end"), alone.column("end")) == ([60, 30, 10], [50, 20, 10])
    assert "with others" in words(figure)


class TestNotebookCalls:
    """What cannot be answered is answered with the reason."""

    def test_a_table_of_points_holds_the_three_words(self, sweep: dict[str, Any]) -> None:
        result, sure = notebook.tradeoff(from_document(sweep), "effective_steps", "final_loss")
        rows = notebook.points(result, sure)
        assert rows.index[rows["front"]].tolist() == [0, 1, 4, 5]
        assert rows.index[rows["knee"]].tolist() == [4]
        assert rows.index[rows["most efficient"]].tolist() == [1]
        assert rows["chance: front"].between(0, 1).all()

    def test_splits_cost_what_the_table_says(self, document: Any, trial: Any, tmp_path: Path) -> None:
        lengths = [(a, b) for a in (0, 25, 50) for b in (60, 120, 240)]
        trials = [
            trial(at, 3.0 - 0.01 * at, stage1_9=a, stage2=b, effective_steps=2.0 * a + 2 * b)
            for at, (a, b) in enumerate(lengths)
        ]
        table = from_document(document(*trials))
        drawn = notebook.iso_compute(table, "final_loss", [300], str(tmp_path))
        assert isinstance(drawn, notebook.Picture)
        thin = [line for line in layers(drawn.figure, "line") if line.mark["strokeWidth"] < 1]
        tried = [line for line in layers(drawn.figure, "line") if line.mark["strokeWidth"] > 1]
        assert (thin[0].column("x")[0], thin[0].column("x")[-1]) == (0, 100)
        # 0 to 50 steps of Stage 1.9, with 150 to 100 of Stage 2.
        assert (min(tried[0].column("x")), max(tried[0].column("x"))) == (0, pytest.approx(100 / 3, abs=0.3))
        odd = table.assign(effective_steps=table["effective_steps"] + table["trial"] ** 2)
        assert "do not follow from" in str(notebook.iso_compute(odd, "final_loss", [300], str(tmp_path)))

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


def test_pictures_fill_what_is_confirmed(confirmed: dict[str, Any]) -> None:
    table = TrialsTable.from_document(confirmed)
    result = pareto(table, x="effective_steps", y="final_loss")
    for figure in (tradeoff(table, result), efficiency(result, estimate_uncertainty(table, result))):
        assert "confirmed by 2 seeds" in words(figure)
        (filled,) = (each for each in layers(figure, "point") if each.is_filled)
        assert filled.name == "confirmed by 2 seeds"
        assert filled.column("x") == [260, 860]


def test_notebook_counts_seeds_only_of_confirmed(sweep: dict[str, Any], confirmed: dict[str, Any]) -> None:
    x, y = "effective_steps", "final_loss"
    rows = notebook.points(*notebook.tradeoff(TrialsTable.from_document(confirmed), x, y))
    assert rows["confirmed by seeds"].to_dict() == {0: 0, 1: 0, 2: 0, 4: 2, 5: 2}
    plain = notebook.points(*notebook.tradeoff(TrialsTable.from_document(sweep), x, y))
    assert "confirmed by seeds" not in plain
