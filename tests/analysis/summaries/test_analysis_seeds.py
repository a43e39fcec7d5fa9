"""Means over seeds, and pairs of trials that differ in one parameter."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.errors import AnalysisError, MissingColumn
from analysis.summaries.paired import Paired, compare_trials
from analysis.summaries.seeds import over_seeds
from analysis.table import TrialsTable, from_document
from analysis.table.held_out import HeldOut

LOSSES = {0: (3.41, 3.44, 3.38), 100: (3.30, 3.27, 3.36)}


@pytest.fixture
def table(document: Any, trial: Any) -> pd.DataFrame:
    """Three seeds with and without Stage 1.9, a failure, and a lone configuration."""
    trials = [
        trial(2 * seed + (steps > 0), loss, stage1_9=steps, final_loss_sem=0.01)
        for steps, losses in LOSSES.items()
        for seed, loss in enumerate(losses)
    ]
    for row in trials:
        row["parameters"]["seed"] = row["trial"] // 2
    trials += [trial(6, 3.2, stage1_9=400, final_loss_sem=0.02), trial(7, status="failed", stage1_9=400)]
    trials[-2]["parameters"]["seed"], trials[-1]["parameters"]["seed"] = 0, 1
    return from_document(document(*trials))


def test_seeds_become_a_mean_with_its_error(table: pd.DataFrame) -> None:
    rows = over_seeds(table)
    assert rows["param.stage1_9.max_steps"].tolist() == [0, 100, 400]
    assert rows["seeds"].tolist() == [3, 3, 1]
    assert rows["trials"].tolist() == [[0, 2, 4], [1, 3, 5], [6]]
    for row, losses in enumerate(LOSSES.values()):
        assert rows["final_loss"].iloc[row] == pytest.approx(np.mean(losses))
        assert rows["final_loss_sem"].iloc[row] == pytest.approx(stats.sem(losses))
        low, high = stats.t.interval(0.95, 2, np.mean(losses), stats.sem(losses))
        assert rows["final_loss_range"].iloc[row] == pytest.approx((high - low) / 2)
    # A single seed knows only the noise of its evaluation.
    assert rows["final_loss_sem"].iloc[2] == 0.02
    assert math.isnan(rows["final_loss_range"].iloc[2])
    assert "param.seed" not in rows.columns


def test_the_order_of_the_trials_does_not_matter(table: pd.DataFrame) -> None:
    turned = over_seeds(table.iloc[::-1].reset_index(drop=True)).sort_values("param.stage1_9.max_steps")
    pd.testing.assert_series_equal(
        turned["final_loss_sem"].reset_index(drop=True), over_seeds(table)["final_loss_sem"]
    )


def test_missing_parameters_make_a_configuration_of_their_own(table: pd.DataFrame) -> None:
    table["param.stage1_9.k"] = [0.1, 0.1, 0.1, None, None, None, None, None]
    assert over_seeds(table)["seeds"].tolist() == [3, 3, 1]


def test_another_seed_tells_configurations_apart(table: pd.DataFrame) -> None:
    seeds = over_seeds(table.assign(**{"param.data_seed": [0, 0, 0, 1, 0, 1, 0, 0]}))["seeds"]
    assert sorted(seeds) == [1, 1, 2, 3]


def test_seeds_that_cannot_be_told_are_refused(table: pd.DataFrame) -> None:
    with pytest.raises(MissingColumn, match=r"param\.seed"):
        over_seeds(table.drop(columns="param.seed"))
    with pytest.raises(AnalysisError, match="share all parameters"):
        over_seeds(table.assign(**{"param.seed": 0}))
    with pytest.raises(AnalysisError, match="own table"):
        over_seeds(pd.DataFrame({"x": [1.0]}))


def test_without_a_completed_trial_there_is_no_row(table: pd.DataFrame) -> None:
    assert over_seeds(table.assign(status="failed")).empty


def test_pairs_differ_in_one_parameter(table: pd.DataFrame) -> None:
    found = compare_trials(table, "stage1_9.max_steps", 100, 0, "final_loss")
    assert found.differences == pytest.approx((-0.11, -0.17, -0.02))
    assert found.describe() == "-0.100 (lower in 3 of 3 seeds, p = 0.25)"
    reference = stats.ttest_1samp(found.differences, 0.0).confidence_interval(0.95)
    assert found.interval == pytest.approx((reference.low, reference.high))
    back = compare_trials(table, "stage1_9.max_steps", 0, 100, "final_loss")
    assert back.differences == pytest.approx([-d for d in found.differences])


@pytest.mark.parametrize(
    ("differences", "written"),
    [
        ((1e-4, 1.2e-4), "+0.00011 (higher in 2"),
        ((-1e-4, -1.234e-4), "-0.000112 (lower in 2"),
        ((-2e-7, -2e-7), "-2e-7 (lower in 2"),
        ((0.01, 0.01), "+0.010 (higher in 2"),
        ((-0.1, 0.1), "+0.000 (lower in 1"),
        ((-0.0, -0.0), "+0.000 (lower in 0"),
    ],
)
def test_a_small_difference_is_not_shown_as_none(differences: tuple[float, ...], written: str) -> None:
    assert Paired(differences=differences).describe().startswith(f"{written} of 2 seeds")


def test_a_parameter_that_is_off_on_one_side_is_no_difference(table: pd.DataFrame) -> None:
    table["param.stage1_9.lr"] = [None, None, None, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3]
    assert len(compare_trials(table, "stage1_9.max_steps", 100, 0, "final_loss").differences) == 3


@pytest.mark.parametrize(
    ("failed", "differences"), [((), (0.0, 0.0, 0.0)), ((1, 3), (0.0,))], ids=["complete", "two_failed"]
)
def test_a_parameter_that_is_off_in_some_pairs_tells_the_others_apart(
    document: Any, trial: Any, failed: tuple[int, ...], differences: tuple[float, ...]
) -> None:
    """Only the saliency's k changes the loss: pairs of different k would show a difference of the optimizers."""
    trials = []
    for optimizer in ("adamw", "muon"):
        for k, loss in ((0.05, 4.0), (0.2, 5.0), (None, 3.0)):
            status = "failed" if len(trials) in failed else "completed"
            row = trial(len(trials), loss, status=status)
            row["parameters"] |= {"optimizer": optimizer, "saliency": k is not None}
            row["parameters"] |= {} if k is None else {"k": k}
            trials.append(row)
    found = compare_trials(from_document(document(*trials)), "optimizer", "adamw", "muon", "final_loss")
    assert found.differences == differences


def test_one_pair_says_nothing_of_its_error() -> None:
    assert Paired(differences=(0.5,)).interval == (-math.inf, math.inf)


def test_what_makes_no_pairs_is_refused(table: pd.DataFrame) -> None:
    with pytest.raises(AnalysisError, match="no pairs"):
        compare_trials(table, "stage1_9.max_steps", 100, 7, "final_loss")
    with pytest.raises(MissingColumn):
        compare_trials(table, "nothing", 1, 2, "final_loss")
    with pytest.raises(AnalysisError, match="ambiguous"):
        compare_trials(table.assign(**{"param.seed": 0}), "stage1_9.max_steps", 100, 0, "final_loss")
    with pytest.raises(AnalysisError, match=r"no sweep's.*lacks generator"):
        compare_trials(table.drop(columns="generator"), "seed", 0, 1, "final_loss")


def test_of_a_confirmed_configuration_only_the_fresh_runs_count(confirmed: dict[str, Any]) -> None:
    rows = over_seeds(from_document(confirmed)).set_index("param.stage1_9.max_steps")
    assert rows["trials"].to_dict() == {0: [0], 25: [1, 11], 50: [2], 100: [7, 8], 400: [9, 10]}
    assert rows["final_loss"][100] == pytest.approx(3.39)
    assert "param.eval.test" not in rows.columns


def test_of_a_configuration_that_failed_with_a_fresh_seed_the_selected_run_does_not_count(
    confirmed: dict[str, Any],
) -> None:
    third = copy.deepcopy(confirmed["trials"][7]) | {"trial": 13, "status": "failed", "metrics": {}}
    third["parameters"]["seed"] = 102
    document = confirmed | {"trials": [*confirmed["trials"], third | {"failure": "diverged"}]}
    rows = over_seeds(from_document(document)).set_index("param.stage1_9.max_steps")
    assert rows["trials"].to_dict() == {0: [0], 25: [1, 11], 50: [2], 100: [7, 8], 400: [9, 10]}
    assert rows["final_loss"][100] == pytest.approx(3.39)


def test_fresh_runs_make_no_pairs(confirmed: dict[str, Any]) -> None:
    found = compare_trials(from_document(confirmed), "stage1_9.max_steps", 400, 100, "final_loss")
    assert found.differences == pytest.approx((-0.04,))


def test_paired_losses_give_the_error_from_the_text(table: pd.DataFrame) -> None:
    random = np.random.default_rng(0)
    teacher = random.normal(2.5, 0.4, 50)
    ours = {trial: teacher + random.normal(0.5, 0.1, 50) for trial in range(6)}
    held_out = {str(t): {"final": v.tolist(), "teacher": teacher.tolist()} for t, v in ours.items()}
    known = replace(TrialsTable.from_frame(table), held_out=HeldOut.from_document(held_out))
    found = compare_trials(known, "stage1_9.max_steps", 100, 0, "final_loss")
    difference = np.mean([ours[2 * seed + 1] - ours[2 * seed] for seed in range(3)], axis=0)
    assert found.text_sem == pytest.approx(stats.sem(difference))
    alone = compare_trials(table, "stage1_9.max_steps", 100, 0, "final_loss")
    assert (alone.text_sem, alone.differences) == (0.0, found.differences)
    wide, narrow = (high - low for low, high in (found.interval, alone.interval))
    assert wide / 2 == pytest.approx(np.hypot(narrow / 2, 1.959964 * found.text_sem))
    del held_out["0"]
    partly = replace(TrialsTable.from_frame(table), held_out=HeldOut.from_document(held_out))
    assert compare_trials(partly, "stage1_9.max_steps", 100, 0, "final_loss").text_sem == 0.0
