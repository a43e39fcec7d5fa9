"""benchmarks.real.answer_sweep: its trials fit the sweep, are paired by compute and seed, and have the best rates."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pandas as pd
import pytest

import sweeps
from benchmarks.real import answer_sweep
from benchmarks.real.answer_sweep import (
    DISTANCE,
    LAMBDA,
    RATE_1_9,
    RATE_2,
    RATES,
    SALIENCY,
    STEPS_1_9,
    STEPS_2,
    Lengths,
    Point,
    Rates,
    phases,
)

SMALL = ("model=tiny", "data=stdlib", "device=cpu")

SMALL_SWEEP = dataclasses.replace(answer_sweep.CPU, setting=SMALL)


def best(lengths: Lengths) -> Rates:
    """Return the best rates of these lengths: the longest have lower ones."""
    if lengths.stage1_9:
        return (1.6e-3, 3.2e-3) if lengths.stage1_9 < 400 else (1.6e-3, 4e-4)
    return (8e-4, 1e-4) if lengths.stage2 < 733 else (8e-4, 2e-4)


def lengths_of(point: Point) -> Lengths:
    return Lengths(point[STEPS_1_9], point[STEPS_2])


def loss(point: Point) -> float:
    """Return a loss that is lowest at the best rates, and at 200 steps of Stage 1.9."""
    first, second = best(lengths_of(point))
    return (
        abs(math.log2(point[RATE_1_9] / first))
        + abs(math.log2(point[RATE_2] / second))
        + abs(point[STEPS_1_9] - 200) / 1e6
    )


def rows(points: list[Point]) -> list[dict[str, object]]:
    """Return the table's rows of completed trials, with the losses of `loss`."""
    return [
        {f"param.{name}": value for name, value in point.items()}
        | {"status": "completed", "final_loss": loss(point)}
        for point in points
    ]


def train_phases(earlier: list[Point]) -> list[list[Point]]:
    """Return the trials of every phase that has any, when those of earlier sessions are known."""
    known = rows(earlier)
    found = []
    for points in phases(lambda: pd.DataFrame(known), answer_sweep.CPU):
        known.extend(rows(points))
        found.append(points)
    return [points for points in found if points]


FOUND = train_phases([])
SEEDS_OF_ALL = FOUND[-3]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [answer_sweep.CUDA, answer_sweep.CPU], ids=["cuda", "cpu"])
def test_trials_of_each_phase_fit_the_sweep(protocol: answer_sweep.Protocol, tmp_path: Path) -> None:
    assert set(protocol.first[True] + protocol.first[False]) <= set(RATES)
    for saliency in (False, True):
        sweep = sweeps.create(answer_sweep.space(SMALL, saliency=saliency), storage=str(tmp_path))
        points = [FOUND[0][0], SEEDS_OF_ALL[-1], *FOUND[-2][-2:]]  # each takes a quarter of a second
        sweep.extend(run_cap=len(points))
        for index, point in enumerate(points):
            assert sweep.enqueue({k: v for k, v in point.items() if k != SALIENCY}) == index


@pytest.mark.slow
@pytest.mark.parametrize(("saliency", "trunks"), [(False, {"stage1_9", "stage2"}), (True, {"stage2"})])
def test_runs_of_several_lengths_share_what_they_can(
    saliency: bool, trunks: set[str], tmp_path: Path
) -> None:
    setting = [*SMALL, "stage1_9.trunk_every=[35,70,140]", "stage2.trunk_every=[140,187]"]
    sweep = sweeps.create(answer_sweep.space(setting, saliency=saliency), storage=str(tmp_path))
    assert {stage.name for stage in sweep.experiment.space.stages if stage.trunk is not None} == trunks


def test_rates_are_tried_at_equal_compute_until_the_best_has_both_neighbours() -> None:
    for lengths in [(100, 200), (0, 333), (50, 200), (400, 200), (0, 200), (0, 733)]:
        each = Lengths(*lengths)
        tried = {(p[RATE_1_9], p[RATE_2]) for found in FOUND[:-3] for p in found if lengths_of(p) == each}
        first, second = best(each)
        assert {(first, second), (first, second * 2)} <= tried
        if each.stage1_9:
            assert {(first, second / 2), (first / 2, second), (first * 2, second)} <= tried
    both = {(p[RATE_1_9], p[RATE_2]) for p in FOUND[0] if p[STEPS_1_9]}
    assert both == {(8e-4, 4e-4), (8e-4, 2e-4), (8e-4, 8e-4), (4e-4, 4e-4), (1.6e-3, 4e-4)}


def test_the_middle_length_is_searched_first_and_others_from_its_best_rates() -> None:
    middle = {Lengths(100, 200), Lengths(0, 333)}
    of_middle = [points for points in FOUND[:-3] if {lengths_of(p) for p in points} & middle]
    assert all({lengths_of(p) for p in points} <= middle for points in of_middle)
    assert FOUND[: len(of_middle)] == of_middle
    others = FOUND[len(of_middle)]
    at_first = {(p[RATE_1_9], p[RATE_2]) for p in others if lengths_of(p) == Lengths(400, 200)}
    assert at_first == {(1.6e-3, r) for r in (1.6e-3, 3.2e-3, 6.4e-3)} | {(r, 3.2e-3) for r in (8e-4, 3.2e-3)}
    assert {p["seed"] for points in FOUND[:-3] for p in points} == {0}


def test_a_rate_at_the_end_of_the_list_has_one_neighbour() -> None:
    known = pd.DataFrame(rows([answer_sweep.point(Lengths(0, 333), (8e-4, each)) for each in RATES[:2]]))
    known["final_loss"] = known[f"param.{RATE_2}"]
    assert answer_sweep.rates_to_try(known, Lengths(0, 333), (8e-4, 4e-4)) == []


def test_each_length_has_all_seeds_at_its_own_best_rates() -> None:
    seeds = [(lengths_of(p), p["seed"]) for p in SEEDS_OF_ALL]  # those of seed 0 are known from the search
    every = [each for length in (50, 100, 200, 400) for each in answer_sweep.equal_flops(length)]
    assert sorted(seeds) == sorted((each, seed) for each in [*every, Lengths(0, 200)] for seed in (1, 2))
    assert all((p[RATE_1_9], p[RATE_2]) == best(lengths_of(p)) for p in SEEDS_OF_ALL)


def test_compute_of_both_ways_is_equal() -> None:
    """A step of Stage 1.9 is 4/3 of one of Stage 2."""
    for length in answer_sweep.LENGTHS:
        both, without = answer_sweep.equal_flops(length)
        assert both.stage1_9 * 4 / 3 + both.stage2 == pytest.approx(without.stage2, abs=0.5)


def test_last_phases_change_one_thing_each() -> None:
    assert {point[SALIENCY] for point in FOUND[-2]} == {False}
    assert {point[SALIENCY] for point in FOUND[-1]} == {True}
    changes = set()
    for found in (*FOUND[-2], *FOUND[-1]):
        middle_or_best = Lengths(200 if found[LAMBDA] != 0.75 else 100, 200)
        lengths = lengths_of(found) if found[SALIENCY] else middle_or_best
        base = answer_sweep.point(lengths, best(lengths), found["seed"])
        (changed,) = (name for name in base if found[name] != base[name])
        changes.add(changed)
    assert changes == set(answer_sweep.SETTINGS)
    assert [point["seed"] for point in FOUND[-2] if point[DISTANCE] == "cosine"] == [0, 1, 2]
    assert [point["seed"] for point in FOUND[-2] if point[DISTANCE] == "kl"] == [0]
    salient = [(lengths_of(point), point["seed"]) for point in FOUND[-1]]
    assert salient == [(Lengths(steps, 200), seed) for steps in answer_sweep.LENGTHS for seed in (0, 1, 2)]


def test_another_session_goes_on_where_the_records_end() -> None:
    everything = [point for points in FOUND for point in points]
    assert train_phases(everything) == []
    for count in range(1, len(FOUND)):
        known = [point for points in FOUND[:count] for point in points]
        assert train_phases(known) == FOUND[count:]
    half = SEEDS_OF_ALL[: len(SEEDS_OF_ALL) // 2]  # within a phase
    known = [point for points in FOUND[:-3] for point in points] + half
    assert train_phases(known) == [SEEDS_OF_ALL[len(half) :], *FOUND[-2:]]


@pytest.mark.slow
def test_a_new_machine_begins_with_the_first_trial_that_the_records_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "records.csv"
    known = [point for points in FOUND for point in points if points is not FOUND[-1]]
    pd.DataFrame(rows(known)).to_csv(records, index=False)
    monkeypatch.setattr(answer_sweep, "run_workers", lambda url, workers, ends: False)
    storage = str(tmp_path / "store")
    answer_sweep.train(storage, records, minutes=1.0, workers=1, protocol=SMALL_SWEEP)
    trials = sweeps.open(storage, name="answer-saliency").trials()
    assert len(trials) == len(FOUND[-1])
    assert set(trials[f"param.{STEPS_1_9}"]) == set(answer_sweep.LENGTHS)
    assert len(pd.read_csv(records)) == len(known)


@pytest.mark.slow
def test_workers_that_cannot_run_a_trial_are_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_sweep, "run_workers", lambda url, workers, ends: True)
    storage = str(tmp_path / "store")
    with pytest.raises(SystemExit, match="no trial has"):
        answer_sweep.train(storage, tmp_path / "r.csv", minutes=1.0, workers=1, protocol=SMALL_SWEEP)


def test_records_have_each_trial_once_when_it_ended() -> None:
    point = rows([answer_sweep.point(Lengths(0, 333), (8e-4, 4e-4))])[0]
    table = pd.DataFrame([point | {"trial": 0}, point | {"status": "running"}, point | {"trial": 7}])
    assert list(answer_sweep.ended_trials(table)["trial"]) == [0]


def test_records_without_a_later_setting_have_its_first_value() -> None:
    point = answer_sweep.point(Lengths(0, 333), (8e-4, 4e-4))
    earlier = pd.DataFrame(rows([point])).drop(columns=f"param.{DISTANCE}")
    assert answer_sweep.is_in(answer_sweep.ended_trials(earlier), point)
    both = pd.concat([earlier, pd.DataFrame(rows([point | {DISTANCE: "kl"}]))])
    assert list(answer_sweep.ended_trials(both)[f"param.{DISTANCE}"]) == ["mse_normalized", "kl"]


def test_without_a_completed_trial_no_rates_are_made_up() -> None:
    failed = pd.DataFrame(rows([answer_sweep.point(Lengths(0, 333), (8e-4, 4e-4))])).assign(status="failed")
    with pytest.raises(SystemExit, match="no trial of 0 and 333 steps"):
        answer_sweep.best_rates(failed, Lengths(0, 333))


def test_rates_within_a_tie_are_those_with_the_most_seeds() -> None:
    """A lower loss by less than `TIE`, with one seed, does not make two more seeds of another rate due."""
    lengths = Lengths(0, 467)
    points = [answer_sweep.point(lengths, (8e-4, 8e-4), seed) for seed in (0, 1, 2)]
    points += [answer_sweep.point(lengths, (8e-4, rate)) for rate in (2e-4, 4e-4, 1.6e-3)]
    tried = pd.DataFrame(rows(points)).assign(final_loss=[4.389, 4.477, 4.449, 4.6, 4.385, 4.7])
    assert answer_sweep.best_rates(tried, lengths) == (8e-4, 8e-4)
    assert answer_sweep.rates_to_try(tried, lengths, (8e-4, 4e-4)) == []
    assert answer_sweep.rate_trials(tried, lengths)["final_loss"].tolist() == [4.389, 4.385, 4.6, 4.7]
    lower = tried.replace({4.385: 4.389 - 1.01 * answer_sweep.TIE})
    assert answer_sweep.best_rates(lower, lengths) == (8e-4, 4e-4)
