"""Tables from files and documents, and the errors of malformed ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.errors import AnalysisError, MissingColumn, NotNumeric, TableError
from analysis.table import TRIAL_COLUMNS, TrialsTable, from_document, metric_column, read


def test_the_three_formats_hold_the_same_table(sweep: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(sweep))
    table = TrialsTable.from_frame(read(tmp_path / "t.json"))
    table.frame.to_csv(tmp_path / "t.csv", index=False)
    table.frame.to_parquet(tmp_path / "t.PARQUET", index=False)
    for name in ("t.csv", "t.PARQUET"):
        other = TrialsTable.from_frame(read(tmp_path / name))
        assert other.columns == table.columns
        for column in ("trial", "final_loss", "param.stage1_9.max_steps", "seconds"):
            pd.testing.assert_series_equal(other.numbers(column), table.numbers(column), check_dtype=False)
        assert other.frame["status"].tolist() == table.frame["status"].tolist()


def test_document_becomes_a_table(sweep: dict[str, Any]) -> None:
    table = from_document(sweep)
    assert tuple(table.columns[:8]) == TRIAL_COLUMNS
    assert list(table.columns[8:]) == [
        "param.stage1_9.max_steps",
        "param.stage2.max_steps",
        "final_loss",
        "effective_steps",
        "final_loss_sem",
    ]
    assert table["param.stage1_9.max_steps"].tolist() == [0, 25, 50, 50, 100, 400, 50]
    checked = TrialsTable.from_frame(table)
    assert np.isnan(checked.numbers("final_loss").iloc[3])
    assert checked.is_sweep
    assert checked.parameters == ["param.stage1_9.max_steps", "param.stage2.max_steps"]
    assert checked.completed.tolist() == [True, True, True, False, True, True, False]
    assert checked.has_status("failed", "running").tolist() == (~checked.completed).tolist()
    assert checked.take(checked.completed).trials.tolist() == [0, 1, 2, 4, 5]
    assert TrialsTable.from_frame(checked) is checked


def test_the_list_that_sweep_trials_prints_is_a_table_too(sweep: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(sweep["trials"]))
    pd.testing.assert_frame_equal(read(tmp_path / "t.json"), from_document(sweep))


def test_an_empty_sweep_is_a_table_without_rows(document: Any) -> None:
    table = from_document(document())
    assert table.empty
    assert tuple(table.columns) == TRIAL_COLUMNS


def test_a_metric_does_not_hide_a_column_of_every_trial(document: Any, trial: Any) -> None:
    table = from_document(document(trial(0, 3.0, seconds=99.0)))
    assert table["seconds"].tolist() == [12.5]
    assert table[metric_column("seconds")].tolist() == [99.0]
    assert metric_column("final_loss") == "final_loss"


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("\ufeffloss,steps\n1,2\n".encode())
    assert list(read(tmp_path / "t.csv").columns) == ["loss", "steps"]


def test_a_table_with_only_a_header_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("loss,steps\n")
    assert read(tmp_path / "t.csv").empty


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "loss;note;steps\n0,5;a,b;1\n;c;2\n1e-1;;3\n"),
        ("t.csv", "loss\tnote\tsteps\n0,5\ta,b\t1\n\tc\t2\n1e-1\t\t3\n"),
        ("t.tsv", "loss\tnote\tsteps\n0.5\ta,b\t1\n\tc\t2\n0.1\t\t3\n"),
    ],
    ids=["semicolons", "tabs", "tsv"],
)
def test_tables_of_other_programs_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    table = TrialsTable.open(tmp_path / name)
    np.testing.assert_array_equal(table.floats("loss"), [0.5, np.nan, 0.1])
    assert table.floats("steps").tolist() == [1, 2, 3]
    assert table.frame["note"].tolist()[:2] == ["a,b", "c"]


@pytest.mark.parametrize(
    ("column", "states", "rows", "left_out"),
    [
        ("state", ["COMPLETE", "PRUNED", "FAIL", "COMPLETE"], [0, 3], {"PRUNED": 1, "FAIL": 1}),
        (
            "State",
            ["finished", "crashed", "", "running"],
            [0],
            {"crashed": 1, "without a state": 1, "running": 1},
        ),
        ("state", ["Texas", "Ohio", "COMPLETE", ""], [0, 1, 2, 3], {}),
    ],
    ids=["Optuna", "W&B", "neither"],
)
def test_rows_that_did_not_complete_are_left_out(
    tmp_path: Path, column: str, states: list[str], rows: list[int], left_out: dict[str, int]
) -> None:
    lines = [f"{state},{row}" for row, state in enumerate(states)]
    (tmp_path / "t.csv").write_text("\n".join([f"{column},loss", *lines]) + "\n")
    table = TrialsTable.open(tmp_path / "t.csv")
    assert table.floats("loss").tolist() == table.trials.tolist() == rows
    assert table.left_out == left_out


BAD_FILES = [
    pytest.param("t.csv", "a,b\n1,2\n".encode("utf-16"), "UTF-16", id="UTF-16"),
    pytest.param("t.tsv", "a\tb\n1\t2\n".encode("utf-16-be"), "UTF-16", id="UTF-16 without a mark"),
    pytest.param("t.csv", b"", "empty", id="empty"),
    pytest.param("t.csv", b"\n\n", "no header", id="blank lines"),
    pytest.param("t.csv", b"a,b\n1,2,3\n", "more fields than the header", id="a field too many in each row"),
    pytest.param("t.csv", b"a,b\n1,2\n1,2,3\n", "not a CSV", id="a field too many in one row"),
    pytest.param("t.csv", b"a,a\n1,2\n", "'a' appears 2 times", id="a name twice"),
    pytest.param("t.csv", b"\xef\xbb\xbfa,a\n1,2\n", "'a' appears 2", id="a name twice, one behind a mark"),
    pytest.param("t.csv", b"a,b\n1,\xff\xfe\n", "not a CSV table in UTF-8", id="not UTF-8"),
    pytest.param("t.csv", b'a,b\n"1,2\n', "not a CSV", id="an open quote"),
    pytest.param("t.parquet", b"PAR1 not really", "not a Parquet table", id="damaged parquet"),
    pytest.param("t.json", b"{", "not JSON", id="torn JSON"),
    pytest.param("t.json", b"[" * 100_000, "not JSON", id="JSON too deep"),
    pytest.param("t.json", b"\xff\xff", "not JSON", id="JSON not in UTF-8"),
    pytest.param("t.json", b"3", "not a sweep's export", id="a number"),
    pytest.param("t.json", b"{}", "not a sweep's export", id="an empty object"),
    pytest.param("t.json", b"[1]", r"trials\[0\] is not an object", id="a list of numbers"),
    pytest.param("t.json", b'{"trials": []}', "schema is None", id="no schema"),
    pytest.param("t.json", b'{"schema": true, "trials": []}', "schema is True", id="schema of truth"),
    pytest.param("t.json", b'{"schema": "1", "trials": []}', "schema is '1'", id="schema in words"),
    pytest.param("t.json", b'{"schema": 2, "trials": []}', "newer stagesweep", id="newer schema"),
    pytest.param("t.json", b'{"schema": 1, "trials": {}}', "not a list", id="trials no list"),
    pytest.param("t.json", b'{"schema": 1, "trials": [{"trial": 0}]}', "has no attempt", id="fields missing"),
    pytest.param("t.json", b'[{"metrics": [1]}]', "must be objects", id="metrics no object"),
    pytest.param("t.xlsx", b"x", "must end in .csv or .parquet or .json", id="unknown suffix"),
    pytest.param("t", b"x", "must end in", id="no suffix"),
]


@pytest.mark.parametrize(("name", "data", "message"), BAD_FILES)
def test_what_is_no_table_is_refused_in_one_line(
    name: str, data: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TableError, match=message) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("schema", "message"), [("2", "newer stagesweep"), ("0", "schema is 0"), ("one", "schema is 'one'")]
)
def test_a_parquet_table_of_another_schema_is_refused(schema: str, message: str, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"trial": [0]})
    parquet.write_table(table.replace_schema_metadata({"stagesweep.schema": schema}), tmp_path / "t.parquet")
    with pytest.raises(TableError, match=message):
        read(tmp_path / "t.parquet")
    parquet.write_table(table.replace_schema_metadata({"stagesweep.schema": "1"}), tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet")["trial"].tolist() == [0]


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such file"):
        read(tmp_path / "t.csv")
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(TableError, match="folder"):
        read(tmp_path / "t.csv")


def test_an_unknown_column_is_answered_with_the_nearest_and_all() -> None:
    table = pd.DataFrame({"final_loss": [1.0], "steps": [2]})
    with pytest.raises(MissingColumn) as caught:
        TrialsTable.from_frame(table).numbers("finalloss")
    for name in ("'finalloss'", "did you mean 'final_loss'?", "'steps'"):
        assert name in str(caught.value)


def test_parameter_without_its_prefix_is_meant() -> None:
    assert "did you mean 'param.lr'?" in str(MissingColumn("lr", ["loss", "param.lr"]))


def test_a_very_wide_table_does_not_bury_the_message() -> None:
    error = MissingColumn("x", [f"column{i}" for i in range(1000)])
    assert str(error).endswith("and 960 more")
    assert "none" in str(MissingColumn("x", []))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([1, 2], [1, 2], id="integers stay integers"),
        pytest.param(["1", " 2.5 ", "1e-3"], [1, 2.5, 1e-3], id="text"),
        pytest.param([1, None, "nan", float("nan")], [1, np.nan, np.nan, np.nan], id="missing"),
        pytest.param([None, None], [np.nan, np.nan], id="all missing"),
        pytest.param([Decimal("1.5"), 2], [1.5, 2], id="decimals"),
        pytest.param(pd.array([1, None], dtype="Int64"), [1, np.nan], id="nullable integers"),
        pytest.param(np.array([1, 2], dtype=np.uint8), [1, 2], id="unsigned"),
    ],
)
def test_numbers_are_read_as_they_are_meant(values: Any, expected: list[float]) -> None:
    found = TrialsTable.from_frame(pd.DataFrame({"x": values})).numbers("x")
    assert found.dtype in (np.int64, np.float64)
    np.testing.assert_array_equal(found.to_numpy(), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("sobol", id="a word"),
        pytest.param("1,200", id="a thousands separator"),
        pytest.param("", id="empty text"),
        pytest.param(True, id="a truth value"),
        pytest.param([1.0], id="a list"),
        pytest.param({"a": 1}, id="an object"),
        pytest.param(datetime(2026, 1, 1, tzinfo=UTC), id="a date"),
        pytest.param(10**400, id="beyond floats"),
        pytest.param("x" * 500, id="long text"),
    ],
)
def test_what_is_no_number_is_named_with_its_row(wrong: object) -> None:
    table = pd.DataFrame({"x": pd.Series([1.0, wrong], dtype=object)})
    with pytest.raises(NotNumeric, match="row 1") as caught:
        TrialsTable.from_frame(table).numbers("x")
    assert (caught.value.column, caught.value.row) == ("x", 1)
    assert len(str(caught.value)) < 200


def test_truth_values_and_dates_are_no_axis() -> None:
    table = pd.DataFrame({"flag": [True, False], "day": pd.to_datetime(["2026-01-01", "2026-01-02"])})
    for column in table.columns:
        with pytest.raises(NotNumeric, match="row 0"):
            TrialsTable.from_frame(table).numbers(column)


def test_a_column_called_trial_does_not_make_a_trials_table() -> None:
    table = pd.DataFrame({"trial": [7, 7], "status": ["x", "y"]})
    checked = TrialsTable.from_frame(table)
    assert not checked.is_sweep
    assert checked.trials.tolist() == [0, 1]
    assert checked.completed.all()


@pytest.mark.parametrize("wrong", [-1, 0.5, 3, None, "four"], ids=str)
def test_indices_of_our_own_table_stand_there_once(wrong: object, sweep: dict[str, Any]) -> None:
    sweep["trials"][6]["trial"] = wrong
    with pytest.raises(AnalysisError, match="'trial'"):
        TrialsTable.from_frame(from_document(sweep))


def test_effective_steps_are_computed_if_missing(length_sweep_file: Path) -> None:
    table = TrialsTable.from_frame(read(length_sweep_file))
    steps = table.with_effective_steps().numbers("effective_steps")
    assert steps.tolist() == [300, 400, 600, 1200, 2200]
    assert "effective_steps" not in table
    frame = pd.DataFrame({"param.stage1_9.max_steps": [1], "param.stage2.max_steps": [2]})
    own = TrialsTable.from_frame(frame)
    assert own.with_effective_steps().numbers("effective_steps").tolist() == [4]
    given = own.assign(effective_steps=9)
    assert given.with_effective_steps() is given
    assert "effective_steps" not in TrialsTable.from_frame(frame.iloc[:, :1]).with_effective_steps()


def test_names_of_columns_are_text_and_different() -> None:
    assert TrialsTable.from_frame(pd.DataFrame({0: [1.0]})).columns == ["0"]
    for names in (["x", "x"], [0, "0"]):
        with pytest.raises(TableError, match="appears 2 times"):
            TrialsTable.from_frame(pd.DataFrame([[1, 2]], columns=names))


def test_standard_errors_are_positive_or_missing() -> None:
    table = TrialsTable.from_frame(
        pd.DataFrame({"x": [1, 2, 3], "x_sem": [0.1, 0.0, None], "y_sem": ["a", "b", "c"]})
    )
    np.testing.assert_array_equal(table.standard_errors("x"), [0.1, np.nan, np.nan])
    assert np.isnan(table.standard_errors("y")).all()
    assert np.isnan(table.standard_errors("z")).all()


def test_tables_that_were_put_together_have_rows_of_their_own(sweep: dict[str, Any]) -> None:
    one = from_document(sweep)
    both = pd.concat([one, one])
    both["trial"] = range(len(both))
    numbers = TrialsTable.from_frame(both).numbers("final_loss")
    assert numbers.index.is_unique
    assert numbers.tolist()[: len(one)] == pytest.approx(numbers.tolist()[len(one) :], nan_ok=True)


@pytest.mark.parametrize(
    ("rows", "text", "message"),
    [
        (3 * 10**7, None, "it has 30,000,000 cells; 10,000,000 is the most"),
        (3 * 10**4, "a" * 10**4, "its cells have more than 256 MiB"),
    ],
    ids=["rows", "text"],
)
def test_parquet_of_few_bytes_does_not_fill_the_memory(
    rows: int, text: str | None, message: str, tmp_path: Path
) -> None:
    import pyarrow
    from pyarrow import parquet

    column = (
        pyarrow.DictionaryArray.from_arrays(pyarrow.repeat(0, rows), [text]) if text else pyarrow.nulls(rows)
    )
    table = pyarrow.table({"x": column})
    parquet.write_table(table, tmp_path / "t.parquet", store_schema=False, row_group_size=rows)
    assert (tmp_path / "t.parquet").stat().st_size < 10**5
    with pytest.raises(TableError, match=message):
        read(tmp_path / "t.parquet")
