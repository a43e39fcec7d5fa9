"""Whatever somebody wrote, `json_reader` gives a value that this program can keep, or says what is wrong."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.text import json_reader

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"{", "not JSON", id="cut short"),
        pytest.param(b'{"a": 1} x', "not JSON", id="more behind it"),
        pytest.param(b'{"\\ud800x": 2.0}', "not JSON", id="half a surrogate pair in a name"),
        pytest.param(b'"\xed\xa0\x80"', "not JSON", id="half a surrogate pair in bytes"),
        pytest.param('{"a": "\ud800"}', "not JSON", id="half a surrogate pair in text"),
        pytest.param(b"[" * 5000 + b"]" * 5000, "recursion", id="5,000 levels"),
        pytest.param(b'{"a":' * 5000 + b"1" + b"}" * 5000, "recursion", id="5,000 levels of objects"),
        pytest.param(b"1" + b"0" * 5000, "not JSON", id="an integer of 5,001 digits"),
        pytest.param(b"\xff\xfe", "not JSON", id="not UTF-8"),
    ],
)
def test_a_document_that_cannot_be_kept_is_refused_with_one_line(data: bytes | str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        json_reader.parse(data)
    assert "\n" not in str(caught.value)


def test_a_document_over_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        json_reader.parse(b'"' + b"a" * 1024**2 + b'"', max_bytes=1024**2)
    file = tmp_path / "large.json"
    file.write_bytes(b" " * (1024**2 + 1))
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        json_reader.read(file, max_bytes=1024**2)


@given(value=json_values)
def test_what_json_writes_is_read_as_it_was(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert json_reader.parse(text) == value
    assert json_reader.parse(b"\xef\xbb\xbf" + text.encode()) == value


def test_numbers_that_only_python_writes_are_read() -> None:
    assert math.isnan(json_reader.parse(b"NaN"))
    assert json_reader.parse(b"[-Infinity, 1e999]") == [-math.inf, math.inf]
    assert json_reader.parse(b"1" + b"0" * 400) == 10**400


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="named pipe"):
        json_reader.read(tmp_path / "pipe")


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        json_reader.read(tmp_path / "none.json")
