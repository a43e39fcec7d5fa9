"""A run with averaged weights that was ended and gone on with is the run that was never ended, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kept_runs import Attempt, KilledError, Uninterrupted, kill, outcome_of, terminate

from trainer.errors import PreemptedError

EMA = ("average.type=ema", "average.decay=0.6")
LAST = ("average.type=last", "average.steps=4")
STAGE3 = ("stage3.max_steps=4", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")


@pytest.mark.parametrize(
    ("overrides", "ends"),
    [
        (EMA, [(kill, 10), (terminate, 2)]),
        pytest.param(LAST, [(terminate, 8), (terminate, 2)], marks=pytest.mark.slow),
        pytest.param((*EMA, "model.master_dtype=bfloat16"), [(terminate, 9)], marks=pytest.mark.slow),
        ((*LAST, *STAGE3), [(terminate, 11), (terminate, 3)]),
    ],
    ids=["ema", "last", "bfloat16", "stage 3"],
)
def test_it_goes_on_with_the_average_that_it_had(
    overrides: tuple[str, ...], ends: list, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    expected, folder = uninterrupted(*overrides), tmp_path / "run"
    for end, at in ends:
        with pytest.raises((KilledError, PreemptedError)):
            attempt(folder, *overrides, "checkpoint.every_steps=3", end=end, at=at)
    assert outcome_of(attempt(folder, *overrides), folder) == expected


@pytest.mark.parametrize("where", ["the final evaluation without the average", "the final evaluation"])
def test_signal_at_the_end_keeps_average_and_weights(
    where: str,
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    tmp_path: Path,
    signal_in_evaluation: Callable[[str], list[str]],
) -> None:
    expected = uninterrupted(*EMA)
    signalled = signal_in_evaluation(where)
    folder = tmp_path / "run"
    with pytest.raises(PreemptedError, match="checkpoint"):
        attempt(folder, *EMA)
    assert outcome_of(attempt(folder, *EMA), folder) == expected
    assert signalled == [where]
