"""What a running program says of itself in `metrics.jsonl`, one JSON object a line. `heart` reads it.

The trainer writes `stage`, `step`, `of`, `done` and `loss`; any program may.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from sweeps import subprocess_run
from sweeps.result import plain
from sweeps.space import Value

METRICS_FILE = "metrics.jsonl"

_LAST_STAGE = "stage2"
"""Losses of trials are compared in the trainer's last stage only: Stage 1.9 logs another loss."""


def progress(folder: Path) -> dict[str, Value]:
    """What the running program last wrote to `metrics.jsonl`: stage, step, of, done, loss; {} if nothing."""
    for line in reversed(subprocess_run.last_lines(folder / METRICS_FILE, count=2).splitlines()):
        try:
            written = json.loads(line)
        except ValueError:
            continue  # the last line may be half-written
        if isinstance(written, dict):
            wanted = ("stage", "step", "of", "done", "loss")
            return {name: written[name] for name in wanted if _is_shown(written.get(name))}
    return {}


def curve(folder: Path, points: int = 64) -> tuple[tuple[float, float], ...]:
    """The losses that the running program has logged, as (step, loss), thinned to about so many points."""
    found: dict[float, float] = {}
    try:
        lines = (folder / METRICS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            written = json.loads(line)
        except ValueError:
            continue
        if not isinstance(written, dict) or written.get("stage", _LAST_STAGE) != _LAST_STAGE:
            continue
        step, loss = plain(written.get("step")), plain(written.get("loss"))
        if step is not None and loss is not None:
            found[step] = loss
    thinned = sorted(found.items())
    return tuple(thinned[:: max(1, -(-len(thinned) // points))])


def _is_shown(value: Any) -> bool:
    """Whether a record can hold it: a diverging run says NaN, which no JSON reader but Python's takes."""
    return isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value))
