"""Plots of few trials, and sweeps of other programs than the trainer."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.errors import TableError
from analysis.notebook import load
from analysis.report.contents import contents
from analysis.report.footnotes import notes
from analysis.report.report import render
from analysis.report.style import scale
from analysis.summaries.compute import is_compute


def document(
    values: list[tuple[float, float]], *, second: str = "latency_ms", parameter: str = "x"
) -> dict[str, Any]:
    trials = [
        {
            "trial": index, "status": "completed", "attempt": 1, "generator": "sobol",
            "parameters": {parameter: index + 1}, "metrics": {"loss": loss, second: other}, "error": None,
            "worker": "w", "seconds": 1.0,
        }
        for index, (loss, other) in enumerate(values)
    ]  # fmt: skip
    goals = [{"metric": metric, "goal": "minimize"} for metric in ("loss", second)]
    return {"schema": 1, "name": "toy", "url": "u", "objectives": goals, "run_cap": 9, "trials": trials}


@pytest.mark.parametrize("value", [3.2, 1e-6, 4e9, -0.5])
def test_single_value_is_centred_on_its_axis(value) -> None:
    low, high = scale([value]).domain or (0, 0)
    assert low < value < high
    assert high - low == pytest.approx(0.2 * abs(value))


def test_zero_and_what_else_is_drawn_are_on_the_axis() -> None:
    assert scale([0.0, 0.0]).domain == (-1.0, 1.0)
    for values in ([3.0], [3.0, 3.1]):
        low, high = scale(values, [2.0, 4.5]).domain or (0, 0)
        assert low < 2.0 < 4.5 < high
    assert scale([]).domain is None


def test_front_over_milliseconds_is_not_about_compute() -> None:
    values = [(3.0 - 0.1 * n, 10.0 + n) for n in range(8)]
    page = contents(document(values))
    assert not page.is_over_compute
    assert page.tradeoff.fit is None
    text = render(document(values))
    visible = text.split("<h2>The trade-off</h2>")
    assert len(visible) == 2
    assert "What the compute buys" not in text
    assert "Stage 1.9" not in visible[1].partition("<script")[0]
    assert "efficient" not in notes(page, [])


def test_footnotes_of_effective_steps_name_the_stage() -> None:
    values = [(3.0 - 0.1 * n, 100.0 * (n + 1)) for n in range(8)]
    page = contents(document(values, second="effective_steps", parameter="stage1_9.max_steps"))
    assert page.is_over_compute
    assert "Stage 1.9" in notes(page, [])["efficient"].source
    assert "What the compute buys" in render(document(values, second="effective_steps"))


def test_a_report_of_one_trial_has_axes_around_its_point() -> None:
    page = render(document([(3.2, 0.004)]))
    assert '"domain":[2.88,3.52' in page.replace(" ", "").replace("2.8800000000000003", "2.88")


@pytest.mark.parametrize(
    ("column", "expected"),
    [("effective_steps", True), ("train_flops", True), ("seconds", True), ("usd", True), ("cost_nominal", True),
     ("latency_ms", False), ("loss", False), ("milliseconds", False)],
)  # fmt: skip
def test_which_columns_measure_compute(column, expected) -> None:
    assert is_compute(column) is expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "there are no trials yet"),
        ("0,running,1,sobol,0.5,\n1,failed,1,sobol,0.2,\n", "no trial is completed yet"),
    ],
)
def test_a_notebook_says_that_there_are_no_trials_yet(tmp_path, rows, message) -> None:
    table = tmp_path / "trials.csv"
    table.write_text("trial,status,attempt,generator,param.x,loss\n" + rows)
    with pytest.raises(TableError, match=message):
        load(str(table))
