"""The one way in for JSON that somebody else wrote: a program, a person, another version, a broken disk.

`json.loads` takes what this package cannot keep: half a surrogate pair, nesting until the stack ends.
pydantic's parser refuses these with a ValueError; this adds limits on size and on the kind of file. Called
wherever `sweeps` reads an object of the store, a program's file or a user's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sweeps.text.regular_file import MAX_BYTES, open_regular


def parse(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the value that the JSON document stands for.

    NaN and infinities are taken, as Python writes them.

    Args:
        data: text, or its bytes in UTF-8, with or without a byte order mark.
        max_bytes: size limit.

    Raises:
        ValueError: one clause that says what is wrong: larger than `max_bytes`, not JSON, not UTF-8, half a
            surrogate pair, nested deeper than 200 levels, an integer of more than 4,300 digits.
    """
    if len(data) > max_bytes:
        raise ValueError(f"larger than {max_bytes // 1024**2} MiB")
    try:
        encoded = data.encode() if isinstance(data, str) else data
        return from_json(encoded.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        hint = " (such as half of a surrogate pair)" if "hex escape" in str(error) else ""
        raise ValueError(f"not JSON: {error}{hint}") from None


def read(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: the file cannot be read, or is no regular file (reading a pipe might never end).
        ValueError: as `parse` says.
    """
    with open_regular(path) as file:
        return parse(file.read(max_bytes + 1), max_bytes=max_bytes)
