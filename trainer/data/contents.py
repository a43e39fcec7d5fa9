"""Kinds of files by their first bytes, and decompression into the cache. Used by `formats` and `shards`.

Streamed text is read at byte offsets, which compressed files do not have. They are decompressed once per
machine, so the order of their text is that of the same files uncompressed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

from trainer.cache import artifact
from trainer.data.files import File
from trainer.data.remote import with_retries
from trainer.errors import DataError, UnreachableError

HEAD = 2**16  # bytes that are judged by
BOM = b"\xef\xbb\xbf"
PARQUET = b"PAR1"
COPIED = 2**22  # bytes at a time

# Codecs as pyarrow calls them: it has all four, so that nothing else needs to be installed.
_CODECS = (
    (re.compile(rb"\x1f\x8b"), "gzip"),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), "zstd"),  # pzstd begins with a skippable frame
    (re.compile(rb"BZh[1-9]1AY&SY"), "bz2"),
    (re.compile(rb"\x04\x22\x4d\x18"), "lz4"),
)
_UNPACK = "unpack it, and name the files of text"
_CONVERT = "convert it: iconv -f {} -t UTF-8 FILE > NEW"
_OTHERS = (
    (b"\xff\xfe\x00\x00", "UTF-32", _CONVERT.format("UTF-32")),
    (b"\x00\x00\xfe\xff", "UTF-32", _CONVERT.format("UTF-32")),
    (b"\xff\xfe", "UTF-16", _CONVERT.format("UTF-16")),
    (b"\xfe\xff", "UTF-16", _CONVERT.format("UTF-16")),
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS, not the file", "run git lfs pull"),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"\xfd7zXZ\x00", "compressed by xz", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
)
_NO_TEXT = "name the files of text alone, by a glob such as 'FOLDER/**/*.txt'"
_BINARY = 8000  # bytes in which Git, too, looks for a NUL


def codec(head: bytes) -> str | None:
    """Return pyarrow's name of the compression of a file that begins so; None: it is not compressed."""
    return next((name for magic, name in _CODECS if magic.match(head)), None)


def other_kind(head: bytes) -> tuple[str, str] | None:
    """Return what a file that begins so is in place of text, and what to do instead; None: nothing else.

    Compressed files and Parquet are left to the caller.
    """
    for magic, kind, instead in _OTHERS:
        if head.startswith(magic):
            return kind, instead
    if head[257:262] == b"ustar":
        return "a tar archive", _UNPACK
    start = head[:_BINARY]
    if b"\0" not in start:
        return ("a PDF", _NO_TEXT) if head.startswith(b"%PDF-") else None
    for first, name in ((1, "UTF-16LE"), (0, "UTF-16BE")):  # ASCII in it has a NUL in every other byte
        if start[first::2].count(0) > len(start) // 5 and not start[1 - first :: 2].count(0):
            return f"{name} without a byte order mark", _CONVERT.format(name)
    return f"no text: byte {start.index(0)} is NUL", _NO_TEXT


def decompress(file: File, name: str) -> File:
    """Return a file's decompressed copy in the cache, made now if it is not there.

    Args:
        file: compressed as a whole.

    Raises:
        DataError: it cannot be read, or ends early.
        CacheError: there is no room.
    """
    spec = {
        "url": file.url,
        "size": file.size,
        "checksum": file.checksum,
        "changed": file.changed,
        "codec": name,
    }

    def build(folder: Path) -> None:
        def unpack() -> None:
            import pyarrow

            with (
                file.filesystem.open(file.path, "rb") as packed,
                pyarrow.CompressedInputStream(packed, name) as stream,
                (folder / "text").open("wb") as target,
            ):
                shutil.copyfileobj(stream, target, COPIED)

        with_retries(unpack, file.url)

    from fsspec.implementations.local import LocalFileSystem

    path = artifact("decompressed", spec, build) / "text"
    return replace(
        file, filesystem=LocalFileSystem(), path=str(path), size=path.stat().st_size, source=file.url
    )


def place(file: File, offset: int) -> str:
    """Return file and line of a byte for a message; counting the lines reads the file up to there."""
    line, at = 1, 0
    # A file that cannot be read again must not hide the fault in it.
    with contextlib.suppress(DataError, UnreachableError):
        while at < offset:
            part = file.bytes(at, min(at + COPIED, offset))
            line, at = line + part.count(b"\n"), at + COPIED
        return f"{file.url}, line {line}"
    return f"{file.url}, the line at byte {offset}"
