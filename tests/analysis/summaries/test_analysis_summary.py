"""What `sweep pareto` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from analysis.errors import AnalysisError, MissingColumn, NotNumeric
from analysis.summaries.summary import default_axes, find_baseline, pareto
from analysis.summaries.summary_line import Objective, best_trial, objectives
from analysis.table import TrialsTable, from_document, read

GOLDEN = Path(__file__).parents[2] / "golden" / "analysis_pareto_length_sweep.json"
LOSS = {"metric": "final_loss", "goal": "minimize"}


def test_the_length_sweep_gives_the_golden_document(length_sweep_file: Path) -> None:
    result = pareto(read(length_sweep_file), x="effective_steps", y="final_loss", baseline=7.83)
    assert json.dumps(result.to_json(), indent=1) + "\n" == GOLDEN.read_text()


def test_front_efficiency_and_knee_of_the_lengths(length_sweep_file: Path) -> None:
    table = read(length_sweep_file)
    result = pareto(table, x="effective_steps", y="final_loss", baseline=7.83)
    assert result.front == (0, 1, 2, 3, 4)
    assert result.most_efficient is not None
    assert result.knee is not None
    assert table["stage1_9_steps"].iloc[[result.most_efficient, result.knee]].tolist() == [200, 500]


def test_no_most_efficient_without_baseline(length_sweep_file: Path) -> None:
    result = pareto(read(length_sweep_file), x="total_minutes", y="final_loss")
    assert (result.most_efficient, result.baseline) == (None, None)


def test_a_foreign_tables_trial_is_its_row_and_gaps_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("trial,x,y\n70,,1\n71,3,1\n72,1,3\n73,inf,0\n74,4,\n")
    result = pareto(read(tmp_path / "t.csv"), x="x", y="y")
    assert result.to_json() == {
        "x": "x",
        "y": "y",
        "points": [{"trial": 1, "x": 3.0, "y": 1.0}, {"trial": 2, "x": 1.0, "y": 3.0}],
        "front": [2, 1],
        "most_efficient": None,
        "knee": None,
    }


def test_only_completed_trials_of_a_sweep_count(sweep: dict[str, Any]) -> None:
    sweep["trials"][2]["status"] = "early_stopped"
    sweep["trials"].reverse()
    result = pareto(from_document(sweep), x="effective_steps", y="final_loss")
    assert [point.trial for point in result.points] == [5, 4, 1, 0]
    assert result.front == (0, 1, 4, 5)
    assert result.knee == 4


def test_a_trial_outside_of_the_constraints_is_on_no_front(sweep: dict[str, Any]) -> None:
    assert 1 in pareto(TrialsTable.from_document(sweep), x="effective_steps", y="final_loss").front
    result = pareto(
        TrialsTable.from_document(sweep | {"infeasible": [1]}), x="effective_steps", y="final_loss"
    )
    assert 1 not in [point.trial for point in result.points]
    with pytest.raises(AnalysisError, match="field infeasible is 1; it is a list of trials"):
        TrialsTable.from_document(sweep | {"infeasible": 1})


def test_a_sweeps_baseline_is_its_best_trial_without_stage_1_9(document: Any, trial: Any) -> None:
    table = TrialsTable.from_frame(
        from_document(
            document(
                trial(0, 4.2, stage1_9=0),
                trial(1, 4.0, stage1_9=0),
                trial(2, 3.0, stage1_9=0, status="failed"),
                trial(3, 3.95, stage1_9=10, stage2=80),
                trial(4, 3.4, stage1_9=200, stage2=200),
            )
        )
    )
    result = pareto(table, x="effective_steps", y="final_loss")
    assert result.baseline == 4.0
    assert result.most_efficient == 4  # 0.6 in 600 steps, against 0.05 in 100
    assert find_baseline(table, "final_loss", "maximize") == 4.2


def test_a_given_baseline_goes_before_the_one_in_the_table(sweep: dict[str, Any]) -> None:
    result = pareto(from_document(sweep), x="effective_steps", y="final_loss", baseline=3.5)
    assert result.baseline == 3.5
    assert result.most_efficient == 4


def test_more_can_be_better_on_either_axis() -> None:
    table = pd.DataFrame({"speed": [1, 2, 3], "score": [3, 3, 1]})
    result = pareto(table, x="speed", y="score", x_goal="maximize", y_goal="maximize", baseline=0.0)
    assert result.front == (1, 2)
    assert result.most_efficient is None  # more of x is no expense
    assert pareto(table, x="speed", y="score", y_goal="maximize", baseline=0.0).most_efficient == 0


def test_a_table_without_rows_has_no_front() -> None:
    result = pareto(pd.DataFrame({"x": [], "y": []}), x="x", y="y", baseline=1.0)
    assert result.to_json() | {"x": 0, "y": 0} == {
        "x": 0,
        "y": 0,
        "points": [],
        "front": [],
        "most_efficient": None,
        "knee": None,
    }


def test_the_document_holds_nothing_that_json_lacks(sweep: dict[str, Any]) -> None:
    result = pareto(from_document(sweep), x="effective_steps", y="final_loss").to_json()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert {type(point["trial"]) for point in result["points"]} == {int}


def test_questions_that_make_no_sense_are_refused(length_sweep_file: Path) -> None:
    table = read(length_sweep_file)
    with pytest.raises(MissingColumn, match="did you mean 'final_loss'"):
        pareto(table, x="total_minutes", y="final_los")
    with pytest.raises(AnalysisError, match="two different columns"):
        pareto(table, x="final_loss", y="final_loss")
    with pytest.raises(AnalysisError, match="finite"):
        pareto(table, x="total_minutes", y="final_loss", baseline=float("nan"))
    with pytest.raises(NotNumeric, match="'word'"):
        pareto(table.assign(word="x"), x="word", y="final_loss")


def test_default_axes_of_a_sweep(sweep: dict[str, Any], document: Any, trial: Any) -> None:
    table = TrialsTable.from_frame(from_document(sweep))
    assert default_axes(table, [LOSS]) == ("effective_steps", "final_loss")
    usd = {"metric": "usd", "goal": "minimize"}
    assert default_axes(table, [LOSS, usd]) == ("usd", "final_loss")
    assert default_axes(table, []) is None
    bare = trial(0, score=1.0)
    bare["parameters"] = {}
    table = TrialsTable.from_frame(from_document(document(bare)))
    assert default_axes(table, [{"metric": "score"}]) == ("seconds", "score")
    bare["seconds"] = None
    assert default_axes(TrialsTable.from_frame(from_document(document(bare))), [{"metric": "score"}]) is None


def test_confirmed_configuration_is_one_point(
    confirmed: dict[str, Any],
) -> None:
    result = pareto(from_document(confirmed), x="effective_steps", y="final_loss")
    assert result.front == (0, 1, 4)
    assert [point.trial for point in result.points] == [0, 1, 2, 4, 5]
    assert result.to_json()["points"][-2:] == [
        {"trial": 4, "x": 260.0, "y": pytest.approx(3.39), "confirmed_by_seeds": 2},
        {"trial": 5, "x": 860.0, "y": pytest.approx(3.42), "confirmed_by_seeds": 2},
    ]
    assert result.to_json()["points"][0]["confirmed_by_seeds"] == 0


def test_confirmed_winner_beats_single_observations(confirmed: dict[str, Any]) -> None:
    table = TrialsTable.from_document(confirmed)
    goals = objectives(confirmed)
    best, _ = best_trial(table, goals, None)
    assert best is not None
    assert (best.trial, best.value) == (4, "3.390 ± 0.016")
    assert best.confirmation is not None
    reach = stats.t.ppf(0.975, 2) * (0.012**2 + 0.0001) ** 0.5
    interval = (best.confirmation.low, best.confirmation.high)
    assert interval == pytest.approx((3.39 - reach, 3.39 + reach))
    assert (best.confirmation.seeds, best.confirmation.first) == (2, 3.40)
    reach = stats.t.ppf(0.975, 2) * 0.01  # it reported no error from the text
    column, *ends = best.confirmation.test or ("", 0.0, 0.0)
    assert (column, ends) == ("test_loss", pytest.approx([3.49 - reach, 3.49 + reach]))
    worst, _ = best_trial(table, [Objective(metric="final_loss", goal="maximize")], None)
    assert worst is not None
    assert worst.trial == 5


@pytest.mark.parametrize(("named", "expected"), [(5, 5), (9, 5), (1, 1), (99, 4), (None, 4)])
def test_the_export_may_name_another(confirmed: dict[str, Any], named: int | None, expected: int) -> None:
    best, _ = best_trial(TrialsTable.from_document(confirmed), objectives(confirmed), named)
    assert best is not None
    assert best.trial == expected
    assert (best.confirmation is None) == (expected == 1)
