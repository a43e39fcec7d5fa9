"""Resolution of `data.files` to the files that it names. Called by `shards`."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.remote import checksum, file_size, open_filesystem, with_retries
from trainer.errors import ConfigError, DataError, MissingError

KEY = "data.files"
_ANSWERED_WHOLE = 2**26
COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".lz4")
# What reads the files that a folder has in place of those that were asked for.
_READ_BY = {
    ".parquet": "data=parquet",
    ".jsonl": "data=text data.text_key=KEY",
    ".ndjson": "data=text data.text_key=KEY",
    ".txt": "data=text data.text_key=null",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class File:
    """A file of training text.

    Args:
        name: relative to the common folder of all files, and so independent of its location.
        size: in bytes.
        checksum: from the store's metadata; "" on this machine.
        changed: modification time in nanoseconds on this machine; 0 elsewhere.
        source: path or URL of the file that this one was decompressed from; "" for any other.
    """

    filesystem: Any
    path: str
    name: str
    size: int
    checksum: str
    changed: int
    source: str = ""

    @property
    def url(self) -> str:
        """Return the path or URL for messages."""
        if self.source:
            return self.source
        return self.path if self.is_local else str(self.filesystem.unstrip_protocol(self.path))

    @property
    def is_local(self) -> bool:
        return "file" in _protocols(self.filesystem)

    def bytes(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end` or the file's end, or raise DataError."""
        end = min(end, self.size)
        if start >= end:
            return b""
        data: bytes = with_retries(
            lambda: self.filesystem.cat_file(self.path, start=start, end=end), self.url
        )
        # Some servers answer with the whole file, which fsspec takes for the part. Of a large one each part
        # would take as long as all of it.
        if len(data) == self.size <= _ANSWERED_WHOLE:
            return data[start:end]
        if len(data) != end - start:
            raise DataError(
                f"{self.url}: {len(data)} bytes came of {end - start} that were asked for (the file has "
                "changed, or its server sends no parts of files; if so, copy it here and name the copy)"
            )
        return data


def find_files(patterns: Sequence[str], suffixes: tuple[str, ...]) -> list[File]:
    """Return all files that the patterns name, sorted by name, without empty ones.

    Args:
        patterns: paths or URLs of files, globs, and folders, which are searched recursively without hidden
            files.
        suffixes: of the files that count in folders; () for all. Files named explicitly count anyway.

    Raises:
        ConfigError: a pattern matches nothing, or a file's size is not known.
        DataError: a listing cannot be read.
    """
    found: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}
    for pattern in patterns:
        try:
            filesystem, path = open_filesystem(pattern)
            infos = with_retries(
                lambda filesystem=filesystem, path=path: list(_infos(filesystem, path, suffixes)),  # type: ignore[misc]
                pattern,
            )
        except MissingError as error:
            raise ConfigError(str(error), key=KEY) from error
        if not infos:
            others = [info["name"] for info in _infos(filesystem, path, ())] if suffixes else []
            raise ConfigError(_nothing_found(pattern, suffixes, others), key=KEY)
        for info in infos:
            found[_protocols(filesystem)[0], info["name"]] = filesystem, info
    folders = {posixpath.dirname(path) for _, path in found}
    absolute = {folder.startswith("/") for folder in folders}
    folder = posixpath.commonpath(folders) if len(absolute) == 1 else ""  # else they have none in common
    files = [_file(filesystem, info, folder) for filesystem, info in found.values()]
    return sorted((file for file in files if file.size), key=lambda file: (file.name, file.path))


def _infos(filesystem: Any, path: str, suffixes: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    if any(character in path for character in "*?[") and not filesystem.exists(path):
        matches = filesystem.glob(path, detail=True).values()
        return [info for info in matches if info["type"] == "file"]
    info = filesystem.info(path)
    if info["type"] == "file":
        return [info]
    below = filesystem.find(path, detail=True)
    return [
        info
        for name, info in below.items()
        if not any(part.startswith(".") for part in posixpath.relpath(name, path).split("/"))  # hidden
        and (not suffixes or name.endswith(suffixes))
        and not (name.endswith(COMPRESSED) and name.rpartition(".")[0] in below)  # a copy of that file
    ]


def _nothing_found(pattern: str, suffixes: Sequence[str], others: Iterable[str]) -> str:
    if not suffixes:
        return f"{pattern!r} names no file"
    plain = [suffix for suffix in suffixes if not suffix.endswith(COMPRESSED)]
    message = f"{pattern!r} names no file that ends with {' or '.join(plain)}"
    found = Counter(posixpath.splitext(name)[1] for name in others)
    if not found:
        return message
    most = [suffix for suffix, _ in found.most_common(3)]
    instead = next((f"; write {_READ_BY[suffix]}" for suffix in most if suffix in _READ_BY), "")
    return f"{message}; it has files that end with {', '.join(map(repr, most))}{instead}"


def _file(filesystem: Any, info: dict[str, Any], folder: str) -> File:
    path = str(info["name"])
    is_local = "file" in _protocols(filesystem)
    return File(
        filesystem=filesystem,
        path=path,
        name=posixpath.relpath(path, folder) if folder else path,
        size=file_size(info, path if is_local else filesystem.unstrip_protocol(path), key=KEY),
        checksum=checksum(info),
        changed=os.stat(path).st_mtime_ns if is_local else 0,  # noqa: PTH116 - fsspec's paths are strings
    )


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
