"""Simulated workers on surrogates with searched lengths, as `benchmarks.trunks` measures them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.pipelines import FIRST, LENGTHS, NUMBERS, STRUCTURES, LengthPipeline, Pipeline, compute
from benchmarks.trunks import FULL, REFERENCE, Job, Sweep, arrival, hypervolume, ratio, table
from sweeps.search.optimizer import Candidate
from sweeps.space.definition import Value
from sweeps.space.scale import from_unit
from sweeps.trials.record import Trial

JOB = Job(structure="interaction", search="trunk", seed=0, workers=1, noise=0.0, limit=10)
PIPELINE = LengthPipeline("interaction", 0)


def best(one: int = 400, two: int = 800) -> dict[str, Value]:
    units = dict(zip(NUMBERS, PIPELINE.best, strict=True))
    lengths: dict[str, Value] = {LENGTHS[0].name: one, LENGTHS[1].name: two}
    return {p.name: from_unit(p, u) for p, u in units.items()} | {FIRST[2].name: "logits"} | lengths


def point(pipeline: Pipeline, *, off: float = 0.0, match: Value) -> dict[str, Value]:
    units = dict(zip(NUMBERS, pipeline.best, strict=True))
    return {p.name: from_unit(p, u + off) for p, u in units.items()} | {FIRST[2].name: match}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_optimum_is_0_and_no_point_is_far_above_1(name: str):
    pipeline = Pipeline(name, 3)
    losses = [pipeline.loss(point(pipeline, match=match)) for match in FIRST[2].values]
    assert min(losses) == pytest.approx(0.0, abs=1e-12)
    away = [pipeline.loss(point(pipeline, off=0.1, match=match)) for match in FIRST[2].values]
    assert all(0 < loss < 1 for loss in away)


def test_a_first_stage_that_matters_little_moves_the_loss_little():
    def spread(name: str) -> float:
        pipeline = Pipeline(name, 0)
        losses = [pipeline.loss(point(pipeline, match=match)) for match in FIRST[2].values]
        return max(losses) - min(losses)

    assert spread("little") < 0.2 * spread("first-dear")


def test_the_loss_falls_with_each_length_and_the_cost_rises():
    losses = [PIPELINE.loss(best(one, 100)) for one in (20, 50, 200, 400)]
    assert losses == sorted(losses, reverse=True)
    losses = [PIPELINE.loss(best(100, two)) for two in (40, 50, 200, 800)]
    assert losses == sorted(losses, reverse=True)
    assert compute(best(20, 40)) == 80.0
    assert PIPELINE.loss(best(20, 40)) - PIPELINE.loss(best()) == pytest.approx(0.9)


class Scripted:
    """Optimizer that asks for these lengths in turn, and then for ever shorter ones of the second stage."""

    def __init__(self, *lengths: tuple[int, int]) -> None:
        self.left = [*lengths, *((400, steps) for steps in range(700, 40, -1))]
        self.records: list[Trial] = []

    def observe(self, records: list[Trial]) -> None:
        self.records = list(records)

    def generate(self) -> list[Candidate]:
        return [Candidate(parameters=best(*self.left.pop(0)), generator="sobol")]


def simulated(search: str, *lengths: tuple[int, int]) -> tuple[Sweep, Scripted]:
    optimizer = Scripted(*lengths)
    space = PIPELINE.lengths_space(reuse=search in ("reuse", "trunk"), trunks=search == "trunk")
    sweep = Sweep(PIPELINE, space, optimizer, replace(JOB, search=search))
    sweep.run(math.inf)
    return sweep, optimizer


def test_a_trunk_is_paid_once_and_a_branch_from_the_nearest_point_on():
    sweep, optimizer = simulated("trunk", (400, 800), (400, 400), (200, 100))
    starts = [(ask["at"], ask["from"]) for ask in sweep.asks[:4]]
    assert starts[:2] == [(0.0, None), (1600.0, [1, 340])]  # 0.85 * 400; points are 85 apart
    assert starts[2] == (1600.0 + 400 - 340, [0, 129])  # of 170 steps until the decay; points are 43 apart
    assert starts[3][0] == starts[2][0] + 2 * (200 - 129) + 100
    steps = [run.step for run in optimizer.records[0].points if run.name == "stage1_9"]
    assert steps == [43, 86, 129, 172, 215, 258, 301, 340]


def test_ends_alone_are_reused_without_trunks_and_nothing_by_plain_search():
    reuse, _ = simulated("reuse", (400, 800), (400, 400), (200, 100))
    assert [ask["at"] for ask in reuse.asks[:4]] == [0.0, 1600.0, 2000.0, 2500.0]
    plain, _ = simulated("plain", (400, 800), (400, 400), (200, 100))
    assert [ask["at"] for ask in plain.asks] == [0.0, 1600.0, 2800.0, 3300.0]
    assert plain.volumes[-1][0] <= JOB.limit * FULL


@given(st.lists(st.tuples(st.floats(0, 1.5), st.floats(0, 2000)), max_size=6))
@example([(0.0, 1.3868461962153062e-26), (1e-05, 0.0)])  # strips whose sum rounds past 1
def test_the_hypervolume_is_the_share_of_the_rectangle_that_is_dominated(points: list[tuple[float, float]]):
    volume = hypervolume(points)
    assert 0.0 <= volume <= 1.0
    assert volume == pytest.approx(hypervolume(points[::-1]))
    assert hypervolume([*points, (0.5, 500.0)]) >= volume
    assert hypervolume([*points, *points]) == pytest.approx(volume)


def test_two_points_of_a_front_dominate_their_union():
    assert hypervolume([(0.5, 400.0)]) == pytest.approx(0.5 * 0.75)
    assert hypervolume([(0.5, 400.0), (0.25, 800.0)]) == pytest.approx(0.5 * 0.75 + 0.25 * 0.5)
    assert hypervolume([REFERENCE]) == 0.0


def test_the_table_has_when_each_search_had_the_volume_of_plain():
    jobs = [replace(JOB, search=search, seed=seed) for search in ("plain", "trunk") for seed in range(3)]

    def result(job: Job) -> dict[str, Any]:
        late = math.inf if job.search == "trunk" and job.seed == 2 else 1.0
        volumes = [[100.0, 0.1], [1000.0 if job.search == "plain" else 400.0, 0.5 if late == 1.0 else 0.4]]
        return {"volumes": volumes, "best": volumes[-1][1]}

    results: Mapping[tuple[Any, ...], dict[str, Any]] = {job.key(): result(job) for job in jobs}
    rows = table(results, jobs).splitlines()[2:]
    assert rows[0] == "| interaction | 1 | 0 | plain | 1000 |  | 0 | 3 |"
    assert rows[1] == "| interaction | 1 | 0 | trunk | 400 | 0.40 (0.40 to 4.00) | 1 | 3 |"
    assert arrival(results[jobs[0].key()], 0.05) == 100.0


def test_a_ratio_to_searches_that_never_arrived_is_a_bound():
    found, base = [(1500.0, 3000.0)] * 3, [(1500.0, 3000.0), (None, 3000.0), (None, 3000.0)]
    assert ratio(found, base) == "< 0.50 (0.50 to 1.00)"
    assert ratio(base, base) == "-"
