"""An objective in two stages, the first of which it leaves for other trials, as docs/explanation/sharing.md says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

computed: list[float] = []
"""The x of each first stage that was computed in this process."""

between: list[Callable[[Path], None]] = []
"""Called with the run folder after the first stage."""


def objective(parameters):
    run = Path(os.environ["SWEEP_RUN_DIR"])
    ended = run / "snapshots" / "first"
    if not ended.is_dir():
        computed.append(parameters["x"])
        draft = run / "snapshots" / "first.tmp"
        draft.mkdir(parents=True)
        (draft / "weights").write_text(repr(2 * parameters["x"]))
        draft.rename(ended)
    weights = float((ended / "weights").read_text())
    for call in list(between):
        call(run)
    return {"loss": weights + parameters["n"]}
