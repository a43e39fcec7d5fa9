"""trainer.data.formats: every document once, whatever the blocks; errors have a position."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_texts import numbered, write_lines, write_parquet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.data import formats
from trainer.data.files import File, find_files
from trainer.data.formats import REQUEST, Format, LinesFormat, ParquetFormat, WholeFileFormat, lines_block
from trainer.errors import ConfigError, DataError


def only_file(path: Path) -> File:
    (file,) = find_files([str(path)], ())
    return file


def all_texts(how: Format, file: File) -> list[list[str]]:
    try:
        return [how.texts(file, block) for block in range(how.summarise(file).blocks)]
    finally:
        how.close()


# Parquet


def test_a_block_of_parquet_is_a_row_group(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", numbered(8), rows=3)
    texts = numbered(8)
    assert all_texts(ParquetFormat("text"), only_file(tmp_path / "a.parquet")) == [
        texts[:3],
        texts[3:6],
        texts[6:],
    ]


def test_rows_without_text_are_no_documents(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["one", None, "", " \n", "two"], rows=5)
    assert all_texts(ParquetFormat("text"), only_file(tmp_path / "a.parquet")) == [["one", "two"]]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.string_view()),
    ],
    ids=["large", "dictionary", "view"],
)
def test_text_is_read_in_every_encoding(values: pa.Array, tmp_path: Path) -> None:
    before = pa.array([{"x": 1, "text": [1, 2]}, {"x": 2, "text": []}])
    pq.write_table(pa.table({"nested": before, "text": values}), tmp_path / "a.parquet")
    assert all_texts(ParquetFormat("text"), only_file(tmp_path / "a.parquet")) == [["a", "b"]]


def test_only_so_many_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    handles: list[object] = []
    real = formats.open_file

    def counted(file: File) -> object:
        opened.append(file.name)
        handles.append(real(file))
        return handles[-1]

    monkeypatch.setattr(formats, "open_file", counted)
    for name in "abc":
        write_parquet(tmp_path / f"{name}.parquet", [name])
    a, b, c = find_files([str(tmp_path)], ())
    how = ParquetFormat("text", open_files=2)
    assert [how.texts(file, 0) for file in (a, b, a, c, a, b)] == [["a"], ["b"], ["a"], ["c"], ["a"], ["b"]]
    assert opened == ["a.parquet", "b.parquet", "c.parquet", "b.parquet"]  # b was used longest ago
    assert [handle.closed for handle in handles] == [False, True, True, False]
    how.close()
    assert all(handle.closed for handle in handles)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ("body", r"no column 'body' in .*a\.parquet; it has: id, text"),
        ("id", r"column 'id' .* holds int64, not text"),
    ],
)
def test_a_column_that_holds_no_text_is_refused_by_its_key(column: str, problem: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["one"])
    with pytest.raises(ConfigError, match=problem) as error:
        ParquetFormat(column).summarise(only_file(tmp_path / "a.parquet"))
    assert error.value.key == "data.text_key"


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("nothing of the kind" * 10)
    with pytest.raises(DataError, match=r"cannot read .*a\.parquet: ArrowInvalid") as error:
        ParquetFormat("text").summarise(only_file(tmp_path / "a.parquet"))
    assert "\n" not in str(error.value)
    write_lines(tmp_path / "c.parquet", ["one"])
    with pytest.raises(ConfigError, match=r"data=text data\.text_key=text$"):
        ParquetFormat("text").summarise(only_file(tmp_path / "c.parquet"))
    (tmp_path / "d.parquet").write_bytes(b"\x1f\x8b" + b"x" * 100)
    with pytest.raises(ConfigError, match=r"d\.parquet .*gzip"):
        ParquetFormat("text").summarise(only_file(tmp_path / "d.parquet"))
    write_parquet(tmp_path / "b.parquet", ["word " * 5000], rows=1)
    data = bytearray((tmp_path / "b.parquet").read_bytes())
    chunk = pq.read_metadata(tmp_path / "b.parquet").row_group(0).column(1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 40] = b"\0" * 40
    (tmp_path / "b.parquet").write_bytes(data)
    how, file = ParquetFormat("text"), only_file(tmp_path / "b.parquet")
    for _ in range(2):  # the second time with a handle of its own
        with pytest.raises(DataError, match=r"cannot read .*b\.parquet"):
            how.texts(file, 0)
    how.close()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (pa.nulls(3 * 10**7, pa.string()), "bytes expand to 240,000,000 or more"),
        (pa.DictionaryArray.from_arrays(pa.repeat(0, 10**6), ["a" * 10**4]), r"bytes expand to 20\d,"),
    ],
    ids=["rows", "text"],
)
def test_parquet_of_few_bytes_does_not_fill_the_memory(
    values: pa.Array, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LARGEST_EXPANSION", 2 * 10**8)
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet", row_group_size=len(values))
    assert (tmp_path / "a.parquet").stat().st_size < 10**5
    how, file = ParquetFormat("text"), only_file(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=rf"a\.parquet, row group 0: .*{problem}"):
        all_texts(how, file)


# JSON lines


lines = st.lists(
    st.one_of(
        st.builds(lambda text: json.dumps({"text": text}), st.text(min_size=1, max_size=30)),
        st.just(json.dumps({"text": None})),
        st.sampled_from(["", "  "]),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=lines, block=st.integers(1, 80), ends=st.booleans())
def test_every_line_is_in_one_block_and_only_there(
    lines: list[str], block: int, ends: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + ("\n" if ends else ""))
    entries = [json.loads(line)["text"] for line in lines if line.strip()]
    expected = [text for text in entries if text and not text.isspace()]
    if not path.stat().st_size:
        return
    found = all_texts(LinesFormat("text", block_bytes=block), only_file(path))
    assert [text for texts in found for text in texts] == expected


class Requests:
    """A remote file system of one file that counts what is asked of it."""

    protocol = "remote"

    def __init__(self, content: bytes) -> None:
        self.content, self.count = content, 0
        self.file = File(filesystem=self, path="a", name="a", size=len(content), checksum="", changed=0)

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.count += 1
        return self.content[start:end]

    def unstrip_protocol(self, path: str) -> str:
        return f"remote://{path}"


def test_a_small_remote_file_is_read_once() -> None:
    """Its blocks are so small that a request for each would take longer than training on it."""
    remote = Requests(b'{"text": "one and another"}\n' * 3000)
    found = LinesFormat("text", block_bytes=lines_block([remote.file]))
    assert sum(len(found.texts(remote.file, block)) for block in range(21)) == 3000
    assert remote.count == 1


def test_a_line_of_many_blocks_is_read_in_few_requests() -> None:
    remote = Requests(json.dumps({"text": "x" * 50_000_000}).encode())
    assert len(LinesFormat("text", block_bytes=REQUEST).texts(remote.file, 0)[0]) == 50_000_000
    assert remote.count < 15


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{'text': 1}", "no JSON"),
        ('{"body": "x", "id": 3}', r"no key 'text' \(data\.text_key\); it has: body, id"),
        ('["x"]', "an array, not an object"),
        ("null", "null, not an object"),
        ('{"text": 5}', "'text' is a number, not text"),
        ('{"text": ["x"]}', "'text' is an array, not text"),
        ("{", "no JSON .* on one line"),
        ('{"text": "caf\xe9"}', "byte 0xE9 is no UTF-8 .*iconv"),
    ],
    ids=["quotes", "another-key", "array", "null", "number", "inner-array", "pretty", "latin-1"],
)
def test_fault_names_file_and_line(line: str, problem: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["fine", None, "good"])
    good = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(good + b"\r\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(DataError, match=rf"a\.jsonl, line 5: .*{problem}") as error:
        all_texts(LinesFormat("text", block_bytes=10), only_file(tmp_path / "a.jsonl"))
    assert "\n" not in str(error.value)


def test_huge_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LARGEST_DOCUMENT", 2**20)
    write_lines(tmp_path / "a.jsonl", ["one", "two", "x" * 2**22])
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: .*1 MiB"):
        all_texts(LinesFormat("text", block_bytes=200), only_file(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_lines_are_read_as_other_programs_write_them(ends: str, tmp_path: Path) -> None:
    """A byte order mark at the start of either of two joined files; U+2028, which ends no line of JSON."""
    one, two = (json.dumps({"text": text}, ensure_ascii=False) for text in ("a\u2028b\x85c\r\n", "two"))
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{one}{ends}\ufeff{two}{ends}\ufeff".encode())
    found = all_texts(LinesFormat("text"), only_file(tmp_path / "a.jsonl"))
    assert found == [["a\u2028b\x85c\r\n", "two"]]


# Plain text


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("eins\n\nzwei é\n".encode() + b"\xff!")
    assert all_texts(WholeFileFormat(), only_file(tmp_path / "a.txt")) == [["eins\n\nzwei é\n\ufffd!"]]
    (tmp_path / "b.txt").write_text(" \n")
    assert all_texts(WholeFileFormat(), only_file(tmp_path / "b.txt")) == [[]]


def test_latin_1_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WholeFileFormat, "has_warned", False)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes("eins\nzwei é".encode("latin-1"))
        all_texts(WholeFileFormat(), only_file(tmp_path / f"{name}.txt"))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path}/a.txt, line 2: byte 0xE9 ")


def test_a_file_too_large_for_one_document_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LARGEST_DOCUMENT", 10)
    (tmp_path / "a.txt").write_text("eleven char")
    with pytest.raises(ConfigError, match=r"^data\.files: .*a\.txt has "):
        WholeFileFormat().summarise(only_file(tmp_path / "a.txt"))


# What tells a file from another


@pytest.mark.parametrize(
    ("how", "write"),
    [
        (ParquetFormat("text"), write_parquet),
        (LinesFormat("text"), write_lines),
        (WholeFileFormat(), lambda path, texts: path.write_text(" ".join(texts))),
    ],
    ids=["parquet", "lines", "text"],
)
def test_a_changed_file_has_another_digest(
    how: Format, write: Callable[[Path, list[str]], None], tmp_path: Path
) -> None:
    def digest(*texts: str) -> str:
        write(tmp_path / "a", list(texts))
        return how.summarise(only_file(tmp_path / "a")).digest

    first = digest("one", "two")
    assert digest("one", "two") == first
    assert digest("one", "too") != first
    assert digest("one", "two", "three") != first
