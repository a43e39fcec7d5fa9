"""Operations from Python: they return what they did, pass on notices, and print nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sweeps
from analysis.report.report import render
from sweeps.cli.show import status_lines
from sweeps.errors import InputError, SweepNotFound
from sweeps.experiment import Experiment
from sweeps.operations import lifetime, limits
from sweeps.operations.control import set_state
from sweeps.operations.creation import create_sweep
from sweeps.operations.opening import latest_name, new_store, open_sweep
from sweeps.operations.report import report_document
from sweeps.operations.sources import progress
from sweeps.operations.status import status_document, sweep_rows
from sweeps.programs.kinds import program_of
from sweeps.search import stop_rule
from sweeps.search.confirm.plan import Finalist, Plan, store_plan
from sweeps.space.priors import with_defaults
from sweeps.space.space_file import loads
from sweeps.space.stages import Stages
from sweeps.trials import control
from sweeps.trials.lifecycle import Complete
from sweeps.trials.record import Trial

SPACE = """\
name: toy
objectives: [{metric: loss, goal: minimize}]
program: {function: "objectives_for_tests:paraboloid"}
parameters:
  x: {min: 0.0, max: 1.0}
  n: {min: 1, max: 100}
search: {method: random}
run_cap: 5
"""
BY_COST = """\
name: cost
objectives: [{{metric: final_loss}}, {{metric: effective_steps}}]
program: {{trainer: {{overrides: [model=tiny, data=stdlib]}}}}
parameters: {{stage2.max_steps: {{values: [40, 80]}}, {parameters}}}
early_terminate: {{type: {rule}}}
search: {{method: random, reuse: none}}
"""


@pytest.fixture(autouse=True)
def silent(capfd: pytest.CaptureFixture[str]) -> Any:
    yield
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(tmp_path / "sweeps")


def made(storage: str, text: str = SPACE, **options: Any) -> tuple[Experiment, list[str]]:
    notices: list[str] = []
    created = create_sweep(
        loads(text, "space.yaml"), storage, **{"skip_if_exists": False, **options}, on_notice=notices.append
    )
    return created, notices


class TestCreate:
    def test_sweep_is_stored_and_the_default(self, storage):
        created, notices = made(storage)
        assert notices == []
        assert open_sweep(storage, None).written == created.written

    def test_warnings_go_to_the_caller(self, storage):
        (notice,) = made(storage, SPACE + "budget: {usd: 3}\n")[1]
        assert notice.startswith("warning: budget.usd ")

    def test_raised_limits_go_to_the_caller(self, storage):
        made(storage)
        again = made(storage, SPACE.replace("run_cap: 5", "run_cap: 8"), skip_if_exists=True)
        assert again[1] == [f"{storage}/toy: extended: run_cap 5 → 8"]

    def test_nothing_is_written_if_the_program_is_missing(self, storage):
        with pytest.raises(InputError, match="no_such_module"):
            made(storage, SPACE.replace("objectives_for_tests", "no_such_module"))
        assert not Path(storage).exists()

    @pytest.mark.parametrize(
        "parameters",
        [
            "stage2.distill.weight: {values: [0.0, 0.5]}",
            "stage2.distill.weight: {min: 0.0, max: 1.0}",
            "stage1_9.max_steps: {value: 0}, stage3.max_steps: {values: [40, 80]}",
        ],
        ids=["teacher_on_or_off", "teacher_from_0", "stage_3_without_stage_1_9"],
    )
    def test_early_stopping_by_a_cost_that_is_not_known_is_refused(self, storage, parameters):
        text = BY_COST.format(rule="median", parameters=parameters)
        with pytest.raises(InputError, match=r"^early_terminate: .*; write type: curve$"):
            made(storage, text)
        assert not Path(storage).exists()
        made(storage, text.replace("median", "curve"))

    def test_early_stopping_knows_the_cost_of_one_stage_alone(self, storage):
        text = BY_COST.format(rule="hyperband", parameters="stage1_9.max_steps: {value: 0}")
        created, _ = made(storage, text)
        assert [stage.cost for stage in created.space.stages] == ["stage2.max_steps"]
        assert not Stages(created.space).shared

    def test_early_stopping_of_a_stored_sweep_is_not_refused(self, storage):
        """Versions before have made such sweeps; the same command opens them."""
        text = BY_COST.format(rule="median", parameters="stage2.distill.weight: {values: [0.0, 0.5]}")
        space = with_defaults(loads(text, "x"), program_of(loads(text, "x")).defaults(), "")[0]
        stored = Experiment.create(new_store(storage, "cost"), program_of(space).complete())
        assert made(storage, text, skip_if_exists=True)[0].written == stored.written


def test_missing_storage_has_both_ways_on(storage):
    made(storage)
    with pytest.raises(SweepNotFound, match=r"did you mean toy\? .* has toy; or make one with `sweep init"):
        open_sweep(f"{storage}/toyy", None)


def test_root_of_a_bucket_is_not_searched(gcs, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    made("gs://bucket/near")
    with pytest.raises(SweepNotFound, match="did you mean toy"):
        open_sweep("gs://bucket/near/toyy", None)
    made("gs://bucket")
    with pytest.raises(SweepNotFound, match="no sweep here; make one with"):
        open_sweep("gs://bucket/toyy", None)


def test_report_of_a_new_sweep_says_how_to_begin(storage):
    (step,) = report_document(made(storage)[0], [])["next"]
    assert step["command"] == f"sweep worker --storage {storage}/toy"
    assert "0 of 5 trials" in step["text"]


def commands(experiment: Experiment) -> list[str]:
    return [step["command"] for step in report_document(experiment, experiment.trials())["next"]]


@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_report_resumes_a_sweep_that_is_closed(storage, state):
    experiment, _ = made(storage)
    control.write(experiment.store, state, "ada")
    at = f"--storage {storage}/toy"
    assert commands(experiment) == [f"sweep resume {at} && sweep worker {at}"]


def test_report_starts_no_worker_beyond_the_budget(storage):
    experiment, _ = made(storage)
    limits.extend(experiment, {"until": 1577836800.0}, "ada")
    (step,) = report_document(experiment, [])["next"]
    assert step["command"] == ""
    assert "the budget is reached: no trial is begun after 2020" in step["text"]


def complete(experiment: Experiment, **metrics: float) -> None:
    record = experiment.ask("w")
    experiment.apply(record.trial, Complete(worker="w", attempt=record.attempt, metrics=metrics))


def test_report_of_a_script_names_no_worker(storage):
    """No worker can run a function that a user gave to `run`."""
    space = {
        "name": "mine",
        "objectives": [{"metric": "loss"}],
        "parameters": {"x": {"min": 0.0, "max": 1.0}},
    }
    sweep = sweeps.create(space | {"search": {"method": "random"}, "run_cap": 2}, storage=storage)
    for _ in range(2):
        with sweep.ask() as trial:
            sweep.tell(trial, trial.parameters["x"])
    at = f"--storage {storage}/mine"
    steps = report_document(sweep.experiment, sweep.experiment.trials())["next"]
    found = {step["text"]: step["command"] for step in steps}
    assert found["Search on, then start your Python script again:"] == f"sweep extend --run-cap +2 {at}"
    assert found["The parameters of the best trial:"].startswith("x=0.")
    assert not any("sweep worker" in command or "sweep confirm" in command for command in found.values())
    sweep.extend(run_cap=3)
    assert report_document(sweep.experiment, sweep.experiment.trials())["next"][0] == {
        "text": "The search is not over: 2 of 3 trials have ended. Go on by starting your Python script again.",
        "command": "",
    }


def test_report_counts_what_the_run_cap_counts(storage):
    text = SPACE.replace("{min: 1, max: 100}", "{values: [1, 100]}").replace("random", "bayes")
    experiment, _ = made(storage, text + "fidelity: {n: {cost: [1, 20]}}\n")
    records = [
        Trial(
            trial=at,
            status="completed",
            parameters={"x": at / 9, "n": 100 if at == 7 else 1},
            generator="sobol" if at == 7 else "fidelity",
            metrics={"loss": 1.0},
        )
        for at in range(8)
    ]
    step = report_document(experiment, records)["next"][0]
    assert step["text"] == "The search is not over: 1 of 5 trials have ended. Go on:"
    assert progress(experiment, records) == ["1 of its 5 trials have ended"]


def test_report_asks_for_the_seed_of_a_program_without_one(storage):
    experiment, _ = made(storage)
    complete(experiment, loss=1.0)
    texts = [step["text"] for step in report_document(experiment, experiment.trials())["next"]]
    assert sum("`sweep confirm --seed-name NAME`" in text for text in texts) == 1


def test_report_says_how_a_search_that_is_done_goes_on(storage):
    space = SPACE.replace("random}", "bayes, stop: {expected_gain: 0.5, trials: 3}}")
    experiment, _ = made(storage, space)
    complete(experiment, loss=1.0)
    stop_rule.keep(experiment.store, stop_rule.Expectation(gain=0.1, trials=3, results=9, digest=""))
    at = f"--storage {storage}/toy"
    (step,) = (
        each
        for each in report_document(experiment, experiment.trials())["next"]
        if each["command"] == f"sweep extend --expected-gain none {at} && sweep worker {at}"
    )
    assert step["text"].startswith("The search is done: 3 more trials")


def test_report_expects_no_costs_beyond_a_search_that_has_ended(storage):
    """As `sweep status` and the dashboard: the run cap of 5 will not be reached."""
    experiment, _ = made(storage, SPACE.replace("random}", "bayes, stop: {expected_gain: 0.5, trials: 3}}"))
    done = Trial(
        trial=0,
        status="completed",
        attempt=1,
        parameters={"x": 0.5, "n": 1},
        generator="sobol",
        metrics={"loss": 1.0, "usd": 2.0},
    )
    assert "$10.00" in render(report_document(experiment, [done]))
    stop_rule.keep(experiment.store, stop_rule.Expectation(gain=0.1, trials=3, results=9, digest=""))
    page = render(report_document(experiment, [done]))
    assert page.count("$2.00") == 2  # so far, and expected to finish
    assert any("$2.00 so far, about $2.00 when" in line for line in status_lines(experiment, [done]))


def test_report_states_no_gain_of_a_confirmed_trial(storage):
    """Its gain is that of the run which was selected, and would stand beside the mean of others."""
    experiment, _ = made(storage)
    runs = [
        (0, 3.0, "baseline", 0.1),
        (1, 2.0, "sobol", 0.2),
        (2, 2.6, "confirm", 0.2),
        (3, 2.8, "confirm", 0.2),
    ]
    records = [
        Trial(
            trial=at,
            status="completed",
            parameters={"x": x, "n": 1} | ({"seed": at} if generator == "confirm" else {}),
            generator=generator,
            metrics={"loss": loss},
        )
        for at, loss, generator, x in runs
    ]
    searched = report_document(experiment, records[:3])
    assert searched["gain"]["sentence"].startswith("1.0 below the baseline (trial 0)")
    document = report_document(experiment, records)
    assert document["best_trial"] == 1
    assert "gain" not in document
    page = render(document)
    assert "Confirmed winner: trial 1" in page
    assert "below the baseline" not in page
    assert "gain" in status_document(experiment, records[:3])
    assert "gain" not in status_document(experiment, records)
    finalists = tuple(Finalist(trial=at, parameters=records[at].parameters, first=3.0 - at) for at in (1, 0))
    plan = Plan(
        metric="loss", goal="minimize", finalists=finalists, seed_name="seed", seeds=(2, 3), top=2, trials=4
    )
    others = [
        replace(
            run, trial=run.trial + 2, metrics={"loss": 4.0 + run.trial}, parameters=plan.repeat(0, run.trial)
        )
        for run in records[2:]
    ]
    store_plan(experiment.store, plan, None)
    records += others
    document = status_document(experiment, records)
    assert document["confirmation"]["winner"]["trial"] == document["best"]["trial"] == 1
    assert "gain" not in document
    assert not any(line.startswith("gain") for line in status_lines(experiment, records))
    swapped = [*records[:2], *(replace(r, metrics={"loss": 8.0 - r.metrics["loss"]}) for r in records[2:])]
    document = status_document(experiment, swapped)
    assert (document["confirmation"]["winner"]["trial"], document["best"]["trial"]) == (0, 1)
    assert "gain" not in document


@pytest.mark.parametrize(("run_cap", "is_left"), [(1, True), (2, False)])
def test_report_extends_a_grid_only_if_it_has_more(storage, run_cap, is_left):
    space = SPACE.replace("{min: 0.0, max: 1.0}", "{values: [0.0, 1.0]}").replace(
        "{min: 1, max: 100}", "{value: 1}"
    )
    experiment, _ = made(
        storage, space.replace("random", "grid").replace("run_cap: 5", f"run_cap: {run_cap}")
    )
    for _ in range(run_cap):
        complete(experiment, loss=1.0)
    assert any("sweep extend" in command for command in commands(experiment)) is is_left


def test_report_says_if_constraints_leave_no_trial(storage):
    experiment, _ = made(
        storage, SPACE.replace("run_cap: 5", "run_cap: 1") + 'outcome_constraints: ["size <= 1"]\n'
    )
    complete(experiment, loss=1.0, size=2.0)
    assert commands(experiment) == [f"sweep trials --storage {storage}/toy"]
    page = render(report_document(experiment, experiment.trials()))
    assert "No completed trial is within the outcome constraints." in page
    assert "Best trial:" not in page
    assert "No completed trial is within the outcome constraints." in page


def test_export_names_what_is_searched_on_a_log_scale(storage):
    text = SPACE.replace(
        "x: {min: 0.0, max: 1.0}", "x: {min: 0.1, max: 1.0, distribution: log_uniform_values}"
    )
    assert report_document(made(storage, text)[0], [])["log_parameters"] == ["x"]


def test_extension_says_what_is_reached_already(storage):
    experiment, _ = made(storage)
    experiment.ask("w")
    extended = limits.extend(experiment, {"run_cap": 1, "usd": 2.0}, "ada")
    assert extended.differences == ["run_cap 5 → 1", "usd none → 2"]
    (reached,) = extended.reached
    assert reached.startswith("run_cap is 1")
    assert not extended.is_idle


def test_archived_sweep_is_listed_so_until_it_is_taken_out(storage):
    experiment, _ = made(storage)
    assert lifetime.archive(experiment, "ada")
    assert not lifetime.archive(experiment, "ada")
    assert [row["state"] for row in sweep_rows(storage)] == ["archived"]
    lifetime.unarchive(experiment, "ada")
    assert [row["state"] for row in sweep_rows(storage)] == ["stopped"]
    with pytest.raises(InputError, match="archive"):
        lifetime.unarchive(experiment, "ada")


@pytest.mark.parametrize(
    ("state", "listed"), [("running", "open"), ("paused", "paused"), ("stopped", "archived")]
)
def test_only_a_stopped_sweep_stays_in_the_archive(storage, state, listed):
    experiment, _ = made(storage)
    assert lifetime.archive(experiment, "ada")
    set_state(experiment.store, state, "bob")
    assert [row["state"] for row in sweep_rows(storage)] == [listed]


def test_renamed_sweep_stays_the_default(storage):
    renamed = lifetime.rename(made(storage)[0], "other", "ada")
    assert (renamed.store.url, latest_name(storage)) == (f"{storage}/other", "other")


def test_sweep_with_a_worker_is_not_deleted(storage):
    experiment, _ = made(storage)
    experiment.ask("w")
    with pytest.raises(InputError, match=r"\(w\)"):
        lifetime.contents(experiment)
    with pytest.raises(InputError, match="still at work"):
        lifetime.delete(experiment, "ada")
    assert open_sweep(storage, "toy").trials()
