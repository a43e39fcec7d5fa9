"""Trials outside of the outcome constraints in what is exported: whoever reads a table keeps them off its front."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.summaries.summary import pareto
from analysis.table import TRIAL_COLUMNS, TrialsTable
from sweeps.export import table
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.record import Trial
from sweeps.upkeep import tables
from sweeps.upkeep.admission import admit

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    outcome_constraints=("gb <= 4",),
    program=Program(kind="function", function="m:f"),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
)
METRICS = [
    {"loss": 3.0, "ms": 1.0, "gb": 1.0},
    {"loss": 1.0, "ms": 1.0, "gb": 8.0},  # would beat all others
    {"loss": 2.0, "ms": 2.0, "gb": 4.0},
    {"loss": 0.5, "ms": 0.5},  # a missing metric is outside, too
]
RECORDS = [
    Trial(trial=at, status="completed", parameters={"x": 0.1 * at}, metrics=metrics, generator="sobol")
    for at, metrics in enumerate(METRICS)
] + [Trial(trial=4, status="pending", parameters={"x": 0.4}, generator="sobol")]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_no_front_of_a_written_table_has_them(tmp_path: Path, suffix: str) -> None:
    table.write(tmp_path / f"t.{suffix}", SPACE, "url", RECORDS)
    read = TrialsTable.open(tmp_path / f"t.{suffix}")
    assert sorted(read.infeasible) == [1, 3]
    assert read.feasible.tolist() == [True, False, True, False, False]
    assert pareto(read, x="ms", y="loss").front == (0, 2)
    assert pareto(read.frame, x="ms", y="loss").front == (0, 2)
    assert read.columns[: len(TRIAL_COLUMNS) + 1] == [*TRIAL_COLUMNS, "infeasible"]


def test_a_spreadsheets_words_are_read(tmp_path: Path) -> None:
    table.write(tmp_path / "t.csv", SPACE, "url", RECORDS)
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "t.csv").write_text(text.replace("False", "").replace("True", "TRUE"))
    assert sorted(TrialsTable.open(tmp_path / "t.csv").infeasible) == [1, 3]


def test_only_a_sweep_with_constraints_has_the_column(tmp_path: Path) -> None:
    table.write(tmp_path / "t.csv", replace(SPACE, outcome_constraints=()), "url", RECORDS)
    with (tmp_path / "t.csv").open() as file:
        assert "infeasible" not in next(csv.reader(file))
    assert TrialsTable.open(tmp_path / "t.csv").infeasible == ()


def test_a_metric_of_the_same_name_does_not_hide_it() -> None:
    own = replace(RECORDS[1], metrics={"loss": 1.0, "infeasible": 7.0})
    (row,) = table.flat_rows(SPACE, [own])
    assert (row["infeasible"], row["metric.infeasible"]) == (True, 7.0)


def test_the_table_can_be_imported_again(tmp_path: Path) -> None:
    table.write(tmp_path / "t.csv", SPACE, "url", RECORDS[:3])
    taken = admit(tables.read(tmp_path / "t.csv"), SPACE)
    assert [dict(result.metrics) for result in taken.results] == METRICS[:3]


@pytest.mark.parametrize("column", ["infeasible", "machine_seconds", "hosts", "failure"])
def test_another_programs_column_is_a_metric(tmp_path: Path, column: str) -> None:
    pd.DataFrame({"param.x": [0.5], "loss": [1.0], column: [2.0], "gb": [1.0]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    read = tables.read(tmp_path / "t.csv")
    (result,) = admit(read, SPACE).results
    assert result.metrics[column] == 2.0
    (result,) = admit(read, replace(SPACE, objectives=(Objective(metric=column),))).results
    assert result.metrics[column] == 2.0


def test_a_column_failure_of_numbers_is_an_earlier_versions_metric(tmp_path: Path) -> None:
    table.write(tmp_path / "t.csv", SPACE, "url", [RECORDS[0]])
    pd.read_csv(tmp_path / "t.csv").assign(failure=0.25).to_csv(tmp_path / "t.csv", index=False)
    (result,) = admit(tables.read(tmp_path / "t.csv"), SPACE).results
    assert result.metrics == METRICS[0] | {"failure": 0.25}


def test_a_kind_of_failure_is_no_metric(tmp_path: Path) -> None:
    failed = replace(RECORDS[4], status="failed", failure="diverged")
    table.write(tmp_path / "t.csv", SPACE, "url", [RECORDS[0], failed])
    taken = admit(tables.read(tmp_path / "t.csv"), SPACE)
    assert [dict(result.metrics) for result in taken.results] == METRICS[:1]
    assert taken.columns == ()
