"""Entry of a record for one stage of a trial: what it cost, and what of it other trials have computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sweeps.space.definition import Number

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """A stage of a trial, to its end or, among the record's `points`, until a step within its trunk.

    Args:
        key: of the checkpoint there, 64 hexadecimal digits; equal keys mean equal weights. "": never shared.
        cost: of computing it until there, in the sweep's unit (effective steps for the trainer).
        reused_from: trial whose checkpoint took the place of computing it; None: this trial computed it.
        snapshot: whether this trial has published the checkpoint under `key` and it is still stored.
        seconds: of training that it took the trial that computed it; None: unknown.
        usd: dollars, likewise.
        step: steps of the stage until a checkpoint within its trunk; None: to its end.
        branched_from: trial from whose trunk this trial branched off in the stage; None: it began the stage.
        branched_at: steps of the stage until there.
        saved: the part of `cost` until there, which this trial did not pay.
        later: what a later version has added, by name.
    """

    name: str
    key: str
    cost: Number
    reused_from: int | None = None
    snapshot: bool = False
    seconds: float | None = None
    usd: float | None = None
    step: int | None = None
    branched_from: int | None = None
    branched_at: int | None = None
    saved: Number = 0.0
    later: Mapping[str, Any] = field(default_factory=dict, hash=False)


OPTIONAL: Mapping[str, Any] = {"step": None, "branched_from": None, "branched_at": None, "saved": 0.0}
"""Fields that a stored record lacks at their defaults, which are these."""


def encode(stages: Iterable[StageRun]) -> list[dict[str, Any]]:
    """Return the stages as a record's JSON has them."""
    documents = []
    for entry in map(asdict, stages):
        later = entry.pop("later")
        written = {k: v for k, v in entry.items() if k not in OPTIONAL or v != OPTIONAL[k]}
        documents.append(written | later)
    return documents


def problem(stage: StageRun) -> str:
    """Return what is wrong with a stage whose fields are of their types, or ""."""
    for name in ("reused_from", "branched_from", "step", "branched_at", "cost", "seconds", "usd", "saved"):
        if (number := getattr(stage, name)) is not None and number < 0:
            return f"{name} is {number}, below 0"
    if stage.snapshot and not _KEY.fullmatch(stage.key):  # it names a folder of the store
        return f"it is stored, and its key is {stage.key!r:.80}"
    return "saved is more than the cost" if stage.saved > stage.cost else ""
