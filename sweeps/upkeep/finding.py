"""One thing that the doctor has to say: made by `machine`, `access` and `ailments`, shown by the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["problem", "note"]
"""A problem is wrong and makes `sweep doctor` exit with 1; a note is good to know, and no harm is done."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is wrong, where, and what to do about it.

    Args:
        kind: a short word for programs, such as `torn` or `expired`.
        where: an object's location, a file, or the part of the machine.
        remedy: what a person does next; "" where nothing needs to be done.
    """

    kind: str
    level: Level = "problem"
    what: str
    where: str
    remedy: str = ""
