"""Configurations: fresh runs count once, without the observation that was selected, and with the seeds' spread."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.summaries.summary import pareto
from analysis.summaries.uncertainty import estimate_uncertainty
from analysis.table import TrialsTable, from_document


def table_of(document: dict[str, Any]) -> TrialsTable:
    return TrialsTable.from_document(document)


def test_confirmed_row_is_the_mean_of_fresh_runs(
    confirmed: dict[str, Any],
) -> None:
    table = table_of(confirmed)
    shown = table.configurations
    assert shown.trials.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert shown.floats("final_loss")[:6] == pytest.approx([4.0, 3.6, 3.9, np.nan, 3.39, 3.42], nan_ok=True)
    assert shown.repeats.runs == {4: (7, 8), 5: (9, 10)}
    assert shown.frame["generator"].tolist()[4] == "botorch"
    assert shown.floats("test_loss")[4] == pytest.approx(3.49)
    assert table.floats("final_loss")[4] == 3.40  # the table itself is as it was


def test_errors_include_the_spread_over_seeds(confirmed: dict[str, Any]) -> None:
    shown = table_of(confirmed).configurations
    spread = shown.repeats.spreads["final_loss"]
    assert (spread.sd, spread.freedom) == (pytest.approx(0.0002**0.5), 2)
    sems = shown.standard_errors("final_loss")
    assert sems[[4, 5]] == pytest.approx([(0.012**2 + 0.0001) ** 0.5] * 2)
    assert sems[[0, 1]] == pytest.approx([(0.02**2 + 0.0002) ** 0.5, (0.012**2 + 0.0002) ** 0.5])
    # The test loss reported no error of its own: what is known of it is the seeds.
    assert shown.standard_errors("test_loss")[4] == pytest.approx(0.01)
    assert np.isnan(shown.standard_errors("effective_steps")).all()  # seeds do not change it


def test_a_table_without_repeats_is_returned_as_it_is(sweep: dict[str, Any], length_sweep_file: Any) -> None:
    table = table_of(sweep)
    assert table.configurations is table
    other = TrialsTable.open(length_sweep_file)
    assert other.configurations is other
    for row in sweep["trials"]:
        row["parameters"]["seed"] = 0
    seeded = table_of(sweep)
    assert seeded.configurations is seeded


def test_a_table_of_configurations_stays_as_it_is(confirmed: dict[str, Any]) -> None:
    shown = table_of(confirmed).configurations
    assert shown.configurations is shown


def test_one_fresh_run_confirms_nothing(confirmed: dict[str, Any]) -> None:
    document = confirmed | {"trials": [t for t in confirmed["trials"] if t["trial"] not in (8, 10)]}
    shown = table_of(document).configurations
    assert (dict(shown.repeats.runs), dict(shown.repeats.spreads)) == ({}, {})
    assert shown.trials.tolist() == list(range(7))
    assert shown.standard_errors("final_loss")[1] == 0.012


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    ("failure", "runs"),
    [("diverged", {5: (9, 10)}), (None, {5: (9, 10)}), ("lost", {4: (7, 8), 5: (9, 10)})],
)
def test_a_failure_with_a_fresh_seed_refutes_unless_the_worker_was_lost(
    confirmed: dict[str, Any], tmp_path: Any, suffix: str, failure: str | None, runs: Any
) -> None:
    """Trial 4 failed with a third seed. A table of before there was the column does not say how."""
    third = copy.deepcopy(confirmed["trials"][7]) | {"trial": 13, "status": "failed", "metrics": {}}
    third["parameters"]["seed"] = 102
    document = confirmed | {"trials": [*confirmed["trials"], third | {"failure": failure}]}
    file = tmp_path / f"t.{suffix}"
    if suffix == "json":
        file.write_text(json.dumps(document))
    else:
        frame = from_document(document)
        frame = frame if failure else frame.drop(columns="failure")
        {"csv": frame.to_csv, "parquet": frame.to_parquet}[suffix](file, index=False)
    table = TrialsTable.open(file)
    shown = table.configurations
    assert shown.repeats.runs == runs
    assert shown.trials.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert shown.floats("final_loss")[4] == pytest.approx(3.39 if 4 in runs else 3.40)
    assert shown.repeats.spreads["final_loss"].freedom == 2  # what other seeds gave is known all the same
    assert set(pareto(table, x="effective_steps", y="final_loss").confirmed) == set(runs)


def test_fresh_runs_without_their_first_trial(confirmed: dict[str, Any]) -> None:
    document = confirmed | {"trials": [t for t in confirmed["trials"] if t["trial"] != 4]}
    shown = table_of(document).configurations
    assert shown.repeats.runs == {7: (7, 8), 5: (9, 10)}
    assert shown.floats("final_loss")[shown.row_of[7]] == pytest.approx(3.39)


def test_a_csv_file_gives_the_same_configurations(confirmed: dict[str, Any], tmp_path: Any) -> None:
    from_document(confirmed).to_csv(tmp_path / "t.csv", index=False)
    shown, again = table_of(confirmed).configurations, TrialsTable.open(tmp_path / "t.csv").configurations
    assert again.repeats.runs == shown.repeats.runs
    assert again.floats("final_loss") == pytest.approx(shown.floats("final_loss"), nan_ok=True)


def test_a_seed_of_another_name_is_no_part_of_a_configuration(confirmed: dict[str, Any]) -> None:
    for row in confirmed["trials"]:
        if row["generator"] == "confirm":
            row["parameters"]["model.seed"] = row["parameters"].pop("seed")
            row["parameters"]["report_twice"] = 1
    assert table_of(confirmed).configurations.repeats.runs == {4: (7, 8), 5: (9, 10)}
    for row in confirmed["trials"]:  # the search had a fixed one
        row["parameters"]["random_state"] = row["parameters"].pop("model.seed", 0)
    assert table_of(confirmed).configurations.repeats.runs == {4: (7, 8), 5: (9, 10)}


@pytest.mark.parametrize("name", ["SEED", "random_state", "data.randomSeed"])
def test_a_searched_seed_may_have_any_name(confirmed: dict[str, Any], name: str) -> None:
    for row in confirmed["trials"]:
        row["parameters"][name] = row["parameters"].pop("seed", row["trial"])
    assert table_of(confirmed).configurations.repeats.runs == {4: (7, 8), 5: (9, 10)}


def test_repeats_of_a_grid_stay_rows_and_widen_the_errors(sweep: dict[str, Any]) -> None:
    """Trials 1 and 7 differ in their seed alone: by 0.04, so that the spread is 0.04 / √2."""
    for row in sweep["trials"]:
        row["parameters"]["seed"] = 0
    twin = copy.deepcopy(sweep["trials"][1]) | {"trial": 7}
    twin["parameters"]["seed"], twin["metrics"]["final_loss"] = 1, 3.64
    table = table_of(sweep | {"trials": [*sweep["trials"], twin]})
    shown = table.configurations
    assert shown.trials.tolist() == table.trials.tolist()
    assert shown.floats("final_loss").tolist()[7] == 3.64
    assert shown.repeats.spreads["final_loss"].sd == pytest.approx(0.04 / 2**0.5)
    assert shown.standard_errors("final_loss")[2] == pytest.approx(np.hypot(0.012, 0.04 / 2**0.5))
    assert "effective_steps_sem" not in shown
    assert shown.configurations is shown  # no error is widened twice


def test_repeats_of_a_grid_give_the_spread_of_a_metric_without_errors(sweep: dict[str, Any]) -> None:
    for row in sweep["trials"]:
        row["parameters"]["seed"] = 0
        row["metrics"].pop("final_loss_sem", None)
    twin = copy.deepcopy(sweep["trials"][1]) | {"trial": 7}
    twin["parameters"]["seed"], twin["metrics"]["final_loss"] = 1, 3.64
    table = table_of(sweep | {"trials": [*sweep["trials"], twin]})
    shown = table.configurations
    assert shown.floats("final_loss").tolist() == pytest.approx(table.floats("final_loss"), nan_ok=True)
    errors = shown.standard_errors("final_loss")
    known = np.isfinite(shown.floats("final_loss"))
    assert errors[known] == pytest.approx(0.04 / 2**0.5)
    assert np.isnan(errors[~known]).all()
    assert "effective_steps_sem" not in shown
    result = pareto(table, x="effective_steps", y="final_loss")
    assert estimate_uncertainty(table, result, draws=50).draws == 50


def test_the_same_seed_twice_says_nothing_of_the_seeds(sweep: dict[str, Any]) -> None:
    for row in sweep["trials"]:
        row["parameters"]["seed"] = 0
    table = table_of(sweep | {"trials": [*sweep["trials"], sweep["trials"][1] | {"trial": 7}]})
    assert table.configurations.repeats.spreads == {}
    assert table.configurations.standard_errors("final_loss")[1] == 0.012


losses = st.floats(2.0, 5.0)


@given(st.lists(st.lists(losses, min_size=2, max_size=4), min_size=1, max_size=4))
def test_the_spread_is_that_of_an_analysis_of_variance(groups: list[list[float]]) -> None:
    rows = [
        {"trial": 0, "status": "completed", "attempt": 1, "generator": "confirm", "param.lr": at}
        | {"param.seed": seed, "loss": loss}
        for at, group in enumerate(groups)
        for seed, loss in enumerate(group)
    ]
    frame = pd.DataFrame(rows).assign(trial=range(len(rows)))
    spread = TrialsTable.from_frame(frame).configurations.repeats.spreads["loss"]
    residuals = np.concatenate([np.array(group) - np.mean(group) for group in groups])
    assert spread.freedom == len(rows) - len(groups)
    assert spread.sd == pytest.approx((residuals @ residuals / spread.freedom) ** 0.5, abs=1e-9)
