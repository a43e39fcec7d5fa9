"""The two figures, by their traces."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from analysis.report.figures import history, tradeoff
from analysis.report.style import scale
from analysis.statistics.curve import fit_curve
from analysis.summaries.summary import pareto
from analysis.table import TrialsTable, from_document, read


def traces(figure: go.Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


@pytest.fixture
def table(sweep: dict[str, Any]) -> TrialsTable:
    return TrialsTable.of(from_document(sweep))


@pytest.fixture
def shown(table: TrialsTable) -> dict[str, Any]:
    return traces(tradeoff(table, pareto(table, x="effective_steps", y="final_loss")))


def test_the_front_is_a_step_line_with_the_rest_beside_it(shown: dict[str, Any]) -> None:
    front = shown["Pareto front"]
    assert list(front.x) == [60, 110, 260, 860]
    assert list(front.y) == [4.00, 3.60, 3.40, 3.36]
    assert front.line.shape == "hv"
    assert list(shown["not on the front"].y) == [3.90]


def test_the_knee_and_the_most_efficient_trial_are_named(shown: dict[str, Any]) -> None:
    assert (shown["knee (trial 4)"].x, shown["knee (trial 4)"].text) == ((260,), ("knee",))
    assert shown["most efficient (trial 1)"].x == (110,)


def test_standard_errors_are_error_bars(shown: dict[str, Any]) -> None:
    assert list(shown["Pareto front"].error_y.array) == [0.02, 0.012, 0.012, 0.012]


def test_without_standard_errors_there_are_no_bars(table: TrialsTable) -> None:
    bare = TrialsTable.of(table.frame.drop(columns="final_loss_sem"))
    for figure in (
        tradeoff(bare, pareto(bare, x="effective_steps", y="final_loss")),
        history(bare, "final_loss"),
    ):
        assert all(trace.error_y.array is None for trace in figure.data)


def test_a_crowd_is_pale_and_the_front_stands_out(document: Any, trial: Any) -> None:
    crowd = [trial(i, 4.0 + i / 1000, stage1_9=i, final_loss_sem=0.1) for i in range(400)]
    table = TrialsTable.of(from_document(document(*crowd)))
    shown = traces(tradeoff(table, pareto(table, x="effective_steps", y="final_loss")))
    assert list(shown["Pareto front"].x) == [60]
    assert shown["not on the front"].marker.opacity < 1
    assert shown["not on the front"].error_y.array is None
    assert shown["Pareto front"].error_y.array is not None


def test_the_fitted_curve_is_drawn_where_there_are_points(length_sweep_file: Any) -> None:
    table = TrialsTable.of(read(length_sweep_file))
    result = pareto(table, x="effective_steps", y="final_loss", baseline=7.83)
    curve = fit_curve([p.x for p in result.points], [p.y for p in result.points], draws=50)
    shown = traces(tradeoff(table, result, curve))
    assert (shown["fitted curve"].x[0], shown["fitted curve"].x[-1]) == pytest.approx((300, 2200))
    assert shown["fitted curve"].y[0] == pytest.approx(7.50, abs=0.01)
    assert shown["95 % of the fit"].fill == "tonexty"


def test_the_baseline_is_drawn(table: TrialsTable) -> None:
    figure = tradeoff(table, pareto(table, x="effective_steps", y="final_loss"))
    assert [shape.y0 for shape in figure.layout.shapes] == [4.0]
    assert figure.layout.shapes[0].label.text == "baseline 4"


def test_every_kind_of_point_has_a_shape_of_its_own(table: TrialsTable, shown: dict[str, Any]) -> None:
    for figure in (shown, traces(history(table, "final_loss"))):
        symbols = [trace.marker.symbol for trace in figure.values() if "markers" in trace.mode]
        assert len(symbols) == len(set(symbols)) >= 3


def test_axes_carry_units(table: TrialsTable) -> None:
    layout = tradeoff(table, pareto(table, x="seconds", y="final_loss")).layout
    assert layout.xaxis.title.text == "time of the trial (s)"
    assert layout.yaxis.title.text == "final loss (nats per token)"


def test_a_wide_range_gets_a_logarithmic_axis() -> None:
    frame = pd.DataFrame({"flops": [1e9, 1e15], "loss": [3.0, 2.0], "signed": [-1.0, 500.0]})
    table = TrialsTable.of(frame)
    layout = tradeoff(table, pareto(table, x="flops", y="loss")).layout
    assert (layout.xaxis.type, layout.yaxis.type) == ("log", "linear")
    assert layout.xaxis.ticktext == tuple(f"1e+{power}" for power in range(9, 16))
    assert tradeoff(table, pareto(table, x="signed", y="loss")).layout.xaxis.type == "linear"


def test_a_foreign_table_is_drawn_by_its_rows(length_sweep_file: Any) -> None:
    table = TrialsTable.of(read(length_sweep_file))
    shown = traces(tradeoff(table, pareto(table, x="effective_steps", y="final_loss", baseline=7.83)))
    assert shown["Pareto front"].text == tuple(f"trial {row}" for row in range(5))
    assert shown["knee (trial 3)"].x == (1200,)


def test_history_follows_the_index_and_keeps_the_best(table: TrialsTable) -> None:
    shown = traces(history(TrialsTable.of(table.frame.iloc[::-1]), "final_loss"))
    best = shown["best so far"]
    assert list(best.x) == [0, 1, 2, 4, 5]
    assert list(best.y) == [4.00, 3.60, 3.60, 3.40, 3.36]
    assert list(traces(history(table, "final_loss", "maximize"))["best so far"].y) == [4.0] * 5


def test_history_tells_generators_and_failures_apart(table: TrialsTable) -> None:
    shown = traces(history(table, "final_loss"))
    assert list(shown) == ["baseline", "sobol", "botorch", "best so far", "failed"]
    assert list(shown["failed"].x) == [3]
    assert list(shown["botorch"].x) == [4, 5]


def test_an_unknown_generator_is_drawn_too(table: TrialsTable) -> None:
    shown = traces(history(table.assign(generator="by hand"), "final_loss"))
    assert list(shown["by hand"].x) == [0, 1, 2, 4, 5]


def test_a_logarithmic_axis_is_marked_in_full_numbers() -> None:
    assert scale([62, 1900])["ticktext"][2:8] == ["50", "100", "200", "500", "1,000", "2,000"]
    assert scale([1, 19]) == {"type": "linear"}


def test_a_crowds_history_is_small_and_has_no_bars(document: Any, trial: Any) -> None:
    crowd = (trial(i, 4.0 + i / 1000, final_loss_sem=0.1) for i in range(400))
    table = TrialsTable.of(from_document(document(*crowd)))
    shown = traces(history(table, "final_loss"))["sobol"]
    assert (shown.marker.size, shown.error_y.array) == (4, None)


def test_confirmed_points_are_filled_and_all_others_hollow(confirmed: dict[str, Any]) -> None:
    table = TrialsTable.of(from_document(confirmed))
    shown = traces(tradeoff(table, pareto(table, x="effective_steps", y="final_loss")))
    filled = shown["confirmed by 2 seeds"]
    assert (list(filled.x), filled.marker.symbol) == ([260, 860], "hexagon")
    assert list(filled.y) == pytest.approx([3.39, 3.42])
    assert list(filled.error_y.array) == pytest.approx([(0.012**2 + 0.0001) ** 0.5] * 2)
    assert shown["Pareto front"].marker.symbol == "square-open"
    assert list(shown["Pareto front"].x) == [60, 110, 260]
    assert list(shown["not on the front"].y) == [3.90]  # 5 was confirmed, if off the front


def test_fresh_runs_are_no_progress_of_the_search(confirmed: dict[str, Any]) -> None:
    shown = traces(history(TrialsTable.of(from_document(confirmed)), "final_loss"))
    assert list(shown["confirm"].x) == [7, 8, 9, 10, 11]
    assert list(shown["best so far"].x) == [0, 1, 2, 4, 5]
