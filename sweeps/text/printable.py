"""Text of others made fit for a terminal or a file: no control character gets through, and none vanishes.

A program's message may hold escape sequences that set a terminal's title, hide lines or type answers.
Called by the command line, the formatter of log lines and `csv_format`.
"""

from __future__ import annotations

import re

# C0 but tab and line feed, DEL, C1 (U+009B begins an escape sequence by itself), and halves of characters.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_controls(text: str) -> str:
    r"""Return the text with control characters as Python writes them (`\x1b`); tabs and line feeds stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def escape_json(text: str) -> str:
    r"""Return a JSON document with the control characters that JSON allows as `\u009b`: the same document."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
