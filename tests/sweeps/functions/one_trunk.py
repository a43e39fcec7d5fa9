"""An objective whose first stage leaves points of its trunk for other trials, as docs/explanation/sharing.md says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

EVERY = 5

computed: list[int] = []
"""Steps of each first stage that were computed in this process."""

after_trunk: list[Callable[[Path], None]] = []
"""Called with the run folder when the decay begins."""


def leave(folder: Path, weight: float) -> None:
    draft = folder.with_name(f".{folder.name}")
    draft.mkdir(parents=True)
    (draft / "weight").write_text(repr(weight))
    draft.rename(folder)


def align(snapshots: Path, x: float, steps: int) -> float:
    """Return the weight after so many steps, the second half of which decays."""
    until = steps - round(0.5 * steps)
    points = [int(path.name.split("@")[1]) for path in snapshots.glob("first@*")]
    step = max((point for point in points if point <= until), default=0)
    weight = float((snapshots / f"first@{step}" / "weight").read_text()) if step else x
    computed.append(steps - step)
    while step < until:
        step += 1
        weight = weight * 1.1 + 0.3
        if step % EVERY == 0 or step == until:
            leave(snapshots / f"first@{step}", weight)
    for call in list(after_trunk):
        call(snapshots.parent)
    for left in range(steps - until, 0, -1):
        weight += 0.01 * left * (x - weight)
    return weight


def objective(parameters):
    run = Path(os.environ["SWEEP_RUN_DIR"])
    ended = run / "snapshots/first"
    if not ended.is_dir():
        leave(ended, align(run / "snapshots", parameters["x"], parameters["steps"]))
    return {"loss": json.loads((ended / "weight").read_text()) + parameters["n"]}
