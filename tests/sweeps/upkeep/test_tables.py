"""Files of every format as rows, and files of none."""

from __future__ import annotations

import json

import pyarrow
import pytest
from pyarrow import parquet

from sweeps.upkeep.tables import TableError, read


def test_csv_rows_are_numbered_as_in_an_editor(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(b'\xef\xbb\xbfx,note,loss\n0.5,"two\nlines",1\n\n0.25,,2\n')
    table = read(file)
    assert table.columns == ("x", "note", "loss")
    assert [(row.number, dict(row.cells)) for row in table.rows] == [
        (3, {"x": "0.5", "note": "two\nlines", "loss": "1"}),
        (5, {"x": "0.25", "note": None, "loss": "2"}),
    ]


def test_parquet_keeps_types_and_reads_nan_as_empty(tmp_path):
    file = tmp_path / "t.parquet"
    parquet.write_table(
        pyarrow.table({"x": [0.5, float("nan")], "flag": [True, None], "name": ["a", None]}), file
    )
    rows = [dict(row.cells) for row in read(file).rows]
    assert rows == [{"x": 0.5, "flag": True, "name": "a"}, {"x": None, "flag": None, "name": None}]


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pyarrow.nulls(3 * 10**7), "it has 30,000,000 cells; 10,000,000 is the most"),
        (pyarrow.DictionaryArray.from_arrays(pyarrow.repeat(0, 3 * 10**4), ["a" * 10**4]), "256 MiB"),
    ],
    ids=["rows", "text"],
)
def test_parquet_of_few_bytes_does_not_fill_the_memory(tmp_path, column, problem):
    file = tmp_path / "t.parquet"
    table = pyarrow.table({"x": column})
    parquet.write_table(table, file, store_schema=False, row_group_size=len(column))
    assert file.stat().st_size < 10**5
    with pytest.raises(TableError, match=problem):
        read(file)


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"schema": 1, "trials": rows}])
def test_json_takes_nested_trials_and_flat_rows(tmp_path, wrap):
    file = tmp_path / "t.json"
    nested = {"trial": 0, "status": "completed", "parameters": {"x": 0.5}, "metrics": {"loss": 1.0}}
    file.write_text(json.dumps(wrap([nested, {"x": 0.25, "loss": 2}])))
    assert [dict(row.cells) for row in read(file).rows] == [
        {"trial": 0, "status": "completed", "param.x": 0.5, "metric.loss": 1.0},
        {"x": 0.25, "loss": 2},
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "x;note;loss\n0,5;a,b;1\n0,25;;2,5\n"),
        ("t.csv", "x\tnote\tloss\n0,5\ta,b\t1\n0,25\t\t2,5\n"),
        ("t.tsv", "x\tnote\tloss\n0.5\ta,b\t1\n0.25\t\t2.5\n"),
        ("t.csv", "\ufeffx;note;loss\r\n0.5;a,b;1\r\n0.25;;2.5\r\n"),
    ],
    ids=["semicolons", "tabs", "tsv", "excel"],
)
def test_tables_of_other_programs_are_read(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8", newline="")
    assert [dict(row.cells) for row in read(file).rows] == [
        {"x": "0.5", "note": "a,b", "loss": "1"},
        {"x": "0.25", "note": None, "loss": "2.5"},
    ]


BAD = {
    "header.csv": (b"x,loss\n", "no rows"),
    "list.json": (b"[]", "no rows"),
    "utf16.csv": ("x,loss\n1,2\n".encode("utf-16"), "UTF-16"),
    "utf16le.csv": ("x,loss\n1,2\n".encode("utf-16-le"), "UTF-16"),
    "none.csv": (None, "cannot be read: No such file"),
    "table.xlsx": (b"", "must end in .csv or .parquet or .json"),
    "empty.csv": (b"", "the file is empty"),
    "latin1.csv": (b"x,loss\n\xe9,1\n", "not a CSV file in UTF-8"),
    "quote.csv": (b'x,loss\n"1,2\n', "not a CSV file in UTF-8"),
    "ragged.csv": (b"x,loss\n1,2,3\n", "ragged.csv:2: 3 cells, but the header has 2"),
    "doubled.csv": (b"x,x\n1,2\n", "doubled.csv:1: two columns are called 'x'"),
    "text.parquet": (b"x,loss\n", "not a Parquet file"),
    "torn.json": (b'{"trials": [', "not JSON"),
    "deep.json": (b"[" * 100_000, "not JSON"),
    "number.json": (b"3", "expected a list of objects"),
    "numbers.json": (b"[1, 2]", "expected a list of objects"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_table_is_one_clear_line(tmp_path, name):
    content, problem = BAD[name]
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TableError) as caught:
        read(file)
    assert problem in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
