"""Escapes for control characters, so that text of any origin is safe to print and nothing in it is lost.

A program's message may hold escape sequences that set a terminal's title, hide lines or type input.
"""

from __future__ import annotations

import re

# C0 but tab and line feed, DEL, C1 (U+009B begins an escape sequence by itself), and lone surrogates.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_controls(text: str) -> str:
    r"""Return the text with control characters as Python writes them (`\x1b`); tabs and line feeds stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def escape_json(text: str) -> str:
    r"""Return the JSON document with its control characters as `\u009b`: it has the same value."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
