"""File formats as blocks of documents: Parquet, JSON lines, plain text. Used by `shards`.

A block can be read without the blocks before it, which makes it cheap to restore a position in the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from trainer.data.contents import BOM, HEAD, PARQUET, codec, other_kind, place
from trainer.data.files import COMPRESSED, KEY, File
from trainer.data.remote import with_retries
from trainer.errors import ConfigError, DataError

# Sizes in bytes. Blocks of JSON lines are so many that a short run sees all parts of a text that is sorted by
# its sources; but each is read whole.
LINES_BLOCKS, SMALLEST_LINES_BLOCK, LARGEST_LINES_BLOCK = 1024, 2**12, 2**22
REQUEST = 2**16  # smaller ones could not feed a GPU, so of a small text remote files are read whole
LARGEST_DOCUMENT = 256 * 2**20  # bytes; its tokens would take about ten times that
# A row group may expand to so much text, or more by less than that factor: a run of one value over 10^8 rows
# takes a few bytes of a file.
LARGEST_EXPANSION, EXPANSION = 256 * 2**20, 1000
ROW_BYTES = 8  # of a row's reference to its text, which empty rows have too
BATCH_ROWS = 1024
SAMPLED_BYTES = 64 * 2**10  # hashed at either end of a file that has no checksum
_TEXT_KEYS = ("text", "content")  # the usual names

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FileSummary:
    """Metadata of a file: its number of blocks, and a digest that identifies its content."""

    blocks: int
    digest: str


class Format(ABC):
    """A file format with its own open handles; each reading thread needs an instance.

    Attributes:
        suffixes: of such files in a folder.
        block_bytes: of a block, if that is what blocks are.
        keeps_open: whether opening a file costs as much as reading a block of it.
        is_text: whether such files are text, which may be compressed as a whole.
    """

    suffixes: tuple[str, ...] = ()
    keeps_open: bool = False
    is_text: bool = True
    block_bytes: int | None = None

    def check(self, file: File, head: bytes) -> None:
        """Raise ConfigError for a file of another kind, to judge by its name and first bytes."""
        _refuse_others(file, head)

    @abstractmethod
    def summarise(self, file: File) -> FileSummary:
        """Summarise a file, reading as little as possible, or raise ConfigError or DataError."""

    @abstractmethod
    def texts(self, file: File, block: int) -> list[str]:
        """Return the block's documents that are not blank, or raise DataError."""

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Close open handles."""


class ParquetFormat(Format):
    """Parquet: a block is a row group, a document the value of one column in one row.

    Args:
        column: name of a column of strings.
        open_files: number of files that stay open, as opening one reads its footer.
    """

    suffixes = (".parquet",)
    keeps_open = True
    is_text = False  # it is compressed within

    def __init__(self, column: str, *, open_files: int = 8) -> None:
        self._column, self._limit = column, open_files
        self._open: dict[str, tuple[Any, Any]] = {}

    def summarise(self, file: File) -> FileSummary:
        try:
            metadata, schema = with_retries(lambda: self.read_footer(file), file.url)
        except DataError:
            self.check(file, file.bytes(0, HEAD))
            raise
        self._check_column(schema, file)
        index = schema.names.index(self._column)
        digest = hashlib.sha256()
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunk = _column(group, self._column, index)
            _check_expansion(
                max(group.num_rows * ROW_BYTES, chunk.total_uncompressed_size),
                chunk,
                f"{file.url}, row group {number}",
            )
            facts = [group.num_rows, chunk.total_compressed_size, chunk.total_uncompressed_size]
            if chunk.statistics is not None and chunk.statistics.has_min_max:
                facts += [str(chunk.statistics.min), str(chunk.statistics.max)]
            digest.update(json.dumps(facts).encode())
        return FileSummary(blocks=metadata.num_row_groups, digest=digest.hexdigest())

    def texts(self, file: File, block: int) -> list[str]:
        def read() -> list[str]:
            values: list[str] = []
            size = 0
            try:
                parquet = self._open_file(file)
                chunk = _column(parquet.metadata.row_group(block), self._column, 0)
                for batch in parquet.iter_batches(
                    BATCH_ROWS, row_groups=[block], columns=[self._column], use_threads=False
                ):
                    found = batch.column(0).to_pylist()
                    size += sum(ROW_BYTES + len(text or "") for text in found)
                    _check_expansion(size, chunk, f"{file.url}, row group {block}")
                    values.extend(text for text in found if text and not text.isspace())
            except BaseException:
                self._close(file.path)  # after a failure the state of the handle is unknown
                raise
            return values

        return with_retries(read, file.url)

    def check(self, file: File, head: bytes) -> None:
        if head.startswith(PARQUET):
            return
        if name := codec(head):
            raise ConfigError(f"{file.url} is compressed by {name}, not Parquet; decompress it", key=KEY)
        _refuse_others(file, head)
        _refuse_lines(file, head, "not Parquet; write data=text", least=1)

    def close(self) -> None:
        for path in list(self._open):
            self._close(path)

    def read_footer(self, file: File) -> tuple[Any, Any]:
        """Return pyarrow's metadata and schema of a file."""
        from pyarrow.parquet import ParquetFile

        with open_file(file) as stream, ParquetFile(stream) as parquet:
            return parquet.metadata, parquet.schema_arrow

    def _check_column(self, schema: Any, file: File) -> None:
        from pyarrow import types

        if self._column not in schema.names:
            raise ConfigError(
                f"there is no column {self._column!r} in {file.url}; it has: {', '.join(schema.names)}",
                key="data.text_key",
            )
        kind = schema.field(self._column).type
        values = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(values) or types.is_large_string(values) or types.is_string_view(values)):
            raise ConfigError(
                f"column {self._column!r} of {file.url} holds {kind}, not text", key="data.text_key"
            )

    def _open_file(self, file: File) -> Any:
        """Return the open file, closing the least recently used one if there are too many."""
        from pyarrow.parquet import ParquetFile

        if file.path in self._open:
            self._open[file.path] = self._open.pop(file.path)
        else:
            while len(self._open) >= self._limit:
                self._close(next(iter(self._open)))
            stream = open_file(file)
            try:
                self._open[file.path] = stream, ParquetFile(stream)
            except BaseException:
                stream.close()
                raise
        return self._open[file.path][1]

    def _close(self, path: str) -> None:
        stream, parquet = self._open.pop(path, (None, None))
        if stream is not None:
            parquet.close()
            stream.close()


def lines_block(files: Sequence[File]) -> int:
    """Return the bytes of a block of JSON lines that suit a text of these files."""
    size = sum(file.size for file in files) // LINES_BLOCKS
    return min(max(size, SMALLEST_LINES_BLOCK), LARGEST_LINES_BLOCK)


class LinesFormat(Format):
    """JSON lines: a block is the lines that begin in a range of bytes, a document is one key of one line.

    Args:
        key: every line must have it; `null` and blank texts are skipped.
        block_bytes: size of the range.
    """

    suffixes = tuple(
        kind + compressed for kind in (".jsonl", ".ndjson", ".json") for compressed in ("", *COMPRESSED)
    )
    block_bytes: int

    def __init__(self, key: str, *, block_bytes: int = LARGEST_LINES_BLOCK) -> None:
        self._key, self.block_bytes = key, block_bytes
        self._kept: dict[str, bytes] = {}  # at most LINES_BLOCKS · REQUEST bytes in all

    def summarise(self, file: File) -> FileSummary:
        return FileSummary(blocks=-(-file.size // self.block_bytes), digest=_sample(file))

    def check(self, file: File, head: bytes) -> None:
        _refuse_others(file, head)
        start = head.removeprefix(BOM).lstrip()
        if start.startswith(b"["):
            raise ConfigError(
                f"{place(file, head.index(b'['))}: a JSON array, not one object per line; write it as lines: "
                "jq -c '.[]' FILE > NEW.jsonl",
                key=KEY,
            )
        line, ended, _ = start.partition(b"\n")
        if line and (ended or len(head) == file.size):  # the others are judged when they are read
            try:
                self._text(line, file, head.index(line))
            except DataError as error:
                raise ConfigError(str(error), key=KEY) from error

    def texts(self, file: File, block: int) -> list[str]:
        start, data = self._lines(file, block)
        texts, offset = [], start
        for line in data.split(b"\n"):
            if line.removeprefix(BOM).strip():
                texts.append(self._text(line, file, offset))
            offset += len(line) + 1
        return [text for text in texts if text and not text.isspace()]

    def _lines(self, file: File, block: int) -> tuple[int, bytes]:
        """Return the offset of the first line and all lines that begin in the block."""
        start, end = block * self.block_bytes, min((block + 1) * self.block_bytes, file.size)
        begin = max(0, start - 1)  # the preceding byte shows whether a line begins exactly here
        # Most last lines end soon after the block: one request for both.
        data = self._bytes(file, begin, end + min(self.block_bytes, REQUEST))
        first = data.find(b"\n") + 1 if start else 0
        if (start and not first) or begin + first >= end:
            return end, b""  # all in one line that began earlier
        last = data.find(b"\n", end - 1 - begin)
        while last < 0 and begin + len(data) < file.size:
            length = len(data)
            data += self._bytes(file, begin + length, begin + 2 * length)
            last = data.find(b"\n", length)
            if len(data) > LARGEST_DOCUMENT + self.block_bytes and last < 0:
                huge = begin + data.rfind(b"\n", 0, end - begin) + 1
                raise DataError(
                    f"{place(file, huge)}: more than {LARGEST_DOCUMENT >> 20} MiB, and would be one "
                    "document; split it"
                )
        return begin + first, data[first:] if last < 0 else data[first : last + 1]

    def _bytes(self, file: File, start: int, end: int) -> bytes:
        if file.is_local or self.block_bytes >= REQUEST:
            return file.bytes(start, end)
        if file.url not in self._kept:
            self._kept[file.url] = file.bytes(0, file.size)
        return self._kept[file.url][start:end]

    def _text(self, line: bytes, file: File, offset: int) -> str | None:
        try:
            # Files that were joined have a byte order mark inside.
            entry = from_json(line.removeprefix(BOM))
        except ValueError as error:
            raise DataError(f"{place(file, offset)}: {_no_json(line, error)}") from error
        if not isinstance(entry, dict):
            raise DataError(
                f"{place(file, offset)}: {_type_name(entry)}, not an object with a key {self._key!r}"
            )
        if self._key not in entry:
            raise DataError(
                f"{place(file, offset)}: no key {self._key!r} (data.text_key); it has: {', '.join(entry)}"
            )
        text = entry[self._key]
        if text is not None and not isinstance(text, str):
            raise DataError(f"{place(file, offset)}: {self._key!r} is {_type_name(text)}, not text")
        return text


class WholeFileFormat(Format):
    """Plain text: a file is one block and one document. Bytes that are not UTF-8 become U+FFFD."""

    has_warned = False

    def summarise(self, file: File) -> FileSummary:
        if file.size > LARGEST_DOCUMENT:
            raise ConfigError(
                f"{file.url} has {file.size >> 20} MiB, and would be one document; split it, or write one "
                "document per line as JSON (data.text_key)",
                key="data.files",
            )
        return FileSummary(blocks=1, digest=_sample(file))

    def texts(self, file: File, block: int) -> list[str]:
        data = file.bytes(0, file.size)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text = data.decode(errors="replace")
            if not WholeFileFormat.has_warned:  # once in a process: there may be thousands of such files
                WholeFileFormat.has_warned = True
                _log.warning(
                    "%s: byte 0x%02X is no UTF-8 (Latin-1?) and becomes U+FFFD, as do others; "
                    "to keep them, convert the files: iconv -f LATIN1 -t UTF-8 FILE > NEW",
                    place(file, error.start),
                    data[error.start],
                )
        return [] if not text or text.isspace() else [text]

    def check(self, file: File, head: bytes) -> None:
        _refuse_others(file, head)
        _refuse_lines(file, head, "and would be one document; write")


def _refuse_others(file: File, head: bytes) -> None:
    """Raise ConfigError for a file of neither text nor JSON lines."""
    if head.startswith(PARQUET):
        keys: list[str] = []
        with contextlib.suppress(Exception):  # they are named only to help
            _, schema = ParquetFormat("").read_footer(file)
            keys = [each.name for each in schema if "string" in str(each.type)]
        raise ConfigError(f"{file.url} is Parquet; write data=parquet {_text_key(keys)}", key=KEY)
    if found := other_kind(head):
        kind, instead = found
        raise ConfigError(f"{file.url} is {kind}; {instead}", key=KEY)


def _refuse_lines(file: File, head: bytes, instead: str, *, least: int = 2) -> None:
    """Raise ConfigError for JSON lines: a file named so, or whose first `least` lines are an object each.

    Other JSON is text: a folder of source code has documents of it.
    """
    *lines, last = head.removeprefix(BOM).split(b"\n")
    entries: list[Any] = []
    for line in [line for line in (*lines, last) if line.strip()][:2]:
        is_cut = line is last and len(head) == HEAD
        with contextlib.suppress(ValueError):
            entries.append(from_json(line, allow_partial="trailing-strings" if is_cut else False))
    objects = [entry for entry in entries if isinstance(entry, dict)]
    name, suffix = posixpath.splitext(file.name)
    if suffix not in COMPRESSED:
        name = file.name
    if len(objects) < least and not name.endswith((".jsonl", ".ndjson")):
        return
    keys = [key for key, value in (objects or [{}])[0].items() if isinstance(value, str)]
    raise ConfigError(f"{file.url} is JSON lines, {instead} {_text_key(keys)}", key="data.text_key")


def _text_key(keys: Sequence[str]) -> str:
    """Return the setting for text under one of these keys, and which there are."""
    usual = [key for key in _TEXT_KEYS if key in keys] or list(keys)[: len(keys) == 1]
    return f"data.text_key={usual[0] if usual else 'KEY'}" + (
        f" (text is in: {', '.join(keys)})" if len(keys) > 1 else ""
    )


def _no_json(line: bytes, error: ValueError) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as fault:
        return (
            f"byte 0x{line[fault.start]:02X} is no UTF-8 (Latin-1?); convert the file: "
            "iconv -f LATIN1 -t UTF-8 FILE > NEW"
        )
    # The library counts lines within this one.
    reason = str(error).replace(" at line 1 column ", " at column ")
    spread = "; each object must be on one line" if "EOF" in reason else ""
    return f"no JSON ({reason}){spread}"


def _type_name(value: object) -> str:
    """Return a JSON value's type as JSON names it."""
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text"}
    return names.get(type(value), "an array" if isinstance(value, list) else "an object")


def open_file(file: File) -> Any:
    """Open a file for pyarrow, which requests exact ranges: a read-ahead cache would fetch megabytes more."""
    return file.filesystem.open(file.path, "rb", **({} if file.is_local else {"cache_type": "none"}))


def _column(group: Any, name: str, index: int) -> Any:
    """Return the chunk of a column, at its index in the schema or later: nested columns have several."""
    for number in range(index, group.num_columns):
        if group.column(number).path_in_schema == name:
            return group.column(number)
    raise DataError(f"no chunk of the column {name!r}")


def _check_expansion(size: int, chunk: Any, where: str) -> None:
    """Raise DataError if a chunk of a row group holds far more than text is ever compressed to."""
    if size > max(LARGEST_EXPANSION, EXPANSION * chunk.total_compressed_size):
        raise DataError(
            f"{where}: {chunk.total_compressed_size:,} bytes expand to {size:,} or more, as no text does"
        )


def _sample(file: File) -> str:
    """Return the store's checksum, or else the digest of the file's beginning and end."""
    if file.checksum:
        return file.checksum
    ends = file.bytes(0, SAMPLED_BYTES) + file.bytes(max(SAMPLED_BYTES, file.size - SAMPLED_BYTES), file.size)
    return hashlib.sha256(ends).hexdigest()
