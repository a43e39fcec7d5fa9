"""Finding of `sweep doctor`: made by `machine` and `diagnostics`, shown by the CLI."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sweeps.upkeep.repair import RepairStep

Level = Literal["problem", "note"]
"""A problem makes `sweep doctor` exit with 1; a note is harmless."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Problem or note, with its location and remedy.

    Args:
        kind: a short word for programs, such as `torn` or `expired`.
        where: an object's location, a file, or the part of the machine.
        remedy: what a person should do; "" if nothing.
        steps: of `sweep repair`, to be read once: to describe some of them takes a look at many files.
    """

    kind: str
    level: Level = "problem"
    what: str
    where: str
    remedy: str = ""
    steps: Iterable[RepairStep] = field(default=(), repr=False, compare=False)
