"""Chances and intervals of a trade-off."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.statistics.efficiency import efficiency_sem
from analysis.statistics.hypervolume import hypervolume
from analysis.summaries.summary import pareto
from analysis.summaries.uncertainty import Uncertainty, estimate_uncertainty
from analysis.table import TrialsTable, from_document, read


def of_lengths(frame: pd.DataFrame, **options: Any) -> Any:
    table = TrialsTable.from_frame(frame)
    return estimate_uncertainty(table, pareto(table, x="effective_steps", y="final_loss", **options))


def test_the_length_sweep_has_no_errors_and_so_no_chances(length_sweep_file: Path) -> None:
    found = of_lengths(read(length_sweep_file), baseline=7.83)
    assert found.draws == 0
    assert [round(c.efficiency, 2) for c in found.trials.values()] == [0.10, 0.23, 0.24, 0.20, 0.14]
    assert {(c.front, c.knee, c.most_efficient, c.efficiency_range) for c in found.trials.values()} == {
        (None, None, None, None)
    }
    assert found.unit == "100 effective steps"
    assert found.reference == pytest.approx((2200 + 190, 7.52 + 0.268))
    points = [[300, 7.52], [400, 6.92], [600, 6.39], [1200, 5.39], [2200, 4.84]]
    assert found.hypervolume == pytest.approx(
        hypervolume(points, ["minimize", "minimize"], found.reference or ())
    )


def test_with_errors_every_word_has_a_chance(sweep: dict[str, Any]) -> None:
    found = of_lengths(from_document(sweep))
    assert found.draws == 1000
    assert found.exact == 0
    assert found.trials[0].front == 1  # who costs least is on the front, whatever it scored
    assert found.trials[2].front == 0  # beaten by 0.3 at errors of 0.012
    assert found.trials[1].most_efficient == 1
    assert found.trials[4].knee > 0.9
    assert 0.5 < found.trials[5].front <= 1


def test_efficiency_interval_of_loss_and_baseline(sweep: dict[str, Any]) -> None:
    worse = copy.deepcopy(sweep["trials"][0]) | {"trial": 9}  # without Stage 1.9 too: not the baseline
    worse["parameters"]["stage2.max_steps"] *= 2
    worse["metrics"] |= {"final_loss": 5.0, "final_loss_sem": 0.7, "effective_steps": 120}
    sweep["trials"].append(worse)
    found = of_lengths(from_document(sweep))
    # Trial 1: 0.4 better in 110 steps; errors 0.012 and the baseline's 0.02.
    assert found.trials[1].efficiency == pytest.approx(0.4 / 1.1)
    assert found.trials[1].efficiency_range == pytest.approx(
        1.959964 * (0.012**2 + 0.02**2) ** 0.5 / 1.1, rel=1e-6
    )
    assert found.trials[0].efficiency == 0
    assert found.trials[0].efficiency_range is None  # the baseline against itself


def test_a_given_baseline_has_no_error(sweep: dict[str, Any]) -> None:
    found = of_lengths(from_document(sweep), baseline=4.5)
    assert found.trials[1].efficiency_range == pytest.approx(1.959964 * 0.012 / 1.1, rel=1e-6)
    assert found.trials[0].efficiency_range is not None


def test_missing_and_unusable_errors(sweep: dict[str, Any]) -> None:
    del sweep["trials"][1]["metrics"]["final_loss_sem"]
    found = of_lengths(from_document(sweep))
    assert found.exact == 1
    for wrong in ("wide", 0.0, -1.0, None):
        table = from_document(sweep).assign(final_loss_sem=wrong)
        assert of_lengths(table).draws == 0


def test_errors_of_efficiency_elementwise() -> None:
    found = efficiency_sem([0.3, 0.3, None, -1.0], [100, 0, 100, 100], 0.4)
    assert found[0] == pytest.approx(0.5)
    assert pd.isna(found[1:]).all()


def test_nothing_to_be_sure_of() -> None:
    table = TrialsTable.from_frame(pd.DataFrame({"x": [], "y": []}))
    found = estimate_uncertainty(table, pareto(table, x="x", y="y", baseline=1.0))
    assert (found.trials, found.hypervolume, found.reference) == ({}, None, None)


@pytest.mark.slow
def test_ten_thousand_trials_take_seconds() -> None:
    import time

    random = np.random.default_rng(0)
    frame = pd.DataFrame({"steps": random.integers(50, 2000, 10_000), "loss": random.normal(3, 0.2, 10_000)})
    table = TrialsTable.from_frame(frame.assign(loss_sem=0.02))
    start = time.process_time()
    estimate_uncertainty(table, pareto(table, x="steps", y="loss", baseline=3.5))
    assert time.process_time() - start < 5


def with_sequences(sweep: dict[str, Any], sequences: int = 60) -> dict[str, Any]:
    """The sweep with losses of each sequence; its errors are those of the differences to the teacher."""
    random = np.random.default_rng(0)
    teacher = 3.0 + random.normal(0, 0.4, sequences)
    held_out = {}
    for trial in sweep["trials"]:
        if trial["status"] == "completed":
            noise = random.normal(0, 0.1, sequences)
            ours = teacher + noise - noise.mean() + trial["metrics"]["final_loss"] - teacher.mean()
            sem = (ours - teacher).std(ddof=1) / sequences**0.5
            trial["metrics"]["final_loss_sem"] = sem
            held_out[str(trial["trial"])] = {"final": ours.tolist(), "teacher": teacher.tolist()}
    return sweep | {"held_out": held_out}


def of_document(document: dict[str, Any]) -> Uncertainty:
    table = TrialsTable.from_document(document)
    return estimate_uncertainty(table, pareto(table, x="effective_steps", y="final_loss"))


def test_paired_losses_give_the_error_to_the_baseline(sweep: dict[str, Any]) -> None:
    document = with_sequences(sweep)
    found = of_document(document)
    assert (found.paired, found.spread) == (5, None)
    ours, base = (np.array(document["held_out"][trial]["final"]) for trial in "10")
    sem = (ours - base).std(ddof=1) / len(ours) ** 0.5
    assert found.trials[1].efficiency_range == pytest.approx(1.959964 * sem / 1.1, rel=1e-6)


def test_common_difficulty_of_the_text_cancels(sweep: dict[str, Any]) -> None:
    """Trial 5 is 0.01 better than 4 and the same on each sequence but for that: surely on the front."""
    document = with_sequences(sweep)
    losses = document["held_out"]["4"]["final"]
    document["held_out"]["5"]["final"] = [loss - 0.01 for loss in losses]
    document["trials"][5]["metrics"]["final_loss"] = 3.39
    document["trials"][5]["metrics"]["final_loss_sem"] = document["trials"][4]["metrics"]["final_loss_sem"]
    assert of_document(document).trials[5].front == 1
    del document["held_out"]["4"]
    found = of_document(document)
    assert found.paired == 4
    assert 0.6 < found.trials[5].front < 0.9


def test_fresh_seeds_widen_the_errors(
    confirmed: dict[str, Any],
) -> None:
    found = of_document(confirmed)
    assert found.spread is not None
    assert found.spread.sd == pytest.approx(0.0002**0.5)
    base = 0.02**2 + 0.0002
    expected = [1.959964 * (base + 0.012**2 + 0.0002 / runs) ** 0.5 for runs in (1, 2)]
    ranges = [found.trials[1].efficiency_range or 0.0, found.trials[4].efficiency_range or 0.0]
    assert [1.1 * ranges[0], 2.6 * ranges[1]] == pytest.approx(expected, rel=1e-6)
    assert (found.trials[5].front or 0.0) < 0.2  # beaten by 0.03, at an error of 0.022


def test_without_reported_errors_the_seeds_alone_make_chances(confirmed: dict[str, Any]) -> None:
    for trial in confirmed["trials"]:
        trial["metrics"].pop("final_loss_sem", None)
    found = of_document(confirmed)
    assert (found.draws, found.exact) == (1000, 0)
