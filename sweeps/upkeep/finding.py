"""Finding of `sweep doctor`: made by `machine` and `diagnostics`, shown by the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["problem", "note"]
"""A problem makes `sweep doctor` exit with 1; a note is harmless."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Problem or note, with its location and remedy.

    Args:
        kind: a short word for programs, such as `torn` or `expired`.
        where: an object's location, a file, or the part of the machine.
        remedy: what a person should do; "" if nothing.
    """

    kind: str
    level: Level = "problem"
    what: str
    where: str
    remedy: str = ""
