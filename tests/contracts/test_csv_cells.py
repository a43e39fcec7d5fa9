"""CSV of the sweeps survives the analysis and `sweep import`, and spreadsheets evaluate none of it."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import table
from sweeps.text import csv_format
from sweeps.upkeep import tables

FORMULAS = [
    "=1+1", "+cmd|' /C calc'!A0", "-O2", "@SUM(A1)", "\t=1", "\n=1", " =1", "'=1", "''-x", "＝1", "-", "-1e", "-1.5.2",
    "=HYPERLINK(\"http://x\",\"y\")", "+3 apples",
]  # fmt: skip
INNOCENT = [
    "-1.5", "+3", "-inf", "+1e-05", "-.5", "a=b", "O'Neil", "'quoted'", "'-1.5", "", "nan", "3-4",
    "a\tb\nc",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_what_a_spreadsheet_would_run_has_a_quote_before_it(text: str) -> None:
    assert csv_format.cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [*INNOCENT, -1.5, -math.inf, 3, True])
def test_numbers_and_innocent_texts_are_written_as_they_are(value: object) -> None:
    assert csv_format.cell(value) == value


@pytest.mark.parametrize("text", ["a\x1b[31mb", "\x00", "bell\x07", "\x7f", "\x9b0m", "\r=1", "\ud800"])
def test_control_characters_are_shown_and_not_written(text: str) -> None:
    written = csv_format.cell(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800]", written)
    assert "\\" in written


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20) | st.text(
    "'=+-@ 1.ae＝", max_size=6
)


@given(TEXTS)
def test_every_text_comes_back(text: str) -> None:
    written = csv_format.cell(text)
    assert csv_format.text_of(written) == text


@given(st.lists(TEXTS.filter(str.strip), min_size=2, max_size=4, unique=True))
def test_a_file_of_texts_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    names = list(dict.fromkeys(name.strip() for name in names))
    path: Path = tmp_path_factory.mktemp("cells") / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv_format.write(file, names, [dict(zip(names, reversed(names), strict=True))])
    read = tables.read(path)
    assert read.columns == tuple(names)
    assert [row.cells for row in read.rows] == [dict(zip(names, reversed(names), strict=True))]


@pytest.mark.parametrize(
    ("cells", "mark", "points"),
    [
        (["0,5", "1e-3", "", "-2,", ",25"], ";", ["0.5", "1e-3", "", "-2.", ".25"]),
        (["1,234", "5"], ";", ["1.234", "5"]),
        (["1,234", "5"], "\t", None),  # perhaps a thousand
        (["1,234", "0,5"], "\t", ["1.234", "0.5"]),
        (["1,5", "2.5"], ";", None),  # one of the two is a mistake
        (["1.234,5"], ";", None),
        (["1,5", "a"], ";", None),
        (["1,5"], ",", None),
    ],
)
def test_decimal_commas_are_those_of_a_column_of_numbers(
    cells: list[str], mark: str, points: list[str] | None
) -> None:
    assert csv_format.decimal_points(cells, mark) == (cells if points is None else points)


def test_the_analysis_reads_names_and_texts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    rows = [{"=cost": "-O2", "plain": -1.5, "@m": "a"}, {"=cost": "'=x", "plain": -math.inf, "@m": None}]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv_format.write(file, ["=cost", "plain", "@m"], rows)
    with path.open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert cells == ["'=cost", "plain", "'@m", "'-O2", "-1.5", "a", "''=x", "-inf", ""]
    frame = table.read(path)
    assert list(frame.columns) == ["=cost", "plain", "@m"]
    assert frame["=cost"].tolist() == ["-O2", "'=x"]
    assert frame["plain"].tolist() == [-1.5, -math.inf]
