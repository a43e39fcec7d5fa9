"""Manifest of an uploaded run folder: its complete files and their checksums. Pure.

The uploader writes it last, in one compare-and-swap, so that a reader sees a consistent state of the folder,
wherever the writer was killed. An object that no manifest names belongs to an incomplete upload.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

from sweeps.storage.keys import checked_key
from sweeps.text import json_reader
from sweeps.text.counted import counted

MANIFEST = "manifest.json"
SCHEMA = 1
_BLOCK = 2**20
_GENERATION = re.compile(r"[!-~]{1,128}")  # a number in GCS, an ETag in S3
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Size and checksums of a file. The service itself computes only `md5`, in base64."""

    size: int
    sha256: str
    md5: str


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file in the bucket.

    Args:
        object: name of its object below the prefix: the file's own, unless an earlier content has that.
        generation: the object's generation; a growing file may have a later one with more bytes.
        size: bytes.
        sha256: checksum in hexadecimal digits.
        md5: checksum in base64.
        growing: whether the program appends to it.
    """

    object: str
    generation: str
    size: int
    sha256: str
    md5: str
    growing: bool


def entry(content: Digest, name: str, generation: str, *, growing: bool = False) -> Stored:
    """Return the entry of a file with this content, in the object `name`."""
    return Stored(object=name, generation=generation, growing=growing, **asdict(content))


Files = Mapping[str, Stored]
_FIELDS = {"object": str, "generation": str, "size": int, "sha256": str, "md5": str, "growing": bool}


def digest(file: IO[bytes], size: int) -> Digest:
    """Return the digest of the first `size` bytes. Raises `EOFError` if there are fewer."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for block in blocks(file, size):
        sha256.update(block)
        md5.update(block)
    return Digest(size=size, sha256=sha256.hexdigest(), md5=base64.b64encode(md5.digest()).decode())


def blocks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes in blocks. Raises `EOFError` if there are fewer."""
    file.seek(0)
    left = size
    while left:
        block = file.read(min(_BLOCK, left))
        if not block:
            raise EOFError(f"{counted(left, 'byte')} fewer than expected")
        left -= len(block)
        yield block


def object_name(name: str, content: Digest, taken: bool) -> str:
    """Return the name of a file's object: its own, or with a checksum if that is `taken`."""
    return f"{name}.{content.sha256[:12]}" if taken or name == MANIFEST else name


def encode(files: Files, *, uploading: bool = False) -> bytes:
    """Return the manifest of these files as JSON; `uploading` says that others are to follow."""
    document = {"schema": SCHEMA, "files": {name: asdict(files[name]) for name in sorted(files)}}
    if uploading:
        document["uploading"] = True
    return (json.dumps(document, indent=1) + "\n").encode()


def is_uploading(data: bytes) -> bool:
    """Return whether a manifest says that others are to follow; earlier versions never said so."""
    try:
        return json_reader.parse(data).get("uploading") is True
    except (ValueError, AttributeError):
        return False


def decode(data: bytes) -> dict[str, Stored]:
    """Return the files that a manifest names. Raises `ValueError` for what `encode` does not write."""
    document = json_reader.parse(data)
    json_reader.require_schema(document, SCHEMA)
    files = document.get("files")
    if not isinstance(files, dict):
        raise ValueError("it names no files")  # noqa: TRY004 - one error type for all bad data
    found: dict[str, Stored] = {}
    for name, entry in files.items():
        # A later version may have added others.
        known: dict[str, Any] = {key: entry.get(key) for key in _FIELDS} if isinstance(entry, dict) else {}
        if {key: type(value) for key, value in known.items()} != _FIELDS:
            raise ValueError(f"{name!r}: its entry has other fields")
        stored = Stored(**known)
        if (
            stored.size < 0
            or not _GENERATION.fullmatch(stored.generation)
            or not _SHA256.fullmatch(stored.sha256)
        ):
            raise ValueError(f"{name!r}: its entry is not a file's")
        checked_key(stored.object)
        found[checked_key(name)] = stored
    return found
