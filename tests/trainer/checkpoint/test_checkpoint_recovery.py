"""A run with adapters that was ended and gone on with is the run that was never ended, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_runs import Attempt, KilledError, Publish, Uninterrupted, kill, outcome_of, terminate

from trainer import pipeline
from trainer.errors import PreemptedError

pytest.importorskip("peft")

ON = (
    *("stage1_9.max_steps=2", "stage2.max_steps=2", "stage2.lambda_warmup.warmup_steps=1"),
    *(
        "recovery.max_steps=4",
        "recovery.batch_size=4",
        "recovery.schedule.warmup_steps=1",
        "eval.at=[0.5,1.0]",
    ),
)

FREEZE = (
    *("auto_freeze.enabled=true", "auto_freeze.every_steps=1", "auto_freeze.start_step=1"),
    *("auto_freeze.patience=1", "auto_freeze.threshold=1e9"),
)


@pytest.mark.parametrize(
    ("overrides", "ends"),
    [
        ((), [(kill, 6), (terminate, 2)]),  # from a checkpoint of Stage 2, and from one in the middle
        ((), [(terminate, 4), (kill, 3), (terminate, 2)]),  # at the border
        pytest.param((), [(terminate, 8)], marks=pytest.mark.slow),  # after the last step
        pytest.param(
            ("model.master_dtype=bfloat16", "recovery.micro_batch_size=2"),
            [(terminate, 6)],
            marks=pytest.mark.slow,
        ),
        pytest.param(FREEZE, [(terminate, 7)], marks=pytest.mark.slow),
    ],
    ids=["killed", "border", "end", "bfloat16", "auto-freeze"],
)
def test_it_goes_on_with_the_adapters_that_it_had(
    overrides: tuple[str, ...], ends: list, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    expected, folder = uninterrupted(*ON, *overrides), tmp_path / "run"
    for end, at in ends:
        with pytest.raises((KilledError, PreemptedError)):
            attempt(folder, *ON, *overrides, "checkpoint.every_steps=3", end=end, at=at)
    assert outcome_of(attempt(folder, *ON, *overrides), folder) == expected


@pytest.mark.parametrize("where", ["the start of recovery", "the final evaluation"])
def test_a_signal_around_it_loses_nothing(
    where: str,
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    tmp_path: Path,
    signal_in_evaluation: Callable[[str], list[str]],
) -> None:
    expected = uninterrupted(*ON)
    signalled = signal_in_evaluation(where)
    folder = tmp_path / "run"
    with pytest.raises(PreemptedError, match="checkpoint"):
        attempt(folder, *ON)
    assert outcome_of(attempt(folder, *ON), folder) == expected
    assert signalled == [where]


def test_a_signal_between_adapters_and_their_first_step_loses_nothing(
    attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, folder, add = uninterrupted(*ON), tmp_path / "run", pipeline.add_adapters

    def add_and_end(*arguments: Any, **options: Any) -> None:
        add(*arguments, **options)
        terminate()

    monkeypatch.setattr(pipeline, "add_adapters", add_and_end)
    with pytest.raises(PreemptedError, match="checkpoint"):
        attempt(folder, *ON)
    monkeypatch.setattr(pipeline, "add_adapters", add)
    assert outcome_of(attempt(folder, *ON), folder) == expected


def test_it_follows_a_stage_that_another_run_computed(
    publish: Publish, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    from kept_runs import SHORT

    overrides = (*SHORT, *ON[3:], "eval.at=[0.5,1.0]")
    folder = tmp_path / "run"
    publish(folder)
    with pytest.raises(PreemptedError):
        attempt(folder, *overrides, end=terminate, at=5)
    outcome = attempt(folder, *overrides)
    assert outcome.result.provenance.reused_stages == ("stage1_9",)
    fresh = json.loads(uninterrupted(*overrides))
    assert json.loads(outcome_of(outcome, folder))[0] == fresh[0]  # the weights
