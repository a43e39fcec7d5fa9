"""Parser for JSON of any origin: a program, a user, another version, a broken disk.

`json.loads` accepts what this package cannot store: lone surrogates, nesting until the stack overflows.
pydantic's parser refuses these with a ValueError; this adds limits on size and on the kind of file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweeps.errors import NewerFormat
from sweeps.text.regular_file import MAX_BYTES, open_regular


def parse(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the value of a JSON document; NaN and infinities are allowed, as Python writes them.

    Args:
        data: text, or its bytes in UTF-8, with or without a byte order mark.

    Raises:
        ValueError: larger than `max_bytes`, not JSON, not UTF-8, a lone surrogate, more than 200 levels of
            nesting, or an integer of more than 4,300 digits; the message is one clause.
    """
    from pydantic_core import from_json  # the floor of all packages imports only the standard library

    if len(data) > max_bytes:
        raise ValueError(f"larger than {max_bytes // 1024**2} MiB")
    try:
        encoded = data.encode() if isinstance(data, str) else data
        return from_json(encoded.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        hint = " (such as half of a surrogate pair)" if "hex escape" in str(error) else ""
        raise ValueError(f"not JSON: {error}{hint}") from None


def require_schema(document: Any, schema: int) -> None:
    """Make sure that a document is an object of this schema.

    Raises:
        NewerFormat: it has a higher one.
        ValueError: it is something else.
    """
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error type for all bad data
    if (written := document.get("schema")) == schema and not isinstance(written, bool):
        return
    is_newer = isinstance(written, int) and written > schema
    kind = NewerFormat if is_newer else ValueError
    raise kind(f"schema is {written!r:.80}, this version reads {schema}")


def read(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: the file cannot be read, or is no regular file (reading a pipe may block).
        ValueError: as in `parse`.
    """
    with open_regular(path) as file:
        return parse(file.read(max_bytes + 1), max_bytes=max_bytes)
