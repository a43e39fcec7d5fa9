"""What fresh runs say of a configuration, as the report, the fronts and the commands show it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner
from published import put

import sweeps
from analysis.report.contents import Contents, contents
from analysis.report.report import render
from analysis.summaries.summary import pareto
from analysis.table import TrialsTable
from sweeps.cli.best import best as best_command
from sweeps.cli.pareto import pareto as pareto_command
from sweeps.cli.show import status_lines
from sweeps.dashboard.points import points
from sweeps.dashboard.reader import SweepReader
from sweeps.dashboard.summary import summary
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.operations import confirmation
from sweeps.operations.creation import create_sweep
from sweeps.operations.report import report_document
from sweeps.search.confirm import rounds
from sweeps.search.confirm.plan import Finalist, Plan, store_plan
from sweeps.space.space_file import loads
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

SPACE = """\
name: toy
objectives: [{metric: loss}, {metric: ms}]
program: {function: "objectives_for_tests:paraboloid"}
parameters: {x: {min: 0.0, max: 1.0}, n: {value: 1}}
search: {method: random}
run_cap: 3
"""
BOUNDED = SPACE + 'outcome_constraints: ["ms <= 10"]\n'


def made(tmp_path: Path, text: str) -> Experiment:
    return create_sweep(
        loads(text, "space.yaml"), str(tmp_path), skip_if_exists=False, on_notice=lambda line: None
    )


def sweep_of(searched: list[tuple[float, float]], fresh: dict[int, list[tuple[float, float]]]) -> list[Trial]:
    """Return trials with these losses and milliseconds, then the fresh runs of some, with seeds from 1."""
    runs = [("sobol", at, {}, result) for at, result in enumerate(searched)]
    runs += [
        ("confirm", at, {"seed": seed}, result)
        for at, results in fresh.items()
        for seed, result in enumerate(results, 1)
    ]
    return [
        Trial(
            trial=trial,
            status="completed",
            parameters={"x": at / 10, "n": 1} | seed,
            generator=generator,
            metrics={"loss": loss, "ms": ms},
        )
        for trial, (generator, at, seed, (loss, ms)) in enumerate(runs)
    ]


def plan(
    experiment: Experiment,
    records: list[Trial],
    finalists: tuple[int, ...],
    metric: str,
    seeds: tuple[int, ...] = (1, 2),
    goal: Literal["minimize", "maximize"] = "minimize",
) -> None:
    store_plan(
        experiment.store,
        Plan(
            metric=metric,
            goal=goal,
            finalists=tuple(
                Finalist(trial=at, parameters=records[at].parameters, first=records[at].metrics[metric] or 0)
                for at in finalists
            ),
            seed_name="seed",
            seeds=seeds,
            top=len(finalists),
        ),
        None,
    )


def page_of(experiment: Experiment, records: list[Trial]) -> Contents:
    """Return the contents of the report, whose best trial and command are one and the same trial's."""
    document = report_document(experiment, records)
    page = contents(document)
    assert page.best is not None
    assert (page.best.trial, page.best_was_named) == (document["best_trial"], True)
    return page


def front_of(experiment: Experiment, records: list[Trial]) -> tuple[int, ...]:
    document = table.document(experiment.space, "url", records)
    return pareto(TrialsTable.from_document(document), x="ms", y="loss").front


OUTSIDE = sweep_of([(1.0, 9.8), (2.0, 8.0)], {0: [(1.0, 10.6), (1.02, 10.4)]})
INSIDE = sweep_of([(1.0, 10.1), (2.0, 8.0)], {0: [(1.01, 9.4), (1.03, 9.6)]})


def test_who_is_outside_over_fresh_seeds_is_neither_the_best_nor_on_a_front(tmp_path: Path) -> None:
    experiment = made(tmp_path, BOUNDED)
    assert table.best_confirmed(experiment.space, OUTSIDE) is None
    page = page_of(experiment, OUTSIDE)
    assert page.best is not None
    assert (page.best.trial, page.best.confirmation) == (1, None)
    assert "Trial 1 has the lowest loss of 1 result within the outcome constraints" in page.finding
    assert front_of(experiment, OUTSIDE) == (1,)
    assert [record.trial for record in table.front(experiment.space, OUTSIDE)] == [1]
    assert "best    trial 1: " in status_lines(experiment, OUTSIDE)[-1]
    table.write(tmp_path / "t.csv", experiment.space, "url", OUTSIDE)
    asked = ["--table", str(tmp_path / "t.csv"), "--x", "ms", "--y", "loss"]
    shown = CliRunner().invoke(pareto_command, asked).output
    assert "left out: 1 trial outside of the outcome constraints" in shown  # and not each of its fresh runs


@pytest.mark.parametrize("with_other", [True, False])
def test_who_is_outside_over_fresh_seeds_does_not_win_the_confirmation(
    tmp_path: Path, with_other: bool
) -> None:
    experiment = made(tmp_path, BOUNDED)
    other = {1: [(2.1, 8.1), (2.0, 8.0) if with_other else (2.0, 19.0)]}
    records = sweep_of([(1.0, 9.8), (2.0, 8.0)], {0: [(1.0, 10.6), (1.02, 10.4)], **other})
    plan(experiment, records, (0, 1), "loss")
    found = rounds.of_store(experiment.store, experiment.space, records)
    assert found is not None
    assert found[1].finished
    answer = confirmation.confirmed_answer(experiment, records)
    if with_other:
        assert answer is not None
        assert answer[1].winner.finalist.trial == 1
        (out,) = (row for row in answer[1].rows if row.finalist.trial == 0)
        assert (out.mean, out.chance, out.left) == (
            None,
            0.0,
            "its means are outside of the outcome constraints",
        )
        assert confirmation.roles(experiment.space, *found)[0] == "left"
        assert page_of(experiment, records).best.confirmation is not None
    else:
        assert answer is None
        line = "the means of no finalist are within the outcome constraints"
        assert any(line in each for each in status_lines(experiment, records))
        assert report_document(experiment, records)["best_trial"] is None


def test_who_is_inside_over_fresh_seeds_is_the_best_and_on_the_front(tmp_path: Path) -> None:
    experiment = made(tmp_path, BOUNDED)
    best = table.best_confirmed(experiment.space, INSIDE)
    assert best is not None
    page = page_of(experiment, INSIDE)
    assert page.best is not None
    assert page.best.trial == best.trial == 0
    assert page.best.confirmation is not None
    assert front_of(experiment, INSIDE) == (1, 0)


LUCKY = sweep_of(
    [(1.0, 5.0), (2.0, 5.0), (4.0, 1.0)], {0: [(3.0, 5.0), (3.1, 5.0)], 1: [(2.1, 5.0), (2.2, 5.0)]}
)


@pytest.mark.parametrize(
    ("text", "records", "front"),
    [pytest.param(SPACE, LUCKY, (2, 1), id="lucky"), pytest.param(BOUNDED, INSIDE, (1, 0), id="inside")],
)
def test_fronts_have_confirmed_trials_at_their_means(
    tmp_path: Path, text: str, records: list[Trial], front: tuple[int, ...]
) -> None:
    experiment = made(tmp_path, text)
    for record in records:
        put(experiment.store, record)
    assert front_of(experiment, records) == front
    found = points(SweepReader(experiment.store).refresh(listing=True), "ms", "loss")
    assert tuple(found.trials[at] for at in found.front) == front
    shown = pareto(
        TrialsTable.from_document(table.document(experiment.space, "url", records)), x="ms", y="loss"
    )
    assert {t: (x, y) for t, x, y in zip(found.trials, found.xs, found.ys, strict=True)} == {
        point.trial: (pytest.approx(point.x), pytest.approx(point.y)) for point in shown.points
    }
    results = sweeps.open(str(tmp_path), "toy").pareto()
    assert {result.trial for result in results} == set(front)
    losses = {record.trial: record.metrics["loss"] for record in records}
    assert all(result.metrics["loss"] == losses[result.trial] for result in results)  # as each has reported


@pytest.mark.parametrize(
    ("x", "column"), [("seconds", "seconds"), ("machine_seconds", "machine_seconds"), ("paid", "cost_paid")]
)
def test_confirmed_trials_have_their_runs_mean_of_time_and_cost(tmp_path: Path, x: str, column: str) -> None:
    """Trial 0 took 10 s and paid for one of two stages, as another trial had computed the first one."""
    experiment, records = made(tmp_path, SPACE), []
    took = [(10, 1, 1), (40, None, 1), (30, None, 2), (50, None, 1)]
    for record, (seconds, source, hosts) in zip(
        sweep_of([(2.0, 5.0), (4.0, 5.0)], {0: [(3.0, 5.0), (3.2, 5.0)]}), took, strict=True
    ):
        runs = (
            StageRun(name="a", key="1" * 64, cost=100.0, reused_from=source),
            StageRun(name="b", key="", cost=30.0 + record.trial),
        )
        end = 100.0 + seconds
        timed = replace(record, created=100.0, started=100.0, ended=end, stages=runs, attempt=1, nodes=hosts)
        put(experiment.store, timed)
        records.append(timed)
    found = points(SweepReader(experiment.store).refresh(listing=True), x, "loss")
    means = {"seconds": 40.0, "machine_seconds": 55.0, "paid": 132.5}
    assert dict(zip(found.trials, found.xs, strict=True))[0] == means[x]
    document = table.document(experiment.space, "url", records)
    shown = pareto(TrialsTable.from_document(document), x=column, y="loss")
    assert {point.trial: point.x for point in shown.points} == dict(zip(found.trials, found.xs, strict=True))
    assert "cost_paid_sem" not in TrialsTable.from_document(document).configurations


SEEDED = SPACE.replace("n: {value: 1}", "n: {value: 1}, seed: {values: [7, 8]}")


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_one_configuration_searched_with_two_seeds_is_one_point(
    tmp_path: Path, goal: Literal["minimize", "maximize"]
) -> None:
    """It stands under the trial that was the better one, as in the confirmation."""
    text = (
        SEEDED if goal == "minimize" else SEEDED.replace("{metric: loss}", "{metric: loss, goal: maximize}")
    )
    experiment, sign = made(tmp_path, text), 1 if goal == "minimize" else -1
    runs = [(0.1, 7, 2.0), (0.1, 8, 1.9), (0.2, 7, 2.2)]
    runs += [(0.1, 101, 2.05), (0.1, 102, 2.06), (0.2, 101, 2.3), (0.2, 102, 2.31)]
    records = [
        Trial(
            trial=trial,
            status="completed",
            parameters={"x": x, "n": 1, "seed": seed},
            generator="confirm" if seed > 100 else "sobol",
            metrics={"loss": sign * loss, "ms": 5.0 if x == 0.1 else 4.0},
        )
        for trial, (x, seed, loss) in enumerate(runs)
    ]
    for record in records:
        put(experiment.store, record)
    plan(experiment, records, (1, 2), "loss", (101, 102), goal)
    answer = confirmation.confirmed_answer(experiment, records)
    assert answer is not None
    assert answer[1].winner.finalist.trial == 1
    best = table.best_confirmed(experiment.space, records)
    assert best is not None
    assert best.trial == 1
    page = page_of(experiment, records)
    assert page.best is not None
    assert page.best.confirmation is not None
    assert (page.best.confirmation.first, bool(page.command)) == (sign * 1.9, True)
    assert page.tradeoff is not None
    assert [point.trial for point in page.tradeoff.result.points] == [1, 2]
    assert [record.trial for record in table.front(experiment.space, records)] == [1, 2]
    assert points(SweepReader(experiment.store).refresh(listing=True), "ms", "loss").trials == [1, 2]


def test_a_confirmation_of_another_objective_does_not_choose_the_best(tmp_path: Path) -> None:
    """Its finalists are the best of that one, not of the first."""
    experiment = made(tmp_path, SPACE)
    fresh = {2: [(9.1, 5.1), (9.0, 5.0)], 1: [(2.1, 41.0), (2.0, 40.0)]}
    records = sweep_of([(1.0, 90.0), (2.0, 40.0), (9.0, 5.0)], fresh)
    plan(experiment, records, (2, 1), "ms")
    assert confirmation.confirmed_answer(experiment, records) is None
    page = page_of(experiment, records)
    assert page.best is not None
    assert (page.best.trial, page.best.confirmation) == (0, None)
    planned = rounds.of_store(experiment.store, experiment.space, records)
    assert not confirmation.has_confirmed(experiment.space, planned, records)


ONE = SPACE.replace(", {metric: ms}", "") + "baseline: {x: 0.0}\n"


@pytest.mark.parametrize("seeds", [(1, 2, 3), (1, 2)], ids=["open", "over"])
def test_open_confirmation_has_no_winner_and_no_gain(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    """Trial 1 was lucky; of 1 and 2, which have two fresh runs each, 2 is better so far."""
    experiment = made(tmp_path, ONE)
    fresh = {1: [(2.60, 1.0), (2.62, 1.0)], 2: [(2.58, 1.0), (2.59, 1.0)]}
    first, *others = sweep_of([(3.0, 1.0), (2.0, 1.0), (2.1, 1.0)], fresh)
    records = [replace(first, generator="baseline"), *others]
    for record in records:
        put(experiment.store, record)
    plan(experiment, records, (1, 2), "loss", seeds)
    is_open = len(seeds) > 2

    document = report_document(experiment, records)
    assert document["best_trial"] == 2
    steps = {step["text"]: step["command"] for step in document["next"]}
    assert not any("one run" in text for text in steps)
    page = render(document)
    assert ("Best of the confirmed so far: trial 2" in page) == is_open
    assert ("Confirmed winner: trial 2" in page) != is_open
    going_on = "The confirmation is not over: round 3 of 3: 2 of 2 trials can still win; 0 running, 2 to come. Go on:"
    assert steps.get(going_on) == (f"sweep confirm --storage {experiment.store.url}" if is_open else None)

    asked = ["--storage", experiment.store.url, "--no-surrogate"]
    assert "below the baseline" not in CliRunner().invoke(best_command, asked).output
    shown = CliRunner().invoke(best_command, [*asked, "--format", "json"])
    assert json.loads(shown.stdout)["gain"] is None
    assert summary(SweepReader(experiment.store).refresh(listing=True))["gain"] == ""


@pytest.mark.parametrize(
    ("count", "line", "round"),
    [
        (0, "trial 1: loss 2", "round 2 of 3: 2 of 2 trials can still win; 0 running, 4 to come"),
        (
            2,
            "trial 2: loss 2.585, mean of 2 fresh seeds",
            "round 3 of 3: 2 of 2 trials can still win; 0 running, 2 to come",
        ),
    ],
)
def test_best_says_that_a_confirmation_goes_on(tmp_path: Path, count: int, line: str, round: str) -> None:
    experiment = made(tmp_path, ONE)
    fresh = {1: [(2.60, 1.0), (2.62, 1.0)][:count], 2: [(2.58, 1.0), (2.59, 1.0)][:count]}
    records = sweep_of([(3.0, 1.0), (2.0, 1.0), (2.1, 1.0)], fresh)
    for record in records:
        put(experiment.store, record)
    plan(experiment, records, (1, 2), "loss", (1, 2, 3))
    asked = ["--storage", experiment.store.url, "--no-surrogate"]
    shown = CliRunner().invoke(best_command, asked)
    assert shown.stdout.splitlines()[0] == line
    assert shown.stderr == f"sweep: the confirmation is not over: {round}; `sweep confirm` goes on\n"
    document = json.loads(CliRunner().invoke(best_command, [*asked, "--format", "json"]).stdout)
    reported = report_document(experiment, records)
    assert document["trial"] == reported["best_trial"] == (2 if count else 1)
    assert (document["confirmed"], document["confirming"]) == (None, round)
    assert reported["confirming"] == round
    assert not any("one run" in step["text"] for step in reported["next"])


def test_who_was_repeated_without_a_plan_is_not_one_run(tmp_path: Path) -> None:
    """The repeats may be imported from another sweep."""
    steps = report_document(made(tmp_path, BOUNDED), INSIDE)["next"]
    assert not any("one run" in step["text"] for step in steps)
