"""trainer.data.contents: files are what their first bytes say, before anything is read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from data_texts import numbered, text_config, write_lines, write_parquet
from fake_gcs import FakeGcs
from gcsfs.core import GCSFileSystem

from trainer.data import remote
from trainer.data.shards import Shards, open_shards
from trainer.errors import ConfigError, DataError

LINES = "".join(json.dumps({"id": "1", "text": text}) + "\n" for text in numbered(300)).encode()


def packed(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def all_texts(shards: Shards) -> list[list[str]]:
    reader = shards.reader()
    return [reader.texts(int(block)) for block in shards.epoch_order(1, 0)]


def written(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder


# Compressed files


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.zst", lambda data: packed(data, "zstd")),
        ("a.jsonl.bz2", lambda data: packed(data, "bz2")),
        ("a.jsonl.lz4", lambda data: packed(data, "lz4")),
        ("a.jsonl", gzip.compress),
        ("a.jsonl.gz", lambda data: gzip.compress(data[:900]) + gzip.compress(data[900:])),
        ("a.jsonl.zst", lambda data: b"\x50\x2a\x4d\x18\x01\0\0\0x" + packed(data, "zstd")),
        ("a.jsonl.gz", lambda data: data),
    ],
    ids=["gzip", "zstd", "bz2", "lz4", "by-content", "joined", "skippable-frame", "by-name-alone"],
)
def test_compressed_lines_have_the_same_order(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    plain = written(tmp_path / "plain", "a.jsonl", LINES)
    compressed = written(tmp_path / "compressed", name, pack(LINES))
    expected, found = (open_shards(text_config(folder, text_key="text")) for folder in (plain, compressed))
    assert found.blocks > 1
    assert all_texts(found) == all_texts(expected)


def test_compressed_text_is_a_document(tmp_path: Path) -> None:
    written(tmp_path / "texts", "a.txt.gz", gzip.compress(b"eins\r\nzwei"))
    assert all_texts(open_shards(text_config(tmp_path / "texts"))) == [["eins\r\nzwei"]]


def test_file_is_decompressed_once_and_anew_when_changed(tmp_path: Path) -> None:
    folder = written(tmp_path / "texts", "a.jsonl.gz", gzip.compress(LINES))
    first = open_shards(text_config(folder, text_key="text"))
    assert open_shards(text_config(folder, text_key="text")).files[0].path == first.files[0].path
    written(folder, "a.jsonl.gz", gzip.compress(LINES + b'{"text": "more"}\n'))
    second = open_shards(text_config(folder, text_key="text"))
    assert second.sha256 != first.sha256
    assert "more" in np.concatenate(all_texts(second))


def test_faults_name_the_line_of_the_compressed_file(tmp_path: Path) -> None:
    folder = written(tmp_path / "texts", "a.jsonl.gz", gzip.compress(LINES + b'{"text": 5}\n'))
    shards = open_shards(text_config(folder, text_key="text"))
    with pytest.raises(DataError, match=f"^{folder}/a.jsonl.gz, line 301: 'text' "):
        all_texts(shards)


@pytest.mark.parametrize("cut", [slice(0, -20), slice(0, 30)], ids=["end", "beginning"])
def test_cut_file_is_refused_before_it_is_read(cut: slice, tmp_path: Path) -> None:
    folder = written(tmp_path / "texts", "a.jsonl.gz", gzip.compress(LINES)[cut])
    with pytest.raises(DataError, match=f"cannot read {folder}/a.jsonl.gz: OSError: Truncated"):
        open_shards(text_config(folder, text_key="text"))


def test_compressed_file_in_a_bucket(gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    GCSFileSystem.clear_instance_cache()
    url = f"gs://bucket/{tmp_path.name}"
    filesystem, root = remote.open_filesystem(url)
    filesystem.pipe_file(f"{root}/a.jsonl.gz", gzip.compress(LINES))
    shards = open_shards(text_config(url, text_key="text"))
    assert shards.files[0].url == f"{url}/a.jsonl.gz"
    assert sorted(np.concatenate(all_texts(shards))) == sorted(numbered(300))


# Other kinds


KINDS = {
    "utf-16": (LINES.decode().encode("utf-16"), "is UTF-16; convert it: iconv"),
    "utf-16-be": (LINES.decode().encode("utf-16-be"), "is UTF-16BE without a byte order mark; convert it"),
    "utf-32": (LINES.decode().encode("utf-32"), "is UTF-32; convert it"),
    "zip": (b"PK\x03\x04" + LINES, "is a zip archive; unpack it"),
    "tar": (b"a" * 257 + b"ustar" + LINES, "is a tar archive; unpack it"),
    "tar.gz": (gzip.compress(b"a" * 257 + b"ustar" + LINES), "is a tar archive; unpack it"),
    "xz": (b"\xfd7zXZ\x00" + LINES, "is compressed by xz; unpack it"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "is a pointer of Git LFS"),
    "pdf": (b"%PDF-1.7\n" + LINES, "is a PDF; name the files of text alone"),
    "binary": (b"weights\0\1\2\3", "is no text: byte 7 is NUL; name the files of text alone"),
}


@pytest.mark.parametrize("key", [None, "text"], ids=["text", "lines"])
@pytest.mark.parametrize("kind", KINDS)
def test_file_that_is_no_text_is_refused(kind: str, key: str | None, tmp_path: Path) -> None:
    data, problem = KINDS[kind]
    folder = written(tmp_path / "texts", "b.jsonl" if key else "b.txt", data)
    written(folder, "a.jsonl" if key else "a.txt", LINES if key else b"fine")
    with pytest.raises(ConfigError, match=rf"^data\.files: {folder}/b\.\w+ {problem}") as error:
        open_shards(text_config(folder, text_key=key))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\n" + json.dumps([{"text": "x"}]).encode(), "line 2: a JSON array, not one object per line; .*jq"),
        (json.dumps({"data": [{"text": "x"}]}, indent=1).encode(), "line 1: no JSON .* on one line"),
        (b'{"body": "x"}', "line 1: no key 'text' .*it has: body"),
    ],
    ids=["array", "pretty", "another-key"],
)
def test_lines_of_another_form_are_refused_at_once(data: bytes, problem: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "texts", "a.json", data)
    with pytest.raises(ConfigError, match=rf"^data\.files: {folder}/a\.json, {problem}"):
        open_shards(text_config(folder, text_key="text"))


# Without data.text_key


@pytest.mark.parametrize(
    ("name", "data", "key"),
    [
        ("a.jsonl", LINES, "text (text is in: id, text)"),
        ("a.jsonl", b'{"n": 1, "body": "' + b"x" * 100_000 + b'"}\n', "body"),
        ("a.ndjson.gz", gzip.compress(b'{"story": "once"}'), "story"),
        ("a.jsonl", b'{"a": "x", "b": "y"}', "KEY (text is in: a, b)"),
        ("a.txt", b'\xef\xbb\xbf{"content": "x", "id": "1"}\r\n{"content": "y"}', "content"),
    ],
    ids=["lines", "long", "compressed", "several", "by-content"],
)
def test_json_lines_need_their_key(name: str, data: bytes, key: str, tmp_path: Path) -> None:
    folder = written(written(tmp_path / "texts", "0.txt", b"plain text"), name, data)
    with pytest.raises(ConfigError) as error:
        open_shards(text_config(folder))
    assert error.value.key == "data.text_key"
    assert f"{folder}/{name} is JSON lines" in error.value.problem
    assert f"write data.text_key={key}" in error.value.problem


@pytest.mark.parametrize("key", [None, "text"])
def test_parquet_is_no_text(key: str | None, tmp_path: Path) -> None:
    write_parquet(tmp_path / "texts" / "a.dat", ["one"], column="body")
    written(tmp_path / "texts", "b.txt", b"plain text")
    with pytest.raises(ConfigError, match=r"a\.dat .*data=parquet data\.text_key=body$"):
        open_shards(text_config(f"{tmp_path}/texts/*", text_key=key))


def test_other_json_is_text(tmp_path: Path) -> None:
    """A folder of source code has configuration files."""
    folder = written(tmp_path / "code", "package.json", b'{"name": "x"}\n')
    written(folder, "pretty.json", b'{\n "name": {\n "a": 1}}')
    written(folder, "main.c", b"{\n{\n}}")
    assert len(all_texts(open_shards(text_config(folder)))) == 3


def test_texts_of_null_are_named(tmp_path: Path, word_tokenizer: Path) -> None:
    from trainer.data.inputs import load

    write_lines(tmp_path / "a.jsonl", [None, " "])
    with pytest.raises(DataError, match=r"'text' \(data\.text_key\)"):
        load(text_config(tmp_path, text_key="text"), own_tokenizer=word_tokenizer)
