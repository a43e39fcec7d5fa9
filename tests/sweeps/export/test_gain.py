"""What the best trial has gained over the defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sweeps.export.gain import gain
from sweeps.space.definition import Objective, Program, Range, Search, Space
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="final_loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="function", function="m:f"),
    baseline={"x": 0.5},
    defaults="first",
)


def trial(index: int, loss: float, generator: Any = "botorch", **more: float) -> Trial:
    metrics = {"final_loss": loss, **more}
    return Trial(trial=index, status="completed", generator=generator, parameters={"x": 0.1}, metrics=metrics)


FIRST, BEST = trial(0, 3.55, "baseline"), trial(4, 3.5)


def test_interval_is_paired_on_the_same_sequences() -> None:
    """Sequences differ by far more than the two runs do on each of them."""
    teacher = [1.0, 2.0, 3.1, 4.0]
    losses = {
        "0": {"final": [2.0, 3.0, 4.0, 5.2], "teacher": teacher},
        "4": {"final": [1.96, 2.94, 3.95, 5.15], "teacher": teacher},
    }
    found = gain(SPACE, [FIRST, BEST], BEST, losses)
    assert found is not None
    # Differences 0.04, 0.06, 0.05, 0.05: their standard deviation is sqrt(2e-4 / 3), that of their mean half.
    half = 3.182446 * (2e-4 / 3) ** 0.5 / 2  # Student's, with three degrees of freedom
    assert found.difference == pytest.approx(0.05)
    assert found.low == pytest.approx(0.05 - half, abs=1e-6)
    assert found.high == pytest.approx(0.05 + half, abs=1e-6)
    assert str(found).startswith(
        "0.050 below the defaults (trial 0), 95 % 0.037 to 0.063, paired on the same text"
    )


def test_sequences_of_one_document_count_together() -> None:
    """Differences 0.04, 0.06 and 0.05, 0.05, 0.08: deviations -0.016, 0.004 and -0.006, -0.006, 0.024."""
    teacher = [1.0, 2.0, 3.1, 4.0, 5.0]
    losses = {
        "0": {"final": [2.0, 3.0, 4.0, 5.2, 6.0], "teacher": teacher},
        "4": {"final": [1.96, 2.94, 3.95, 5.15, 5.92], "teacher": teacher},
    }
    for entry in losses.values():
        entry["final_documents"] = [3, 3, 8, 8, 8]
    best = trial(4, 3.494)
    found = gain(SPACE, [FIRST, best], best, losses)
    assert found is not None
    sem = (2 / 1 * (0.012**2 + 0.012**2)) ** 0.5 / 5
    assert found.low == pytest.approx(0.056 - 12.706205 * sem, abs=1e-6)
    assert found.high == pytest.approx(0.056 + 12.706205 * sem, abs=1e-6)


@pytest.mark.parametrize("teacher", [[], [3.1, 1.0, 4.0, 2.0]])
def test_losses_on_another_text_are_not_paired(teacher: list[float]) -> None:
    losses = {
        "0": {"final": [2.0, 3.0, 4.0, 5.2], "teacher": [1.0, 2.0, 3.1, 4.0]},
        "4": {"final": [1.96, 2.94, 3.95, 5.15], "teacher": teacher},
    }
    found = gain(SPACE, [FIRST, BEST], BEST, losses)
    assert found is not None
    assert (found.low, found.by) == (None, "")


def test_without_sequences_it_is_from_errors_or_the_stated_noise() -> None:
    noisy = [trial(0, 3.55, "baseline", final_loss_sem=0.03), trial(4, 3.5, final_loss_sem=0.04)]
    found = gain(SPACE, noisy, noisy[1], {})
    assert found is not None
    assert found.by == "errors"
    assert found.high == pytest.approx(0.05 + 1.959964 * 0.05)
    stated = gain(replace(SPACE, search=Search(noise=0.01)), [FIRST, BEST], BEST, {})
    assert stated is not None
    assert stated.by == "noise"
    assert stated.high == pytest.approx(0.05 + 1.959964 * 0.01 * 2**0.5)
    unknown = gain(SPACE, [FIRST, BEST], BEST, {"0": {"final": [1.0, 2.0]}})
    assert str(unknown) == "0.050 below the defaults (trial 0), one run of each"


def test_other_goals_baselines_and_no_gain() -> None:
    up = replace(SPACE, objectives=(Objective(metric="final_loss", goal="maximize"),), defaults="unknown")
    assert str(gain(up, [FIRST, BEST], BEST, {})).startswith("0.050 below the baseline")
    assert str(gain(up, [FIRST, BEST], trial(5, 3.6), {})).startswith("0.050 above the baseline")
    assert (
        str(gain(SPACE, [FIRST, BEST], FIRST, {})) == "no trial is better than the defaults (trial 0) so far"
    )


def test_enqueued_trials_may_come_before_the_first_of_the_search() -> None:
    first, enqueued = trial(3, 3.55, "baseline"), trial(0, 3.5, "enqueued")
    assert str(gain(SPACE, [enqueued, first], enqueued, {})).startswith("0.050 below the defaults (trial 3)")
    assert str(gain(SPACE, [enqueued, first], first, {})).startswith("no trial is better than the defaults")


def test_a_difference_too_large_for_a_number_is_none() -> None:
    assert gain(SPACE, [trial(0, 1.7e308, "baseline")], trial(4, -1.7e308), {}) is None


@pytest.mark.parametrize(
    "records",
    [[BEST], [replace(FIRST, status="failed", metrics={}), BEST], [replace(FIRST, metrics={}), BEST]],
)
def test_no_result_of_the_first_trial(records: list[Trial]) -> None:
    assert gain(SPACE, records, BEST, {}) is None


def test_several_objectives_have_no_best() -> None:
    two = replace(SPACE, objectives=(*SPACE.objectives, Objective(metric="cost")))
    assert gain(two, [FIRST, BEST], BEST, {}) is None


def test_without_the_text_the_trainers_results_have_no_interval() -> None:
    noisy = [trial(0, 3.55, "baseline", final_loss_sem=0.03), trial(4, 3.5, final_loss_sem=0.04)]
    trainer = replace(SPACE, program=Program(kind="trainer"))
    found = gain(trainer, noisy, noisy[1], None)
    assert found is not None
    assert (found.difference, found.low, found.by) == (pytest.approx(0.05), None, "")
    function = gain(SPACE, noisy, noisy[1], None)
    assert function is not None
    assert function.by == "errors"
