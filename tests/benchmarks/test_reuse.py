"""Simulated workers on surrogates of two-stage pipelines, as `benchmarks.reuse` measures them."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import reuse
from benchmarks.pipelines import FIRST, NUMBERS, STRUCTURES, Pipeline
from benchmarks.reuse import Job, Sweep, draw, end_last_line, finished, run_all, search_name, table
from sweeps.search.optimizer import Candidate
from sweeps.space.definition import Value
from sweeps.space.scale import from_unit
from sweeps.trials.record import Trial

JOB = Job(structure="first-dear", search="reuse", seed=0, workers=2, noise=0.0, limit=3)


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


class Scripted:
    """Optimizer that asks for one first stage always, and keeps the records it was given."""

    def __init__(self) -> None:
        self.records: list[Trial] = []

    def observe(self, records: list[Trial]) -> None:
        self.records = list(records)

    def generate(self) -> list[Candidate]:
        values: dict[str, Value] = {p.name: p.min for p in NUMBERS}
        parameters: Mapping[str, Value] = values | {FIRST[2].name: "logits"}
        return [Candidate(parameters=parameters, generator="sobol")]


def test_workers_pay_a_first_stage_until_it_is_published_and_not_again():
    optimizer = Scripted()
    sweep = Sweep(Pipeline("first-dear", 0), optimizer, JOB)
    sweep.run()
    starts = [(ask["at"] / JOB.workers, ask["from"]) for ask in sweep.asks]
    assert starts[:4] == [(0.0, None), (0.0, None), (1000.0, 0), (1000.0, 0)]
    assert starts[4:6] == [(1200.0, 0), (1200.0, 0)]
    assert max(at for at, _ in starts) * JOB.workers <= JOB.limit * 1000
    assert optimizer.records[0].stages[0].snapshot
    assert optimizer.records[2].stages == ()


def test_plain_workers_always_pay_both_stages():
    sweep = Sweep(Pipeline("first-dear", 0), Scripted(), replace(JOB, search="plain", workers=1))
    sweep.run()
    assert [ask["at"] for ask in sweep.asks] == [0.0, 1000.0, 2000.0, 3000.0]


def test_a_half_line_of_a_killed_run_is_run_again(tmp_path: Path):
    line = json.dumps({"job": JOB.__dict__, "arrived": {}})
    (tmp_path / "runs.jsonl").write_text(f"{line}\n{line[:20]}")
    assert list(finished(tmp_path / "runs.jsonl")) == [JOB.key()]
    assert finished(tmp_path / "none.jsonl") == {}
    end_last_line(tmp_path / "runs.jsonl")
    end_last_line(tmp_path / "runs.jsonl")
    assert (tmp_path / "runs.jsonl").read_text() == f"{line}\n{line[:20]}\n"


def test_the_figures_of_the_repository_are_tabled_without_running_anything():
    file = Path(reuse.__file__).with_name("reuse.jsonl")
    before = file.read_bytes()
    jobs = [Job(**json.loads(line)["job"]) for line in before.decode().splitlines()]
    results = run_all(jobs, file, 1)
    assert len(results) == len(jobs) == len({job.key() for job in jobs})
    assert file.read_bytes() == before


def test_the_table_gives_medians_ratios_and_who_never_arrived():
    jobs = [replace(JOB, search=search, seed=seed) for seed in range(3) for search in ("plain", "reuse")]

    def result(job: Job) -> dict[str, Any]:
        compute = 1000.0 * (job.seed + 1) / (1 if job.search == "plain" else 2)
        return {"arrived": {"0.02": compute, "0.01": compute, "0.005": None if job.seed else compute}}

    rows = table({job.key(): result(job) for job in jobs}, jobs).splitlines()[2:]
    assert rows[0] == "| first-dear | 2 | 0 | 0.02 | plain | 2000 |  | 0 | 3 |"
    assert rows[1] == "| first-dear | 2 | 0 | 0.02 | reuse | 1000 | 0.50 (0.50 to 0.50) | 0 | 3 |"
    assert rows[5] == "| first-dear | 2 | 0 | 0.005 | reuse | never | - | 2 | 3 |"
    assert math.prod(len(row.split("|")) == 11 for row in rows)


def test_a_ratio_to_searches_that_never_arrived_is_a_bound():
    jobs = [replace(JOB, search=search, seed=seed) for seed in range(3) for search in ("plain", "reuse")]

    def result(job: Job) -> dict[str, Any]:
        at = None if job.search == "plain" and job.seed else 1500.0
        return {"arrived": {"0.02": at, "0.01": at, "0.005": at}}

    rows = table({job.key(): result(job) for job in jobs}, jobs).splitlines()[2:]
    assert rows[1] == "| first-dear | 2 | 0 | 0.02 | reuse | 1500 | < 0.50 (0.50 to 1.00) | 0 | 3 |"


def test_a_plain_search_runs_once_for_structures_that_it_cannot_tell_apart():
    plain = replace(JOB, structure="second-dear", search="plain12")
    assert plain.work() == replace(plain, structure="first-dear")
    assert (plain.kind, plain.sobol) == ("plain", 12)
    assert replace(plain, structure="little").work().structure == "little"
    shared = replace(JOB, structure="second-dear")
    assert shared.work() == shared
    assert (shared.kind, shared.sobol) == ("reuse", None)


def test_an_unknown_search_is_refused():
    assert search_name("capped8") == "capped8"
    with pytest.raises(argparse.ArgumentTypeError, match="'fast' is no search; write one of plain, reuse"):
        search_name("fast")


def test_the_picture_of_candidates_has_a_panel_for_each_parameter_choices_included(tmp_path: Path):
    sweep = Sweep(Pipeline("first-dear", 0), Scripted(), replace(JOB, workers=1))
    sweep.run()
    draw(sweep.asks, tmp_path / "asks.png")
    assert (tmp_path / "asks.png").read_bytes().startswith(b"\x89PNG")
