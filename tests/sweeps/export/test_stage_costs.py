"""Costs of stages in exports: nominal and paid columns, and what other tools get."""

from __future__ import annotations

import csv
import io
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeps.export import ax_export, optuna_journal, table
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.text.columns import STAGE_COLUMNS, TRIAL_COLUMNS
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    program=Program(kind="function", function="m:f"),
    parameters=(Range(name="lr", min=1e-3, max=1e-1, kind="float"),),
)


def record(index: int, *stages: StageRun, status: str = "completed", **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "parameters": {"lr": 0.01 * (index + 1)},
        "generator": "sobol",
        "metrics": {"loss": 3.0 + index} if status == "completed" else {},
        "stages": stages,
    }
    return Trial(trial=index, status=status, **(fields | changes))  # type: ignore[arg-type]  # a table of cases


KEY = "ab" * 32
FIRST = StageRun(name="stage1_9", key=KEY, cost=200.0, snapshot=True, seconds=9.5, usd=0.25)
TAKEN = StageRun(name="stage1_9", key=KEY, cost=200.0, reused_from=0, seconds=9.5, usd=0.25)
SECOND = StageRun(name="stage2", key="", cost=60.0)
RECORDS = [
    record(0, FIRST, SECOND),
    record(1, TAKEN, SECOND),
    record(2, TAKEN, status="failed", error="diverged"),
    record(3),  # of before stages were recorded
    record(4, TAKEN, status="early_stopped", progress={"done": 0.9}),
]
"""0.9 of 260, the mean of the completed ones, is 234; 200 of it are another trial's."""
WITHOUT_POINTS = ("cost_nominal", "cost_paid", "stages")
POINT = StageRun(name="stage1_9", key="cd" * 32, cost=80.0, step=40, snapshot=True)
BRANCH = replace(FIRST, branched_from=0, branched_at=40, saved=80.0)
TRUNK = [
    record(0, FIRST, SECOND, points=(POINT,)),
    record(1, replace(BRANCH, key="ef" * 32), SECOND),
    record(2, points=(replace(POINT, key="01" * 32, step=60),), status="running"),
    record(3, replace(BRANCH, branched_from=3), SECOND),  # a point of its own, from an earlier attempt
]


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def test_sweep_without_stages_has_no_columns_of_stages(tmp_path: Path) -> None:
    table.write(tmp_path / "t.csv", SPACE, "url", [record(0), record(1)])
    assert list(rows(tmp_path / "t.csv")[0]) == [*TRIAL_COLUMNS, "param.lr", "loss"]
    assert not set(table.nested(record(0))) & set(STAGE_COLUMNS)


def test_trials_with_stages_have_nominal_and_paid_costs(tmp_path: Path) -> None:
    table.write(tmp_path / "t.csv", SPACE, "url", RECORDS)
    found = rows(tmp_path / "t.csv")
    assert list(found[0]) == [*TRIAL_COLUMNS, *WITHOUT_POINTS, "param.lr", "loss"]
    costs = [(row["cost_nominal"], row["cost_paid"]) for row in found]
    assert costs == [("260.0", "260.0"), ("260.0", "60.0"), ("200.0", "0.0"), ("", ""), ("234.0", "34.0")]
    (stage, _) = json.loads(found[1]["stages"])
    assert stage == {
        "name": "stage1_9", "key": KEY, "cost": 200.0, "reused_from": 0, "snapshot": False,
        "seconds": 9.5, "usd": 0.25,
    }  # fmt: skip
    assert found[3]["stages"] == ""


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_each_format_holds_the_same_costs(tmp_path: Path, suffix: str) -> None:
    from analysis.table import TrialsTable

    table.write(tmp_path / f"t.{suffix}", SPACE, "url", RECORDS)
    read = TrialsTable.open(tmp_path / f"t.{suffix}")
    assert read.columns == [*TRIAL_COLUMNS, *WITHOUT_POINTS, "param.lr", "loss"]
    assert read.numbers("cost_paid").fillna(-1).tolist() == [260, 60, 0, -1, 34]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_a_trial_that_was_stopped_early_has_paid_for_a_part_of_the_stage_it_was_in(
    tmp_path: Path, suffix: str
) -> None:
    from analysis.table import TrialsTable

    records = [*RECORDS, record(5, status="early_stopped", progress={"done": 0.5})]
    table.write(tmp_path / f"t.{suffix}", SPACE, "url", records)
    read = TrialsTable.open(tmp_path / f"t.{suffix}")
    assert read.numbers("cost_nominal").fillna(-1).tolist() == [260, 260, 200, -1, 234, 130]
    assert read.numbers("cost_paid").fillna(-1).tolist() == [260, 60, 0, -1, 34, 130]
    assert [[stage.name for stage in stages] for stages in read.stages[4:]] == [["stage1_9"], []]
    nested = table.nested_rows(SPACE, records)
    assert [row.get("cost_paid") for row in nested] == [260, 60, 0, None, 34, 130]


def test_totals_of_the_report_are_the_sums_of_the_columns() -> None:
    from analysis.summaries.reuse import reuse
    from analysis.table import TrialsTable

    records = [*RECORDS, record(5, status="early_stopped", progress={"done": 0.5})]
    records = [replace(each, attempt=1) for each in records]  # without, they would be imported ones
    read = TrialsTable.from_document(table.document(SPACE, "url", records))
    totals = reuse(read, "loss")
    assert totals is not None
    assert (totals.nominal, totals.paid) == (1084, 484)
    assert (totals.nominal, totals.paid) == (
        read.numbers("cost_nominal").sum(), read.numbers("cost_paid").sum(),
    )  # fmt: skip
    assert totals.unknown == 1  # of the trial without stages, but not of 5, which ended none
    assert totals.paid_until.tolist() == [260, 320, 320, 320, 354, 484]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_a_branch_has_paid_for_its_part_and_points_are_a_column(tmp_path: Path, suffix: str) -> None:
    from analysis.table import TrialsTable

    table.write(tmp_path / f"t.{suffix}", SPACE, "url", TRUNK)
    read = TrialsTable.open(tmp_path / f"t.{suffix}")
    assert set(read.columns) == {*TRIAL_COLUMNS, *STAGE_COLUMNS, "param.lr", "loss"}
    assert read.numbers("cost_nominal").fillna(-1).tolist() == [260, 260, -1, 260]
    assert read.numbers("cost_paid").fillna(-1).tolist() == [260, 180, -1, 260]
    assert [[(p.step, p.cost, p.stored) for p in points] for points in read.points] == [
        *([(40, 80, True)], [], [(60, 80, True)], []),
    ]
    assert [stage.saved for stage in read.stages[1]] == [80, 0]
    assert [stage.saved for stage in read.stages[3]] == [0, 0]


def test_optuna_gets_what_a_branch_paid_and_whose_it_is(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna_journal.write(tmp_path / "journal.log", SPACE, [TRUNK[0], TRUNK[1]])
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
    study = optuna.load_study(study_name="case", storage=optuna.storages.JournalStorage(backend))
    first, second = (trial.user_attrs for trial in study.trials)
    assert (second["cost_nominal"], second["cost_paid"]) == (260, 180)
    assert (second["branched.stage1_9"], second["branched_at.stage1_9"]) == (0, 40)
    assert not any(name.startswith("branched") for name in first)


def test_a_metric_of_the_same_name_does_not_hide_a_cost(tmp_path: Path) -> None:
    own = record(0, FIRST, metrics={"loss": 3.0, "cost_paid": 7.0, "stages": 2.0})
    row = table.flat(own)
    assert (row["cost_paid"], row["metric.cost_paid"], row["metric.stages"]) == (200.0, 7.0, 2.0)


def test_an_exported_table_can_be_imported_again(space: Space) -> None:
    from types import MappingProxyType

    from sweeps.upkeep.admission import admit
    from sweeps.upkeep.tables import Row, Table

    cells = {"param.x": 0.5, "param.n": 3, "loss": 1.0, **table.stage_costs(TRUNK[0])}
    assert "trunk_points" in cells
    one = Table(file="t.json", columns=tuple(cells), rows=(Row(number=1, cells=MappingProxyType(cells)),))
    (result,) = admit(one, space).results
    assert dict(result.metrics) == {"loss": 1.0}  # what was paid elsewhere is no result of the trial


def test_optuna_gets_the_costs_and_the_sources(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna_journal.write(tmp_path / "journal.log", SPACE, RECORDS)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
    study = optuna.load_study(study_name="case", storage=optuna.storages.JournalStorage(backend))
    attributes = [trial.user_attrs for trial in study.trials]
    assert [(a.get("cost_nominal"), a.get("cost_paid")) for a in attributes] == [
        *((260, 260), (260, 60), (200, 0), (None, None), (234, 34)),
    ]
    assert [a.get("reused.stage1_9") for a in attributes] == [None, 0, 0, None, 0]


@pytest.mark.timeout(300)  # Ax is imported
@pytest.mark.filterwarnings("ignore")  # pandas', of how Ax reads its own data
def test_ax_tracks_the_costs_of_completed_trials(tmp_path: Path) -> None:
    assert ax_export.write(tmp_path / "ax.json", SPACE, RECORDS) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ax.api.client import Client

        experiment = Client.load_from_json_file(str(tmp_path / "ax.json"))._experiment
    assert {metric.name for metric in experiment.tracking_metrics} == {"cost_nominal", "cost_paid"}
    data = experiment.lookup_data().df
    paid = data[data["metric_name"] == "cost_paid"].set_index("arm_name")["mean"]
    assert paid.to_dict() == {"trial-0": 260, "trial-1": 60}
