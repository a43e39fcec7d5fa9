"""A run with auto-freeze that was ended and gone on with freezes what, and when, the uninterrupted one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_runs import Attempt, KilledError, kill, outcome_of, terminate

from trainer.errors import PreemptedError

FREEZE = (
    "auto_freeze.enabled=true",
    "auto_freeze.every_steps=2",
    "auto_freeze.start_step=0",
    "auto_freeze.patience=1",
    "stage1_9.optimizer.type=apollo",  # its projections hang on the places of the matrices
)
# Apart from the gains, a matrix: what is then updated has other places.
PARAMETERS = "auto_freeze.parameters=['*.norm.weight','*.layers.0.*.gate_proj.weight']"
# Frozen after step 4 of Stage 1.9, or of Stage 2 (whose rate is so low that its parameters are at rest).
EARLY = (*FREEZE, PARAMETERS, "auto_freeze.threshold=1e9")
LATE = (*FREEZE, PARAMETERS, "auto_freeze.threshold=1e-9", "stage2.optimizer.lr=1e-12")


@pytest.mark.parametrize(
    ("overrides", "ends"),
    [
        (EARLY, [(kill, 4), (terminate, 2)]),  # from step 3, a check kept; then just after the freeze
        pytest.param(EARLY, [(terminate, 9)], marks=pytest.mark.slow),  # in the stage after the freeze
        pytest.param(  # with the first stage's checks over; just after the freeze
            LATE, [(terminate, 9), (terminate, 2)], marks=pytest.mark.slow
        ),
    ],
    ids=["around the freeze", "in the stage after", "frozen in the second stage"],
)
def test_it_comes_to_the_same_bit_for_bit(
    overrides: tuple[str, ...], ends: list, attempt: Attempt, tmp_path: Path
) -> None:
    full = attempt(tmp_path / "full", *overrides)
    assert sum(not parameter.requires_grad for parameter in full.student.parameters()) == 6
    expected = outcome_of(full, tmp_path / "full")
    for end, at in ends:
        with pytest.raises((KilledError, PreemptedError)):
            attempt(tmp_path / "run", *overrides, "checkpoint.every_steps=3", end=end, at=at)
    assert outcome_of(attempt(tmp_path / "run", *overrides), tmp_path / "run") == expected
