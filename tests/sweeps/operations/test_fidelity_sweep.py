"""A sweep with fidelities from its file to its table: what counts as a result, and what is said of the rest."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from analysis.report.contents import contents
from analysis.summaries.costs import cost
from analysis.table import TrialsTable
from sweeps.api import Sweep
from sweeps.cli.show import status_lines
from sweeps.errors import InputError, SpaceError
from sweeps.experiment import Experiment
from sweeps.export import ax_export, optuna_journal, table
from sweeps.operations.creation import create_sweep
from sweeps.operations.limits import extend
from sweeps.search import stop_rule
from sweeps.search.confirm import finalists
from sweeps.space.fidelity import Ladder
from sweeps.space.space_file import loads
from sweeps.storage.urls import open_store
from sweeps.trials.lifecycle import Complete
from sweeps.upkeep.importing import import_table

pytestmark = pytest.mark.usefixtures("few_starts")

TEXT = """\
name: case
objectives: [{metric: loss}]
program: {function: "objectives_for_tests:paraboloid"}
parameters:
  x: {min: 0.0, max: 1.0}
  width: {values: [64, 256]}
fidelity: {width: {cost: [1, 20]}}
run_cap: 8
"""
LOW, ALL = 9, 17


def created(tmp_path: Path, text: str = TEXT) -> tuple[Experiment, list[str]]:
    notices: list[str] = []
    space = loads(text, "case.yaml")
    experiment = create_sweep(space, str(tmp_path), skip_if_exists=False, on_notice=notices.append)
    return experiment, notices


@pytest.fixture
def finished(tmp_path, built_once) -> Experiment:
    """A finished sweep whose cheap trials have by far the lowest losses."""

    def build() -> str:
        experiment, _ = created(tmp_path / "sweep-store")
        while (trial := experiment.ask("worker", wait=lambda _: None)) is not None:
            loss = float(trial.parameters["x"]) + (trial.parameters["width"] == 256) * 10
            experiment.apply(trial.trial, Complete(worker="worker", attempt=1, metrics={"loss": loss}))
        experiment.allocator.lease.settle()
        return "sweep-store/case"

    return Experiment.open(open_store(built_once("fidelity", build)))


def test_threads_of_python_plan_as_a_worker_does(tmp_path):
    """By the run cap that the sweep was made with: `sweep extend` adds trials at the target."""
    experiment, _ = created(tmp_path)
    extend(experiment, {"run_cap": 60}, "ada")
    sweep = Sweep(Experiment.open(experiment.store))
    with ThreadPoolExecutor(1) as pool:
        in_thread = pool.submit(lambda: sweep.experiment).result()
    for each in (Experiment.open(experiment.store), in_thread, in_thread.for_thread()):
        assert Ladder(each.written).planned == Ladder(experiment.written).planned
        assert (each.written.run_cap, each.space.run_cap) == (8, 60)


def test_what_comes_first_is_said_once(tmp_path):
    created(tmp_path)
    notices = []
    more = loads(TEXT.replace("run_cap: 8", "run_cap: 60"), "case.yaml")
    create_sweep(more, str(tmp_path), skip_if_exists=True, on_notice=notices.append)
    assert notices == [f"{tmp_path}/case: extended: run_cap 8 → 60"]


def test_init_says_what_comes_first(tmp_path):
    _, notices = created(tmp_path)
    (said,) = [notice for notice in notices if notice.startswith("fidelity")]
    assert "first 9 at width=64, for the cost of 0.45 at the target" in said
    assert not any("warning" in notice for notice in notices)


def test_init_says_where_no_cheap_trial_is_paid_for(tmp_path):
    _, notices = created(tmp_path, TEXT.replace("[1, 20]", "[1, 2]"))
    assert any("no trial below width=256" in notice for notice in notices)


def test_run_cap_counts_the_trials_at_the_target(finished):
    trials = finished.trials()
    assert len(trials) == ALL
    assert sum(each.parameters["width"] == 256 for each in trials) == 8
    assert "trials  8 of 8 and 9 below the target: 17 completed" in status_lines(finished, trials)
    assert extend(finished, {"run_cap": 9}, by="me").reached == []


def test_only_trials_at_the_target_are_results(finished):
    trials, space = finished.trials(), finished.space
    best = table.best(space, trials)
    assert best is not None
    assert best.parameters["width"] == 256
    assert {each.parameters["width"] for each in table.front(space, trials)} == {256}
    assert set(stop_rule.results(space, trials)) == {t.trial for t in trials if t.generator != "fidelity"}
    chosen = finalists.choose(space, trials, metric="loss", top=20, seed_name="seed", within={})
    assert len(chosen.finalists) == 8
    assert all(each.parameters["width"] == 256 for each in chosen.finalists)


def test_front_of_two_objectives_has_trials_at_the_target_alone(tmp_path):
    text = TEXT.replace("[{metric: loss}]", "[{metric: loss}, {metric: cost}]").replace("[1, 20]", "[1, 40]")
    text += "search: {sobol: 20}\n"
    experiment, notices = created(tmp_path, text)
    assert any("first 19 at width=64" in notice for notice in notices)
    while (trial := experiment.ask("worker", wait=lambda _: None)) is not None:
        x, large = float(trial.parameters["x"]), trial.parameters["width"] == 256
        metrics = {"loss": x + 10 * large, "cost": 1 - x + 10 * large}
        experiment.apply(trial.trial, Complete(worker="worker", attempt=1, metrics=metrics))
    trials, space = experiment.trials(), experiment.space
    assert len(trials) == 19 + 8
    front = table.front(space, trials)
    assert len(front) == 8
    assert {each.parameters["width"] for each in front} == {256}
    read = TrialsTable.from_document(table.document(space, "url", trials))
    assert read.completed.sum() == 8


def test_users_own_cheap_trial_is_marked_in_tables(finished, tmp_path):
    finished.enqueue([{"x": 0.5, "width": 64}], worker="me")
    trial = finished.ask("worker", wait=lambda _: None)
    assert trial is not None
    assert trial.generator == "enqueued"
    finished.apply(trial.trial, Complete(worker="worker", attempt=1, metrics={"loss": 0.0}))
    trials = finished.trials()
    document = table.document(finished.space, "url", trials)
    assert document["trials"][-1]["generator"] == "fidelity"
    for name in ("t.csv", "t.json"):
        table.write(tmp_path / name, finished.space, "url", trials)
        read = TrialsTable.open(tmp_path / name)
        assert len(read) == ALL + 1
        assert read.completed.sum() == 8
    assert TrialsTable.from_document(document).feasible.sum() == 8
    for frame in (Sweep(finished).trials(), pd.DataFrame(table.nested_rows(finished.space, trials))):
        assert TrialsTable.from_frame(frame).completed.sum() == 8


def test_imported_cheap_trial_is_no_result_and_costs_nothing(tmp_path):
    experiment, _ = created(tmp_path / "store")
    (tmp_path / "t.csv").write_text("x,width,loss,usd\n0.5,64,0.1,7\n0.5,256,0.2,11\n")
    import_table(experiment, tmp_path / "t.csv", worker="me")
    experiment.enqueue([{"x": 0.25, "width": 64}], worker="me")
    trial = experiment.ask("worker", wait=lambda _: None)
    assert trial is not None
    experiment.apply(trial.trial, Complete(worker="worker", attempt=1, metrics={"loss": 0.5, "usd": 3.0}))
    document = table.document(experiment.space, "url", experiment.trials())
    assert [row["generator"] for row in document["trials"]] == ["fidelity", "imported", "fidelity"]
    assert TrialsTable.from_document(document).completed.tolist() == [False, True, False]
    paid = [cost(table.cost_rows(experiment.space, experiment.trials()), 8), contents(document).cost]
    assert [each.so_far for each in paid] == [3.0, 3.0]


def test_users_own_cheap_trials_do_not_count_towards_the_cap(finished):
    finished.enqueue([{"x": 0.5, "width": 64}], worker="me")
    with pytest.raises(InputError, match="1 more trial would be 9, and run_cap is 8"):
        finished.enqueue([{"x": 0.5, "width": 256}], worker="me")


def test_trainers_first_trial_is_one_at_the_target(tmp_path):
    text = """\
name: case
objectives: [{metric: final_loss}]
program: {trainer: {overrides: [model=tiny]}}
parameters:
  stage2.optimizer.lr: {min: 1.0e-3, max: 8.0e-2, distribution: log_uniform_values}
  stage1_9.max_steps: {value: 0}
  stage2.max_steps: {values: [30, 60, 1500]}
fidelity: {stage2.max_steps: {}}
"""
    experiment, notices = created(tmp_path, text)
    assert experiment.space.baseline is not None
    assert experiment.space.baseline["stage2.max_steps"] == 1500
    assert any("first 30 at stage2.max_steps=30" in notice for notice in notices), notices


def test_trainers_width_has_no_known_cost(tmp_path):
    text = """\
name: case
objectives: [{metric: final_loss}]
program: {trainer: {overrides: [model=ladder]}}
parameters:
  stage2.optimizer.lr: {min: 1.0e-3, max: 8.0e-2, distribution: log_uniform_values}
  model.width: {values: [64, 128]}
fidelity: {model.width: {}}
"""
    with pytest.raises(
        SpaceError, match=r"fidelity\.model\.width: what a trial with each value costs is not"
    ):
        created(tmp_path, text)
    assert not list(tmp_path.iterdir())


def test_best_of_an_export_to_optuna_is_at_the_target(finished, tmp_path):
    optuna = pytest.importorskip("optuna")
    from optuna.storages.journal import JournalFileBackend

    optuna_journal.write(tmp_path / "journal.log", finished.space, finished.trials())
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    study = optuna.load_study(study_name="case", storage=storage)
    assert len(study.trials) == ALL
    assert study.best_trial.params["width"] == 256
    pruned = study.get_trials(states=[optuna.trial.TrialState.PRUNED])
    assert {trial.params["width"] for trial in pruned} == {64}


def test_export_to_ax_has_the_trials_at_the_target_alone(finished, tmp_path):
    ax_export.write(tmp_path / "ax.json", finished.space, finished.trials())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ax
        from ax.api.client import Client

        trials = Client.load_from_json_file(str(tmp_path / "ax.json"))._experiment.trials.values()
    assert [trial.arm.parameters["width"] for trial in trials] == [256] * (ALL - LOW)
