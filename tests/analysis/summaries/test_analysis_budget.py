"""What a budget buys, and in which compute: from tables to answers with their warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.errors import AnalysisError
from analysis.summaries.budget import answer
from analysis.summaries.compute import MEASURES, column_of, measure_of
from analysis.table import TrialsTable, from_document, read


@pytest.fixture
def lengths(document: Any, trial: Any) -> pd.DataFrame:
    """A sweep over both lengths whose losses follow a law exactly."""
    trials = []
    for first in (0, 25, 50, 100):
        for second in (60, 120, 240):
            loss = 2.5 + 0.8 * (1 + first) ** -0.3 + 12 * (1 + second) ** -0.6
            trials.append(trial(len(trials), loss, stage1_9=first, stage2=second))
    return from_document(document(*trials))


def test_the_length_sweep_answers_for_800_steps(length_sweep_file: Path) -> None:
    found = answer(read(length_sweep_file), x="effective_steps", y="final_loss", budget=800)
    assert found.value == pytest.approx(5.924, abs=0.001)
    assert found.low < 5.8 < 6.0 < found.high
    # Stage 2 had 200 steps in every run: the rest of the budget is Stage 1.9, at two for one.
    assert (found.stage1_9, found.stage2, found.stage1_9_interval) == (300, 200, None)
    assert found.formula == "final_loss = 2.603 + 47.07 · effective_steps^(-0.3967)"
    assert (found.through, found.warnings) == ("all 5 rows", ())


def test_beyond_the_data_it_warns_and_is_less_sure(length_sweep_file: Path) -> None:
    table = read(length_sweep_file)
    inside = answer(table, x="effective_steps", y="final_loss", budget=1200)
    outside = answer(table, x="effective_steps", y="final_loss", budget=20_000)
    assert "lies outside the 300 to 2,200 of effective_steps" in outside.warnings[0]
    assert outside.high - outside.low > 2 * (inside.high - inside.low)


def test_a_budget_below_the_fixed_stage_is_named(length_sweep_file: Path) -> None:
    found = answer(read(length_sweep_file), x="effective_steps", y="final_loss", budget=150)
    assert found.stage1_9 is found.stage2 is None
    assert any("does not even pay" in warning for warning in found.warnings)


def test_over_both_lengths_the_split_is_the_laws(lengths: pd.DataFrame) -> None:
    found = answer(lengths, x="effective_steps", y="final_loss", budget=300)
    steps = np.arange(150)
    loss = 2.5 + 0.8 * (1.0 + steps) ** -0.3 + 12 * (301.0 - 2 * steps) ** -0.6
    assert found.stage1_9 == pytest.approx(loss.argmin(), abs=1)
    assert found.stage1_9 is not None
    assert found.stage2 == 300 - 2 * found.stage1_9
    assert found.value == pytest.approx(loss.min(), rel=1e-4)
    assert found.stage1_9_interval is not None
    assert "stage1_9_steps)^(-0.3)" in found.formula


@pytest.fixture
def taught(lengths: pd.DataFrame) -> pd.DataFrame:
    """The same with the teacher beside Stage 2, whose steps count twice, and 100 steps of Stage 3."""
    first, second = (lengths[f"param.{stage}.max_steps"] for stage in ("stage1_9", "stage2"))
    return lengths.assign(effective_steps=2.0 * first + 2 * second + 200)


@pytest.mark.parametrize(
    ("varied", "lengths_of_it"),
    [
        pytest.param("", [], id="both"),
        pytest.param("stage1_9", [0, 25, 50, 100, 150], id="stage1_9"),
        pytest.param("stage2", [60, 120, 240, 300, 400], id="stage2"),
    ],
)
def test_lengths_cost_what_the_table_says(
    taught: pd.DataFrame, varied: str, lengths_of_it: list[int]
) -> None:
    if varied:
        pair = {"stage1_9": [50] * 5, "stage2": [60] * 5} | {varied: lengths_of_it}
        steps = [2 * first + 2 * second + 200 for first, second in zip(*pair.values(), strict=True)]
        changed = {f"param.{stage}.max_steps": values for stage, values in pair.items()}
        taught = taught.iloc[:5].assign(effective_steps=steps, **changed)
    found = answer(taught, x="effective_steps", y="final_loss", budget=600)
    assert found.stage1_9 is not None
    assert found.stage2 is not None
    assert 2 * found.stage1_9 + 2 * found.stage2 + 200 == 600
    unpaid = answer(taught, x="effective_steps", y="final_loss", budget=150)
    assert unpaid.stage1_9 is None
    assert any("does not even pay" in warning for warning in unpaid.warnings)


def test_the_best_split_counts_the_teacher_of_stage_2(taught: pd.DataFrame) -> None:
    found = answer(taught, x="effective_steps", y="final_loss", budget=600)
    steps = np.arange(200)
    loss = 2.5 + 0.8 * (1.0 + steps) ** -0.3 + 12 * (201.0 - steps) ** -0.6
    assert found.stage1_9 == pytest.approx(loss.argmin(), abs=1)
    assert found.value == pytest.approx(loss.min(), rel=1e-4)
    assert found.warnings == ()


def test_lengths_of_unknown_cost_are_not_told(lengths: pd.DataFrame) -> None:
    table = lengths.assign(effective_steps=lengths["effective_steps"] + 7 * lengths["trial"] ** 2)
    found = answer(table, x="effective_steps", y="final_loss", budget=300)
    assert found.stage1_9 is found.stage2 is None
    assert any("unknown: effective_steps do not follow from" in warning for warning in found.warnings)


def test_in_other_compute_the_lengths_are_not_told(lengths: pd.DataFrame) -> None:
    table = lengths.assign(train_flops=1e12 * lengths["effective_steps"])
    found = answer(table, x="train_flops", y="final_loss", budget=3e14)
    assert found.stage1_9 is None
    assert found.warnings == ()


def test_curve_through_the_front_if_more_varies(lengths: pd.DataFrame) -> None:
    worse = lengths.assign(final_loss=lengths["final_loss"] + 1.0, trial=lengths["trial"] + 100)
    worse["param.stage2.optimizer.lr"] = 1e-2
    table = pd.concat([lengths.assign(**{"param.stage2.optimizer.lr": 1e-3}), worse], ignore_index=True)
    found = answer(table, x="effective_steps", y="final_loss", budget=300)
    assert "on the front" in found.through
    assert "stage2.optimizer.lr vary as well" in found.warnings[0]
    assert found.value < 3.4


def test_seeds_and_what_is_equal_everywhere_do_not_vary(lengths: pd.DataFrame) -> None:
    table = lengths.assign(**{"param.seed": range(len(lengths)), "param.stage2.optimizer.lr": 1e-3})
    assert answer(table, x="effective_steps", y="final_loss", budget=300).through == "all 12 completed trials"


def test_without_enough_pairs_the_curve_still_answers(lengths: pd.DataFrame) -> None:
    table = lengths[lengths["trial"].isin([0, 4, 8, 10, 2])].reset_index(drop=True)
    found = answer(table, x="effective_steps", y="final_loss", budget=200)
    assert found.stage1_9 is None
    assert any("the split between the stages is unknown" in warning for warning in found.warnings)


def test_without_a_length_in_some_trials_the_curve_still_answers() -> None:
    """A length that a choice switches on is no number in the trials that chose otherwise."""
    pairs = [(None, 50), (None, 100), (50, 100), (50, 200), (50, 400), (50, 800)]
    losses = [5.6, 5.0, 4.6, 4.3, 4.0, 3.85]
    rows = [
        {
            "trial": at,
            "status": "completed",
            "generator": "sobol",
            "final_loss": loss,
            "effective_steps": 2 * (first or 0) + second,
            "param.recipe": "plain" if first is None else "aligned",
            "param.stage1_9.max_steps": first,
            "param.stage2.max_steps": second,
        }
        for at, ((first, second), loss) in enumerate(zip(pairs, losses, strict=True))
    ]
    found = answer(pd.DataFrame(rows), x="effective_steps", y="final_loss", budget=600)
    assert 3.85 < found.value < 4.6
    assert found.stage1_9 is found.stage2 is None
    assert any(
        "split between the stages is unknown: one stage has no length in 2 of 6" in w for w in found.warnings
    )


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(budget: float, lengths: pd.DataFrame) -> None:
    with pytest.raises(AnalysisError, match="give a positive number"):
        answer(lengths, x="effective_steps", y="final_loss", budget=budget)


def test_failed_trials_are_no_points(lengths: pd.DataFrame) -> None:
    lengths.loc[lengths.index[3:], "status"] = "failed"
    with pytest.raises(AnalysisError, match="there are 3"):
        answer(lengths, x="effective_steps", y="final_loss", budget=100)


def test_compute_is_chosen_by_name() -> None:
    frame = pd.DataFrame({"effective_steps": [1.0], "train_seconds": [None], "seconds": [5.0], "usd": [None]})
    table = TrialsTable.from_frame(frame)
    assert column_of("effective_steps", table) == "effective_steps"
    assert column_of("seconds", table) == "seconds"  # there is no training time
    assert column_of("seconds", table.assign(train_seconds=3.0)) == "train_seconds"
    with pytest.raises(AnalysisError, match="report no usd"):
        column_of("usd", table)
    with pytest.raises(AnalysisError, match="effective_steps, flops, seconds, usd"):
        column_of("hours", table)


def test_efficiency_is_given_per_an_amount_that_people_pay() -> None:
    assert (measure_of("effective_steps").per, measure_of("anything").per) == (100, 100)
    assert measure_of("seconds") is measure_of("train_seconds") is MEASURES["seconds"]
    assert (measure_of("seconds").per, measure_of("seconds").unit) == (3600, "device hour")
