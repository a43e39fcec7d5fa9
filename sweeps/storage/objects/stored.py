"""What the bucket holds for a record: its bytes and a nonce, or a tombstone. Pure.

S3's version of an object, the ETag, is the MD5 of its bytes: A, B and A again would share two versions, and a
writer that was asleep since the first A could overwrite the second. So a nonce is stored behind every record:
128 bits as a line of blanks and tabs, which any reader of JSON skips.

S3 cannot remove one version of an object everywhere (`If-Match` on a DELETE is young, and obstore does not
send it). So a record is removed by replacing it with a tombstone, which readers take for no object, and
created again by replacing that. Tombstones have one size, by which a listing finds those to look into.
"""

from __future__ import annotations

import re
import secrets

_BITS = 128
_TRAILER = re.compile(rb"\n[ \t]{%d}" % _BITS)
TRAILER_BYTES = _BITS + 1

_TOMBSTONE = re.compile(rb"removed by stagesweep [0-9a-f]{32}\n")
TOMBSTONE_BYTES = 55


def with_nonce(data: bytes) -> bytes:
    """Return the bytes to store for a record; no two calls return the same."""
    return data + f"\n{secrets.randbits(_BITS):0{_BITS}b}".translate({48: " ", 49: "\t"}).encode()


def has_nonce(stored: bytes) -> bool:
    """Return whether these bytes end with a nonce, so that they are a record's."""
    return _TRAILER.fullmatch(stored[-TRAILER_BYTES:]) is not None


def without_nonce(stored: bytes) -> bytes:
    """Return the record; bytes that some other program stored stay as they are."""
    return stored[:-TRAILER_BYTES] if has_nonce(stored) else stored


def tombstone() -> bytes:
    """Return the bytes of a new tombstone; no two calls return the same."""
    return f"removed by stagesweep {secrets.token_hex(16)}\n".encode()


def is_tombstone(stored: bytes) -> bool:
    """Return whether these bytes stand for no object."""
    return _TOMBSTONE.fullmatch(stored) is not None
