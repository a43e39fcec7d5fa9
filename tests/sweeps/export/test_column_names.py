"""Parameters and metrics of any name in what is exported: each cell keeps its meaning, and nothing is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

import optuna
import pytest
from hypothesis import example, given
from hypothesis import settings as limits
from named import METRICS, Named, sweeps

from analysis.summaries.seeds import over_seeds
from analysis.table import SEM, TrialsTable, label
from sweeps.export import optuna_journal, table
from sweeps.programs.result import Completed, Failed, parse_result
from sweeps.search.optimizer.client_file import identifiers
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.text.columns import PARAMETER, TRIAL_COLUMNS, metric_column
from sweeps.upkeep import tables
from sweeps.upkeep.admission import admit


@pytest.mark.parametrize(
    ("metric", "column"),
    [("loss", "loss"), ("seconds", "metric.seconds"), ("seconds_sem", "metric.seconds_sem"), ("by", "by"),
     ("param.x", "metric.param.x"), ("metric.seconds", "metric.metric.seconds"), ("", "metric."), ("a.b/c", "a.b/c")],
)  # fmt: skip
def test_only_a_name_that_is_taken_gets_a_prefix(metric: str, column: str) -> None:
    assert metric_column(metric) == column


@given(sweeps())
def test_flat_rows_keep_every_value(sweep: Named) -> None:
    for record in sweep.records:
        row = table.flat(record)
        assert (row["trial"], row["status"], row["attempt"], row["generator"]) == (
            record.trial,
            "completed",
            1,
            "sobol",
        )
        assert (row["worker"], row["seconds"], row["error"]) == ("host-1", 1.5 + record.trial, None)
        for name, value in record.parameters.items():
            assert row[PARAMETER + name] == value
        for name, value in record.metrics.items():
            assert row[metric_column(name)] == value
        own = [*TRIAL_COLUMNS, *table.stage_costs(record)]
        assert len(row) == len(own) + len(record.parameters) + len(record.metrics)
    names = table.columns([table.flat(record) for record in sweep.records])
    assert sorted(names) == sorted({name for record in sweep.records for name in table.flat(record)})


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
@given(sweep=sweeps())
def test_written_tables_are_read_as_they_were(sweep: Named, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"table{suffix}")
        table.write(file, sweep.space, "url", sweep.records)
        read = TrialsTable.open(file)
        taken = admit(tables.read(file), sweep.space)
    assert read.trials.tolist() == [0, 1]
    for record, row in zip(sweep.records, read.frame.to_dict("records"), strict=True):
        assert (row["status"], row["generator"], row["seconds"]) == ("completed", "sobol", 1.5 + record.trial)
        for name, value in record.parameters.items():
            assert row[PARAMETER + name] == value
        for name, value in record.metrics.items():
            assert row[metric_column(name)] == value
    assert [dict(result.parameters) for result in taken.results] == [
        dict(r.parameters) for r in sweep.records
    ]
    assert [dict(result.metrics) for result in taken.results] == [dict(r.metrics) for r in sweep.records]


@given(sweep=sweeps())
def test_labels_of_a_table_differ(sweep: Named) -> None:
    read = TrialsTable.from_document(table.document(sweep.space, "url", sweep.records))
    labels = [label(column, read.columns) for column in read.columns]
    assert len(set(labels)) == len(labels)


@given(sweep=sweeps())
def test_means_over_seeds_have_every_metric(sweep: Named) -> None:
    found = over_seeds(
        TrialsTable.from_document(table.document(sweep.space, "url", sweep.records)), seed="trial"
    )
    assert found.columns.is_unique
    assert found["seeds"].tolist() == [1, 1]
    assert found["trials"].tolist() == [[0], [1]]
    shown = set(found.iloc[0].map(str))
    errors = {name + SEM for name in sweep.records[0].metrics}
    assert shown >= {str(v) for name, v in sweep.records[0].metrics.items() if name not in errors}


@limits(max_examples=8)
@given(sweep=sweeps())
def test_optuna_study_keeps_every_value(sweep: Named) -> None:
    with tempfile.TemporaryDirectory() as folder:
        optuna_journal.write(Path(folder, "journal.log"), sweep.space, sweep.records)
        backend = optuna.storages.journal.JournalFileBackend(str(Path(folder, "journal.log")))
        study = optuna.load_study(study_name="named", storage=optuna.storages.JournalStorage(backend))
        trials = study.trials
    for record, trial in zip(sweep.records, trials, strict=True):
        attributes = trial.user_attrs
        assert (attributes["status"], attributes["generator"], attributes["attempt"]) == (
            "completed",
            "sobol",
            1,
        )
        assert trial.params == record.parameters
        costs = {name for name in ("cost_nominal", "cost_paid") if record.stages}
        assert len(attributes) == 3 + len(costs) + len(record.metrics)
        assert set(record.metrics.values()) <= set(attributes.values())


@example(["a.b", "a__b", "a-b", "cost_paid"])
@given(METRICS.filter(bool).map(lambda name: [name, name + ".", name + "/", name + "__"]))
def test_identifiers_for_ax_differ(names: list[str]) -> None:
    found = identifiers(names, taken=("cost_paid",))
    assert list(found) == names
    assert len({*found.values(), "cost_paid"}) == len(names) + 1


def test_result_of_metrics_alone_may_have_one_called_status() -> None:
    space = Space(
        name="named",
        objectives=(Objective(metric="status"),),
        parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
        program=Program(kind="command", command=("true",)),
    )
    assert parse_result(space, {"status": 0.5, "error": 2}, "r") == Completed(
        metrics={"status": 0.5, "error": 2}
    )
    assert isinstance(parse_result(space, {"status": 0.5, "metrics": {"status": 0.5}}, "r"), Failed)
    assert isinstance(parse_result(space, {"status": "odd", "loss": 0.5}, "r"), Failed)
