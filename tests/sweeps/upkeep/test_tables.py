"""Files of every format as rows, and files of none."""

from __future__ import annotations

import json
from functools import partial

import golden_messages
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
    "header.csv": b"x,loss\n",
    "list.json": b"[]",
    "utf16.csv": "x,loss\n1,2\n".encode("utf-16"),
    "utf16le.csv": "x,loss\n1,2\n".encode("utf-16-le"),
    "none.csv": None,
    "table.xlsx": b"",
    "empty.csv": b"",
    "latin1.csv": b"x,loss\n\xe9,1\n",
    "quote.csv": b'x,loss\n"1,2\n',
    "ragged.csv": b"x,loss\n1,2,3\n",
    "doubled.csv": b"x,x\n1,2\n",
    "number.json": b"3",
    "numbers.json": b"[1, 2]",
}


@pytest.mark.parametrize(
    ("name", "content"),
    [("text.parquet", b"x,loss\n"), ("torn.json", b'{"trials": ['), ("deep.json", b"[" * 100_000)],
    ids=["parquet", "torn", "deep"],
)
def test_what_its_library_cannot_read_is_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=f"^{tmp_path}/{name}: not (a Parquet file|JSON): ") as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_table_are_refused_as_the_page_says(tmp_path):
    calls = {}
    for name, content in BAD.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        calls[f"{name}: {content[:40]!r}" if content else name] = partial(read, tmp_path / name)
    refused = golden_messages.compare_refusals("Tables to import", TableError, calls, hide=f"{tmp_path}/")
    assert all(str(tmp_path) in str(error) for error in refused.values())
