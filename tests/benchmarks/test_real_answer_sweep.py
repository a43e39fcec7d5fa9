"""benchmarks.real.answer_sweep: its trials are valid, paired by compute and seed, and begin with the best rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import sweeps
from benchmarks.real import answer_sweep
from benchmarks.real.answer_sweep import LAMBDA, RATE_1_9, RATE_2, SALIENCY, STEPS_1_9, STEPS_2, Point

SMALL = ("model=tiny", "data=stdlib", "device=cpu")

BEST = {True: (1e-3, 4e-3), False: (2e-3, 8e-3)}


def loss(point: Point) -> float:
    """Return a loss that is lowest at `BEST`, and at 200 steps of Stage 1.9."""
    first, second = BEST[point[STEPS_1_9] > 0]
    return abs(point[RATE_1_9] - first) + abs(point[RATE_2] - second) + abs(point[STEPS_1_9] - 200) / 1e6


@pytest.fixture
def phases() -> list[list[Point]]:
    """Return the trials of the three phases, with the losses of `loss`."""
    rows: list[dict[str, object]] = []

    def found() -> Iterator[list[Point]]:
        for points in answer_sweep.phases(lambda: pd.DataFrame(rows)):
            for point in points:
                row = {f"param.{name}": value for name, value in point.items()}
                rows.append(row | {"status": "completed", "final_loss": loss(point)})
            yield points

    return list(found())


@pytest.mark.slow
def test_trials_of_each_phase_fit_the_sweep(phases: list[list[Point]], tmp_path: Path) -> None:
    sweep = sweeps.create(answer_sweep.space(SMALL), storage=str(tmp_path))
    points = [phases[0][0], phases[1][-1], *phases[2][-2:]]  # each takes a quarter of a second
    sweep.extend(run_cap=len(points))
    assert [sweep.enqueue(point) for point in points] == list(range(len(points)))


def test_rates_are_tried_at_equal_compute_with_stage_1_9_and_without(phases: list[list[Point]]) -> None:
    assert {(point[STEPS_1_9], point[STEPS_2]) for point in phases[0]} == {(0, 333), (100, 200)}
    for steps in (0, 100):
        assert {p[RATE_2] for p in phases[0] if p[STEPS_1_9] == steps} == set(answer_sweep.RATES)


def test_lengths_are_trained_with_the_best_rates_of_each_way_for_all_seeds(phases: list[list[Point]]) -> None:
    assert {(p[STEPS_1_9] > 0, p[RATE_1_9], p[RATE_2]) for p in phases[1]} == {
        (after, *rates) for after, rates in BEST.items()
    }
    lengths = Counter((p[STEPS_1_9], p[STEPS_2]) for p in phases[1])
    assert set(lengths.values()) == {3}
    assert lengths.keys() >= {(0, 200), (0, 267), (0, 733), (50, 200), (400, 200)}
    assert [p["seed"] for p in phases[1]] == sorted(p["seed"] for p in phases[1])


def test_last_phase_changes_one_thing_at_the_best_length(phases: list[list[Point]]) -> None:
    base = answer_sweep.point(200, 200, BEST)
    for point in phases[2]:
        changed = {name for name in base if point[name] != base[name]} - {"seed"}
        assert changed in ({LAMBDA}, {SALIENCY})


def test_without_a_completed_trial_no_rates_are_made_up() -> None:
    failed = pd.DataFrame([{f"param.{STEPS_1_9}": 0, "status": "failed", "final_loss": float("nan")}])
    with pytest.raises(SystemExit, match="no trial without Stage"):
        answer_sweep.best_rates(failed, after_stage1_9=False)
