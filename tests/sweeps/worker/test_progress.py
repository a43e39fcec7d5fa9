"""The progress bar of a worker in a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from sweeps.trials.record import Trial
from sweeps.worker.progress import Bar

RECORD = Trial(trial=4, status="running", parameters={}, generator="sobol")


@pytest.mark.parametrize(
    ("progress", "text", "share"),
    [
        ({"step": 10, "of": 40, "loss": 0.5}, "step 10/40 loss 0.5", 0.25),
        ({"step": 10, "held_out_loss": 0.5}, "step 10 held-out 0.5", 0.0),
        (
            {"stage": "stage2", "step": 10, "of": 40, "done": 0.75, "loss": 0.5},
            "stage stage2 step 10/40 loss 0.5",
            0.75,
        ),
        ({"stage": "align", "step": 10, "of": 40}, "stage align step 10/40", 0.0),
    ],
    ids=["script", "script of unknown length", "trainer", "stages of a script"],
)
def test_it_shows_how_far_the_program_is(progress: dict[str, Any], text: str, share: float) -> None:
    bar = Progress(console=Console(file=io.StringIO()))
    shown = Bar(None, bar)  # type: ignore[arg-type]  # the sweep is asked once a trial has ended
    shown.started(RECORD)
    shown.progressed(RECORD, progress)
    (task,) = bar.tasks
    assert (task.fields["progress"], task.completed) == (text, share)
