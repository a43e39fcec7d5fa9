"""Parameters and metrics of any name in the tables that people see: each cell keeps its meaning."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from named import Named, sweeps
from published import put
from views import view_of

from sweeps.cli.show import rows_for_people
from sweeps.dashboard import points
from sweeps.dashboard.trial_table import Query, columns, matcher, metric_column, raw, trial_table
from sweeps.storage.local import LocalStore
from sweeps.trials.record import Trial


@given(sweep=sweeps())
def test_table_for_people_has_every_value(sweep: Named) -> None:
    roles = {0: "winner"}
    objectives = sweep.space.metrics()
    for record, row in zip(sweep.records, rows_for_people(sweep.space, sweep.records, roles), strict=True):
        assert (row["trial"], row["status"], row["by"]) == (record.trial, "completed", "sobol")
        assert (row["seconds"], row["confirmation"]) == (1.5 + record.trial, roles.get(record.trial))
        assert len(row) == 5 + len(record.parameters) + len(objectives)
        shown = [*record.parameters.values(), *(record.metrics[name] for name in objectives)]
        assert set(shown) <= set(row.values())
        for name, value in row.items():
            if value in shown:  # the name says what it is
                parameters = {record.parameters.get(name), record.parameters.get(name.removeprefix("param."))}
                metrics = {record.metrics.get(name), record.metrics.get(name.removeprefix("metric."))}
                assert value in parameters | metrics


@given(sweep=sweeps())
def test_table_of_the_dashboard_has_every_value(sweep: Named) -> None:
    view = view_of(sweep.space, sweep.records)
    shown = columns(view)
    assert len({column.name for column in shown}) == len(shown)
    assert len({column.head for column in shown}) == len(shown)
    for record in sweep.records:
        values = {column.name: raw(record, column.name) for column in shown}
        assert (values["trial"], values["status"], values["by"]) == (record.trial, "completed", "sobol")
        assert (values["seconds"], values["worker"]) == (1.5 + record.trial, "host-1")
        asked = [*record.parameters.values(), *(record.metrics[name] for name in sweep.space.metrics())]
        assert set(asked) <= {value for value in values.values() if isinstance(value, float)}
    for column in shown:
        found = trial_table(view, Query(sort=column.name, order="desc"))
        assert len(found.rows) == 2
        if raw(sweep.records[0], column.name) != raw(sweep.records[1], column.name):
            assert [record.trial for record, _ in found.rows] == [1, 0]


@given(sweep=sweeps())
def test_points_of_the_dashboard_are_those_of_their_axes(sweep: Named) -> None:
    view = view_of(sweep.space, sweep.records)
    names = points.columns(view)
    assert len(set(names)) == len(names)
    record = sweep.records[1]
    found = {points.value_of(record, name) for name in names}
    errors = {f"{name}_sem" for name in record.metrics}
    assert found >= {value for name, value in record.metrics.items() if name not in errors}
    assert found >= {*record.parameters.values(), 2.5, 1.0}
    for metric in sweep.space.metrics():
        drawn = points.points(view, "trial", metric_column(metric))
        assert drawn.ys == [each.metrics[metric] for each in sweep.records]
        assert drawn.xs == [0.0, 1.0]


SPACE = """\
name: named
objectives: [{metric: status}, {metric: seconds}, {metric: error}]
program: {command: ["true", "${overrides}"]}
parameters:
  trial: {min: 0.0, max: 1.0}
  by: {min: 0.0, max: 1.0}
  error: {min: 0.0, max: 1.0}
  lr: {min: 0.0, max: 1.0}
run_cap: 8
"""


@pytest.fixture
def named(sweep, tmp_path) -> Iterator[None]:
    """A stored sweep of two trials whose names are those of the columns of `sweep trials`."""
    (tmp_path / "space.yaml").write_text(SPACE)
    store = LocalStore(sweep("init", "space.yaml").out.strip())
    for index in (0, 1):
        parameters = {name: (index + at) / 8 for at, name in enumerate(("trial", "by", "error", "lr"))}
        metrics = {
            name: 10 * at + index for at, name in enumerate(("status", "seconds", "error", "usd", "best"), 1)
        }
        put(
            store,
            Trial(trial=index, status="completed", parameters=parameters, metrics=metrics, generator="sobol",
                  attempt=1, created=1.0, started=10.0, ended=11.5),
        )  # fmt: skip


@pytest.mark.usefixtures("named")
class TestCommands:
    def test_trials(self, sweep):
        head, first, second = (line.split() for line in sweep("trials").out.splitlines())
        assert head == ["trial", "status", "by", "param.trial", "param.by", "param.error", "lr", "metric.status",
                        "metric.seconds", "metric.error", "seconds"]  # fmt: skip
        assert first == ["0", "completed", "sobol", "0", "0.125", "0.25", "0.375", "10", "20", "30", "1.5"]
        assert second[:2] == ["1", "completed"]

    def test_trials_as_csv_and_json(self, sweep):
        row = next(csv.DictReader(io.StringIO(sweep("trials", "--format", "csv").out)))
        assert (row["trial"], row["status"], row["seconds"], row["error"]) == ("0", "completed", "1.5", "")
        assert (row["param.trial"], row["metric.status"], row["metric.seconds"]) == ("0.0", "10", "20")
        assert row["best"] == "50"
        document = json.loads(sweep("trials", "--format", "json").out)[0]
        keys = ["trial", "status", "attempt", "generator", "parameters", "metrics", "error", "failure"]
        assert list(document) == keys
        assert document["metrics"]["status"] == 10

    def test_status_as_csv(self, sweep):
        (row,) = csv.DictReader(io.StringIO(sweep("status", "--format", "csv").out))
        assert (row["completed"], row["best"], row["status"], row["seconds"]) == ("2", "0", "10", "20")

    def test_best_and_pareto(self, sweep):
        row = next(csv.DictReader(io.StringIO(sweep("best", "--format", "csv").out)))
        assert (row["trial"], row["metric.status"], row["param.trial"]) == ("0", "10", "0.0")
        out = sweep("pareto").out.splitlines()
        assert out[0].split() == ["trial", "metric.status", "metric.seconds", "metric.error"]
        assert out[1].split() == ["0", "10", "20", "30"]

    def test_report(self, sweep, tmp_path):
        assert sweep("report", "--no-surrogate", "--out", "r.html").status == 0
        page = (tmp_path / "r.html").read_text()
        for head in ("param.trial", "param.error", "metric.status", "metric.seconds"):
            assert head in page

    def test_export_is_imported_elsewhere(self, sweep, tmp_path):
        for name in ("t.csv", "t.json", "t.parquet"):
            assert sweep("export", name).status == 0
            (tmp_path / "other.yaml").write_text(SPACE.replace("named", f"other-{name[2:]}"))
            url = sweep("init", "other.yaml").out.strip()
            assert sweep("import", name, "--storage", url).status == 0
            trials = json.loads(sweep("trials", "--storage", url, "--format", "json").out)
            assert trials[1]["metrics"] == {"status": 11, "seconds": 21, "error": 31, "usd": 41, "best": 51}
            assert trials[1]["parameters"] == {"trial": 0.125, "by": 0.25, "error": 0.375, "lr": 0.5}

    def test_enqueue(self, sweep, tmp_path):
        assert sweep("enqueue", "trial=0.5", "by=0.25", "error=0.75", "lr=0.125").status == 0
        (tmp_path / "more.json").write_text('[{"trial": 0.25, "by": 0.5, "error": 0.75, "lr": 1.0}]')
        assert sweep("enqueue", "--from", "more.json").status == 0
        document = json.loads(sweep("trials", "--format", "json").out)
        assert document[2]["parameters"] == {"trial": 0.5, "by": 0.25, "error": 0.75, "lr": 0.125}
        assert document[3]["parameters"] == {"trial": 0.25, "by": 0.5, "error": 0.75, "lr": 1.0}


def test_condition_is_about_the_column():
    failed = Trial(trial=0, status="failed", parameters={}, metrics={"status": 3.0}, generator="sobol")
    assert matcher("status=failed")(failed)
    assert matcher("metric.status<4")(failed)
    assert not matcher("metric.status<3")(failed)
