"""The trade-off and the history, by their layers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from drawn_layers import Layer, axis, layer, layers, legend, ticks

from analysis.report.figure import Figure
from analysis.report.figures import history, tradeoff
from analysis.report.insight_figures import joint, parameter_scale
from analysis.report.parallel_figure import ABOVE, parallel
from analysis.report.style import scale
from analysis.statistics.curve import fit_curve
from analysis.summaries.insight import JointEffect, JointPoint
from analysis.summaries.summary import pareto
from analysis.table import TrialsTable, from_document, read


@pytest.fixture
def table(sweep: dict[str, Any]) -> TrialsTable:
    return TrialsTable.from_frame(from_document(sweep))


@pytest.fixture
def shown(table: TrialsTable) -> Figure:
    return tradeoff(table, pareto(table, x="effective_steps", y="final_loss"))


def points(figure: Figure, name: str) -> Layer:
    return layer(figure, "point", name)


def test_the_front_is_a_step_line_with_the_rest_beside_it(shown: Figure) -> None:
    front = [(60, 4.00), (110, 3.60), (260, 3.40), (860, 3.36)]
    assert points(shown, "Pareto front").points == front
    line = layer(shown, "line", "Pareto front")
    assert (line.points, line.mark["interpolate"]) == (front, "step-after")
    assert points(shown, "not on the front").column("y") == [3.90]


def test_a_front_of_two_gains_steps_the_other_way(table: TrialsTable) -> None:
    figure = tradeoff(table, pareto(table, x="effective_steps", y="final_loss", x_goal="maximize"))
    assert layer(figure, "line", "Pareto front").mark["interpolate"] == "step-before"


def test_the_knee_and_the_most_efficient_trial_are_named(shown: Figure) -> None:
    assert points(shown, "knee (trial 4)").column("x") == [260]
    assert points(shown, "most efficient (trial 1)").column("x") == [110]
    assert ["knee"] in [text.column("text") for text in layers(shown, "text")]


def test_standard_errors_are_error_bars(shown: Figure) -> None:
    bars = layer(shown, "rule", "Pareto front")
    for ends in (
        [row["y"] - row["low"] for row in bars.rows],
        [row["high"] - row["y"] for row in bars.rows],
    ):
        assert ends == pytest.approx([0.02, 0.012, 0.012, 0.012])


def test_without_standard_errors_there_are_no_bars(table: TrialsTable) -> None:
    bare = TrialsTable.from_frame(table.frame.drop(columns="final_loss_sem"))
    for figure in (
        tradeoff(bare, pareto(bare, x="effective_steps", y="final_loss")),
        history(bare, "final_loss"),
    ):
        assert {bar.name for bar in layers(figure, "rule")} <= {"baseline"}


def test_a_crowd_is_pale_and_the_front_stands_out(document: Any, trial: Any) -> None:
    crowd = [trial(i, 4.0 + i / 1000, stage1_9=i, final_loss_sem=0.1) for i in range(400)]
    table = TrialsTable.from_frame(from_document(document(*crowd)))
    figure = tradeoff(table, pareto(table, x="effective_steps", y="final_loss"))
    assert points(figure, "Pareto front").column("x") == [60]
    assert points(figure, "not on the front").mark["opacity"] < 1
    assert "not on the front" not in [bar.name for bar in layers(figure, "rule")]
    assert "Pareto front" in [bar.name for bar in layers(figure, "rule")]


def test_the_fitted_curve_is_drawn_where_there_are_points(length_sweep_file: Any) -> None:
    table = TrialsTable.from_frame(read(length_sweep_file))
    result = pareto(table, x="effective_steps", y="final_loss", baseline=7.83)
    curve = fit_curve([p.x for p in result.points], [p.y for p in result.points], draws=50)
    figure = tradeoff(table, result, curve)
    line = layer(figure, "line", "fitted curve")
    assert (line.rows[0]["x"], line.rows[-1]["x"]) == pytest.approx((300, 2200))
    assert line.rows[0]["y"] == pytest.approx(7.50, abs=0.01)
    band = layer(figure, "area", "95 % of the fit")
    assert all(row["low"] <= row["y"] <= row["high"] for row in band.rows)
    assert (band.channels["y"]["field"], band.channels["y2"]["field"]) == ("low", "high")


def test_the_baseline_is_drawn(shown: Figure) -> None:
    assert layer(shown, "rule", "baseline").column("y") == [4.0]
    assert ["baseline 4"] in [text.column("text") for text in layers(shown, "text")]


def test_every_kind_of_point_has_a_shape_of_its_own(table: TrialsTable, shown: Figure) -> None:
    for figure in (shown, history(table, "final_loss")):
        shapes = [(each.mark["shape"], each.is_filled) for each in layers(figure, "point")]
        assert len(shapes) == len(set(shapes)) >= 3


def test_axes_carry_units(table: TrialsTable) -> None:
    figure = tradeoff(table, pareto(table, x="seconds", y="final_loss"))
    assert axis(figure, "x")["title"] == "time of the trial (s)"
    assert axis(figure, "y")["title"] == "final loss (nats per token)"


def test_a_wide_range_gets_a_logarithmic_axis() -> None:
    frame = pd.DataFrame({"flops": [1e9, 1e15], "loss": [3.0, 2.0], "signed": [-1.0, 500.0]})
    table = TrialsTable.from_frame(frame)
    figure = tradeoff(table, pareto(table, x="flops", y="loss"))
    assert [axis(figure, name)["scale"]["type"] for name in "xy"] == ["log", "linear"]
    assert ticks(figure, "x") == [f"1e+{power}" for power in range(9, 16)]
    linear = tradeoff(table, pareto(table, x="signed", y="loss"))
    assert axis(linear, "x")["scale"]["type"] == "linear"


@pytest.mark.parametrize(
    ("values", "log", "kind"),
    [
        ([0.002, 0.004, 0.008, 0.016], True, "log"),  # a narrow range that is searched on a log scale
        ([8.0, 11.0, 16.0, 23.0], True, "log"),
        ([0.0, 4.0, 8.0], True, "linear"),
        ([4.0, 4.0], True, "linear"),  # a logarithmic axis from 4 to 4 has no place for it
        ([0.002, 0.004, 0.008, 0.016], False, "linear"),
        ([0.0001, 0.01, 0.1], False, "log"),
        ([-1.0, 2.0, 4.0, 8.0], False, "linear"),
    ],
)
def test_points_along_a_parameter_keep_its_scale(values: list[float], log: bool, kind: str) -> None:
    assert parameter_scale(values, log=log).type == kind


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.001, 0.012], ["0.001", "0.002", "0.005", "0.01"]),
        ([8, 24], ["8", "10", "15", "20"]),
        ([1, 1e6], ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"]),
        ([90, 110], []),
    ],
)
def test_a_logarithmic_axis_has_a_few_ticks(values: list[float], shown: list[str]) -> None:
    assert [text for _, text in scale(values, log=True).ticks] == shown


def test_a_foreign_table_is_drawn_by_its_rows(length_sweep_file: Any) -> None:
    table = TrialsTable.from_frame(read(length_sweep_file))
    figure = tradeoff(table, pareto(table, x="effective_steps", y="final_loss", baseline=7.83))
    assert points(figure, "Pareto front").column("trial") == list(range(5))
    assert points(figure, "knee (trial 3)").column("x") == [1200]


def test_tip_has_parameters_but_not_for_thousands(table: TrialsTable) -> None:
    (first, *_) = points(history(table, "final_loss"), "botorch").rows
    assert first["x"] == 4
    assert first["more"].splitlines()[:2] == ["(botorch)", "stage1_9.max_steps 100"]
    many = TrialsTable.from_frame(
        pd.concat([table.frame] * 401, ignore_index=True).assign(trial=range(401 * len(table)))
    )
    assert "more" not in points(history(many, "final_loss"), "botorch").rows[0]


def test_history_follows_the_index_and_keeps_the_best(table: TrialsTable) -> None:
    def best(figure: Figure) -> list[tuple[float, float]]:
        return layer(figure, "line", "best so far").points

    figure = history(TrialsTable.from_frame(table.frame.iloc[::-1]), "final_loss")
    assert best(figure) == [(0, 4.00), (1, 3.60), (4, 3.40), (5, 3.36)]  # where it steps
    assert best(history(table, "final_loss", "maximize")) == [(0, 4.0), (5, 4.0)]


@pytest.mark.parametrize("trials", [4, 19, 24])
def test_no_tick_of_the_history_is_below_the_first_trial(document: Any, trial: Any, trials: int) -> None:
    """With this many, ticks may stand a trial apart."""
    rows = from_document(document(*(trial(at, 4.0) for at in range(trials))))
    low, high = axis(history(TrialsTable.from_frame(rows), "final_loss"), "x")["scale"]["domain"]
    assert -1 < low < 0
    assert trials - 1 < high < trials


def test_history_tells_generators_and_failures_apart(table: TrialsTable) -> None:
    figure = history(table, "final_loss")
    assert legend(figure) == ["baseline", "sobol", "botorch", "best so far", "failed"]
    assert points(figure, "failed").column("x") == [3]
    assert points(figure, "botorch").column("x") == [4, 5]


def test_an_unknown_generator_is_drawn_too(table: TrialsTable) -> None:
    figure = history(table.assign(generator="by hand"), "final_loss")
    assert points(figure, "by hand").column("x") == [0, 1, 2, 4, 5]


def test_a_logarithmic_axis_is_marked_in_full_numbers() -> None:
    wide = scale([62, 1900])
    assert [label for _, label in wide.ticks] == ["100", "200", "500", "1,000", "2,000"]
    assert (scale([1, 19]).type, scale([1, 19]).ticks) == ("linear", ())


def test_error_bars_end_on_a_logarithmic_axis_which_has_no_zero() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "loss": [1.0, 50.0, 30.0], "loss_sem": [5.0, 1.0, 1.0]})
    table = TrialsTable.from_frame(frame)
    figure = tradeoff(table, pareto(table, x="x", y="loss"))
    low, high = axis(figure, "y")["scale"]["domain"]
    assert 0 < low < high
    assert all(row["low"] >= low for bar in layers(figure, "rule") for row in bar.rows if "low" in row)


def test_a_fitted_curve_and_its_band_end_on_a_logarithmic_axis_which_has_no_zero() -> None:
    xs, ys = [50.0, 100.0, 200.0, 400.0, 800.0, 1600.0], [0.01, 0.12, 0.3, 0.41, 0.5, 0.55]
    table = TrialsTable.from_frame(pd.DataFrame({"x": xs, "accuracy": ys}))
    curve = fit_curve(xs, ys, goal="maximize", draws=50)
    assert all(part[0] < 0 for part in curve.predict(xs)[:2])
    figure = tradeoff(table, pareto(table, x="x", y="accuracy", y_goal="maximize"), curve)
    scale = axis(figure, "y")["scale"]
    assert scale["type"] == "log"
    band, line = layer(figure, "area", "95 % of the fit"), layer(figure, "line", "fitted curve")
    assert min(*band.column("low"), *band.column("high"), *line.column("y")) == scale["domain"][0]


def test_a_crowds_history_is_small_and_has_no_bars(document: Any, trial: Any) -> None:
    crowd = (trial(i, 4.0 + i / 1000, final_loss_sem=0.1) for i in range(400))
    figure = history(TrialsTable.from_frame(from_document(document(*crowd))), "final_loss")
    assert points(figure, "sobol").mark["size"] == 16
    assert layers(figure, "rule") == []


def test_confirmed_points_are_filled_and_all_others_hollow(confirmed: dict[str, Any]) -> None:
    table = TrialsTable.from_frame(from_document(confirmed))
    figure = tradeoff(table, pareto(table, x="effective_steps", y="final_loss"))
    filled = points(figure, "confirmed by 2 seeds")
    assert filled.column("x") == [260, 860]
    assert filled.column("y") == pytest.approx([3.39, 3.42])
    sem = (0.012**2 + 0.0001) ** 0.5
    assert [row["high"] - row["y"] for row in filled.rows] == pytest.approx([sem] * 2)
    assert points(figure, "Pareto front").column("x") == [60, 110, 260]
    assert points(figure, "not on the front").column("y") == [3.90]  # 5 was confirmed, if off the front
    assert [each.name for each in layers(figure, "point") if each.is_filled] == ["confirmed by 2 seeds"]


def test_fresh_runs_are_no_progress_of_the_search(confirmed: dict[str, Any]) -> None:
    figure = history(TrialsTable.from_frame(from_document(confirmed)), "final_loss")
    assert points(figure, "confirm").column("x") == [7, 8, 9, 10, 11]
    assert layer(figure, "line", "best so far").column("x") == [0, 1, 4, 5]


def test_trials_without_a_conditional_number_cross_its_axis_below_the_numbers() -> None:
    momentum = [0.9, None, 0.5, None, 0.7, 10.0, None]
    frame = {
        "trial": range(7),
        "status": "completed",
        "param.kind": ["adamw" if value is None else "muon" for value in momentum],
        "param.momentum": momentum,
        "loss": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    }
    figure = parallel(TrialsTable.from_frame(pd.DataFrame(frame)), "loss")
    heights = {
        row["trial"]: row["y"] for line in layers(figure, "line") for row in line.rows if row["x"] == 1
    }
    assert {trial for trial, height in heights.items() if height == 0} == {1, 3, 6}
    assert heights[2] == ABOVE
    assert heights[2] < heights[4] < heights[0] < heights[5] == 1
    texts = {row["y"]: row["text"] for each in layers(figure, "text") for row in each.rows if row["x"] == 1}
    assert (texts[0], texts[ABOVE], texts[1]) == ("–", "0.5", "10")


def test_lines_are_of_trials_within_the_outcome_constraints(document: Any, trial: Any) -> None:
    """The best ten by their value are outside: they are not the best tenth, and move no end of an axis."""
    trials = [trial(at, 3.0 + at / 100, stage1_9=50 + at) for at in range(100)]
    table = TrialsTable.from_document(document(*trials) | {"infeasible": list(range(10))})
    figure = parallel(table, "final_loss")
    assert {row["trial"] for row in layer(figure, "line", "best tenth").rows} == set(range(10, 19))
    assert {row["trial"] for line in layers(figure, "line") for row in line.rows} == set(range(10, 100))
    texts = {row["y"]: row["text"] for each in layers(figure, "text") for row in each.rows if row["x"] == 0}
    assert (texts[0], texts[1]) == ("60", "149")


def test_joint_effect_has_a_rectangle_per_pair_with_the_largest_value_on_top() -> None:
    rates = [10.0**-at for at in range(11, 0, -1)]
    kinds = ["muon", "<b>adamw"]
    cells = [JointPoint(x=rate, y=kind, mean=rate + len(kind)) for rate in rates for kind in kinds]
    figure = joint(JointEffect(x="lr", y="kind", cells=cells), "loss")
    drawn = layer(figure, "rect", "text")
    assert [(row["x"], row["y"]) for row in drawn.rows[:3]] == [(0, 1), (0, 0), (1, 1)]
    assert drawn.rows[1]["mean"] == rates[0] + len(kinds[1])
    assert ticks(figure, "y") == kinds[::-1]
    assert [name for name in ticks(figure, "x") if name] == ["1e-11", "1e-6", "0.1"]
