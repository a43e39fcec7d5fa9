"""Charts of the dashboard: what is joined, and what stands beside the axes."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace

import pytest
from memory_store import MemoryStore
from served_dashboard import make_sweep, record

from sweeps.dashboard import points, sharing
from sweeps.dashboard.charts import Line, chart, scale_of, scatter
from sweeps.dashboard.curves import CurveCache, Curves
from sweeps.dashboard.reader import SweepReader
from sweeps.dashboard.run_files import RunFiles
from sweeps.space.definition import Choice, Fidelity
from sweeps.trials.record import Attempt, Trial

POINTS = [(step, 1.0 if step <= 20 else 4.0) for step in range(1, 41)]
MOST = sys.float_info.max
STAGES = [("stage1_9", 0.0), ("stage2", 20.0)]


def test_a_curve_is_broken_where_a_stage_begins() -> None:
    broken = chart([Line(name="loss", points=POINTS, breaks=[20.0])], title="t", x="steps", y="loss")
    joined = chart([Line(name="loss", points=POINTS)], title="t", x="steps", y="loss")
    pieces = [
        len(re.search(r'class="line c0" d="([^"]*)"', svg)[1].split("M")) - 1 for svg in (broken, joined)
    ]
    assert pieces == [2, 1]


def test_stages_are_named_if_there_are_several() -> None:
    lines = [Line(name="loss", points=POINTS)]
    several = chart(lines, title="t", x="steps", y="loss", stages=STAGES)
    assert re.findall(r">(stage\w*)<", several) == ["stage1_9", "stage2"]
    assert several.count('class="stage"') == 1
    alone = chart(lines, title="t", x="steps", y="loss", stages=STAGES[:1])
    assert "stage1_9" not in alone
    assert 'class="stage"' not in alone


def test_each_axis_has_its_title() -> None:
    svg = chart([Line(name="loss", points=POINTS)], title="t", x="training seconds", y="nats per token")
    assert re.findall(r'class="axis"[^>]*>([^<]*)<', svg) == ["nats per token", "training seconds"]
    long = chart([Line(name="loss", points=POINTS)], title="t", x="steps", y="n" * 200)
    assert f">{'n' * 48}…<" in long


def test_a_log_axis_is_chosen_by_its_values_or_asked_for() -> None:
    narrow = [0.002, 0.004, 0.008]
    assert not scale_of(narrow, 0, 100).log
    scale = scale_of(narrow, 0, 100, log=True)
    assert scale.at(0.004) == pytest.approx(50)
    assert scale.ticks() == [0.002, 0.003, 0.004, 0.006, 0.008]
    assert not scale_of([0.0, 1.0], 0, 100, log=True).log


@pytest.mark.parametrize(
    ("low", "high"),
    [(2.0, MOST), (0.0, MOST), (-5.0, MOST), (-MOST, MOST), (-0.99 * MOST / 2, 0.99 * MOST / 2)],
)
def test_the_largest_numbers_can_be_drawn(low: float, high: float) -> None:
    for scale in (scale_of([low, high], 0, 100, log=log) for log in (None, False)):
        assert all(map(math.isfinite, scale.ticks()))
        assert len(scale.ticks()) < 20
    points = [(low, high), (high, low)]
    assert "<svg" in chart([Line(name="loss", points=points)], title="t", x="steps", y="loss")
    assert "<svg" in scatter(points, points[:1], title="t", x="a", y="b")


def test_ticks_of_the_largest_numbers_are_powers_of_ten() -> None:
    assert scale_of([2.0, MOST], 0, 100).ticks(3) == [1e1, 1e78, 1e155, 1e232]


@pytest.mark.parametrize("near", [0.29111, 3.21e-5, 123_456.0])
def test_ticks_of_nearly_equal_values_are_told_apart(near: float) -> None:
    svg = chart([Line(name="loss", points=[(1, near), (2, near * 1.0004)])], title="t", x="steps", y="loss")
    labels = re.findall(r'text-anchor="end">([^<]*)<', svg)[:-1]  # without the title of the axis across
    assert len(labels) >= 2
    assert len(set(labels)) == len(labels)


def test_a_curve_is_read_anew_where_its_file_was_replaced_by_a_longer_one() -> None:
    """A resumed run of the trainer writes its checkpoint's lines, then a trunk's. A bucket tells nothing of it."""
    store, trial, key = MemoryStore(), record(0), "runs/000000/attempt-1/metrics.jsonl"
    cache = CurveCache(RunFiles(store))

    def steps(written: list[dict]) -> list[float]:
        data = "".join(json.dumps(line) + "\n" for line in written).encode()
        if store.list(key):
            store.replace(key, data, store.read(key)[1])
        else:
            store.create(key, data)
        return list(cache.curves(trial).steps)

    before = [{"step": step, "loss": 5.0 - step / 100} for step in range(1, 31)]
    assert steps(before[:20]) == list(range(1, 21))
    assert steps(before) == list(range(1, 31))
    assert steps(before) == list(range(1, 31))
    after = [line | {"lr": 0.1} for line in before] + [{"step": 31, "loss": 4.0, "lr": 0.1}]
    assert steps(after) == list(range(1, 32))
    assert len(cache.curves(trial).series["lr"].values) == 31


def test_a_stage_begins_where_the_one_before_has_ended() -> None:
    curves = Curves()
    for stage, first in (("stage1_9", 3.0), ("stage2", 5.0)):
        for step in (1, 2):
            line = {
                "stage": stage,
                "step": step,
                "loss": first,
                "seconds": first + step,
                "tokens": 10 * first - 20 + 5 * step,
            }
            curves.add(f"{json.dumps(line)}\n".encode())
    assert curves.starts("steps") == [("stage1_9", 0.0), ("stage2", 2.0)]
    assert curves.starts("seconds") == [("stage1_9", 0.0), ("stage2", 5.0)]
    assert curves.starts("tokens") == [("stage1_9", 0.0), ("stage2", 20.0)]
    assert curves.starts("dollars") == []
    assert curves.starts("dollars", 2.0)[1] == ("stage2", 10.0)


def test_held_out_losses_between_logged_steps_lose_no_tokens() -> None:
    """Steps of half a second and 1,000 tokens, logged every 10; held-out losses after 13 and 25 took 60 s each."""
    curves, now = Curves(), 1000.0
    for step in (10, 13, 20, 25, 30):
        now += 100.0
        held_out = {"held_out_loss": 3.0, "held_out_seconds": 60.0}
        means = {"loss": 3.0, "data_seconds": 0.1, "compute_seconds": 0.4, "tokens_per_second": 2000.0}
        line = {"stage": "a", "step": step, "unix_seconds": now} | (means if step % 10 == 0 else held_out)
        curves.add(f"{json.dumps(line)}\n".encode())
    assert [x for x, _ in curves.points("loss", "tokens")] == pytest.approx([10_000, 20_000, 30_000])
    assert [x for x, _ in curves.points("loss", "seconds")] == pytest.approx([5.0, 10.0, 15.0])
    assert [x for x, _ in curves.points("held_out_loss", "tokens")] == pytest.approx([13_000, 25_000])
    assert [x for x, _ in curves.points("held_out_loss", "seconds")] == pytest.approx([6.5, 12.5])


def test_stage_starts_at_its_first_step_in_a_thinned_curve() -> None:
    curves = Curves()
    for step in range(1, 9000):  # beyond what is kept
        stage = "b" if step > 8001 else "a"
        line = {"stage": stage, "step": step - 8001 * (stage == "b"), "loss": 1.0, "seconds": 2.0 * step}
        curves.add(f"{json.dumps(line)}\n".encode())
    assert curves.starts("seconds") == [("a", 0.0), ("b", 16002.0)]


def test_best_over_compute_is_of_trials_at_the_target(tmp_path, space) -> None:
    """A cheaper trial may have a lower loss, as on shorter text, and is no result; its price was paid."""
    width = Choice(name="width", values=(1, 2), ordered=True)
    fidelity = (Fidelity(parameter="width", cost=(0.2, 1.0)),)
    cheap = record(0, loss=0.1, generator="fidelity", parameters={"x": 0.1, "n": 1, "width": 1})
    dear = record(1, loss=0.5, parameters={"x": 0.2, "n": 2, "width": 2})
    laddered = replace(space, parameters=(*space.parameters, width), fidelity=fidelity)
    found = sharing.search(SweepReader(make_sweep(tmp_path, laddered, cheap, dear)).refresh(listing=True))
    assert [value for _, value in found.best] == [0.5, 0.5]
    assert found.best[0][0] == pytest.approx(20 / 3600)


@pytest.fixture
def preempted() -> Trial:
    """An attempt of 50 s was preempted, the one that completed took 10."""
    ended = [(0.0, 50.0, "released"), (60.0, 70.0, "completed")]
    attempts = tuple(
        Attempt(attempt=at, worker="w", start=start, end=end, reason=reason)
        for at, (start, end, reason) in enumerate(ended, start=1)
    )
    return replace(record(0, metrics={"loss": 0.5}), history=attempts, started=60.0, ended=70.0)


def test_best_over_time_counts_all_attempts(tmp_path, space, preempted) -> None:
    found = sharing.search(SweepReader(make_sweep(tmp_path, space, preempted)).refresh(listing=True))
    assert (found.unit, found.best[0][0]) == ("hours of trials", pytest.approx(60 / 3600))


def test_front_over_time_counts_all_attempts(tmp_path, space, preempted) -> None:
    view = SweepReader(make_sweep(tmp_path / "a", space, preempted, record(1))).refresh(listing=True)
    assert "machine_seconds" in points.columns(view)
    assert points.default_axes(view) == ("machine_seconds", "loss")
    assert points.points(view, "machine_seconds", "loss").xs == pytest.approx([60, 10])
    view = SweepReader(make_sweep(tmp_path / "b", space, record(1))).refresh(listing=True)
    assert "machine_seconds" not in points.columns(view)
    assert points.default_axes(view) == ("seconds", "loss")


def test_best_over_compute_is_within_the_constraints(tmp_path, space) -> None:
    bounded = replace(space, outcome_constraints=("steps <= 10",))
    metrics = [{"loss": 0.5, "steps": 9.0}, {"loss": 0.1, "steps": 11.0}]
    folder = make_sweep(tmp_path, bounded, *(record(i, metrics=found) for i, found in enumerate(metrics)))
    found = sharing.search(SweepReader(folder).refresh(listing=True))
    assert [value for _, value in found.best] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("goal", "front"),
    [("minimize", [(1.0, 30.0), (2.0, 10.0)]), ("maximize", [(1.0, 10.0), (2.0, 30.0)])],
)
def test_between_two_points_of_a_front_its_line_has_the_worse_y(goal, front) -> None:
    """No trial that is as good in x has a better one."""
    drawn = str(scatter([], front, title="t", x="x", y="y", goal=goal))
    marks = re.findall(r'class="front" cx="([^"]+)" cy="([^"]+)"', drawn)
    better, worse = sorted(marks, key=lambda mark: -float(mark[1]))  # pixels go down
    assert f'class="front-line" d="M{worse[0]} {worse[1]}H{better[0]}V{better[1]}"' in drawn
