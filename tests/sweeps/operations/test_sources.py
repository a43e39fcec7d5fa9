"""Sources of `transfer:`: what a new sweep keeps of them, and those that it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import golden_messages
import pytest

from sweeps.errors import DamagedObject, InputError
from sweeps.experiment import Experiment
from sweeps.operations import sources
from sweeps.operations.copying import copy
from sweeps.operations.creation import create_sweep
from sweeps.operations.sources import read_sources
from sweeps.search.optimizer import Optimizer
from sweeps.space.definition import Space
from sweeps.space.space_file import loads
from sweeps.storage.urls import open_store
from sweeps.trials.lifecycle import Complete

SMALL = """\
name: small
objectives: [{metric: loss}]
program: {function: "objectives_for_tests:paraboloid"}
parameters:
  lr: {min: 1.0e-4, max: 1.0e-1, distribution: log_uniform_values}
  kind: {values: [a, b, c]}
  old: {min: 0.0, max: 1.0}
  width: {value: 2}
search: {method: random}
run_cap: 8
"""
LARGE = """\
name: large
objectives: [{metric: loss}]
program: {function: "objectives_for_tests:paraboloid"}
parameters:
  lr: {min: 1.0e-3, max: 1.0, distribution: log_uniform_values}
  kind: {values: [b, c]}
  width: {min: 1, max: 8}
  more: {min: 0.0, max: 1.0}
transfer: {from: [SOURCE]}
"""

Loss = Callable[[Mapping[str, Any]], float]


def finished(at: Path, text: str = SMALL, trials: int = 8, loss: Loss = lambda p: p["lr"]) -> Experiment:
    """A sweep whose trials have completed."""
    experiment = Experiment.create(open_store(str(at)), loads(text, "space.yaml"))
    for _ in range(trials):
        found = experiment.ask("worker", wait=lambda _: None)
        assert found is not None
        metrics = {name: loss(found.parameters) for name in experiment.space.metrics()}
        experiment.apply(found.trial, Complete(worker="worker", attempt=1, metrics=metrics))
    return experiment


def large(source: Path | str, text: str = LARGE) -> Space:
    return loads(text.replace("SOURCE", str(source)), "space.yaml")


def created(tmp_path: Path, **options: Any) -> tuple[Experiment, list[str]]:
    notices: list[str] = []
    options.setdefault("skip_if_exists", False)
    space = large(tmp_path / "small")
    experiment = create_sweep(space, str(tmp_path / "sweeps"), on_notice=notices.append, **options)
    return experiment, notices


def test_source_is_kept_in_the_sweep(tmp_path):
    there = finished(tmp_path / "small")
    experiment, notices = created(tmp_path)
    (source,) = experiment.space.transfer
    near = [r for r in there.trials() if r.parameters["kind"] != "a"]
    assert [r.value for r in source.results] == [r.metrics["loss"] for r in near]
    assert all(set(r.parameters) == {"lr", "kind"} for r in source.results)
    assert dict(source.filled) == {"width": 2}
    said = next(notice for notice in notices if notice.startswith("transfer from"))
    golden_messages.compare("The source of a sweep", [("small", said.replace(str(tmp_path), ""))])


def test_each_objective_of_a_source_is_kept(tmp_path):
    two = "objectives: [{metric: loss}, {metric: memory, goal: maximize}]"
    there = Experiment.create(
        open_store(str(tmp_path / "small")), loads(SMALL.replace("objectives: [{metric: loss}]", two), "x")
    )
    for index in range(8):
        found = there.ask("worker", wait=lambda _: None)
        assert found is not None
        metrics = {"loss": found.parameters["lr"], "memory": 10.0 + index}
        there.apply(found.trial, Complete(worker="worker", attempt=1, metrics=metrics))
    space = large(tmp_path / "small", LARGE.replace("objectives: [{metric: loss}]", two))
    create_sweep(space, str(tmp_path / "sweeps"), on_notice=lambda _: None, skip_if_exists=False)
    (source,) = Experiment.open(open_store(str(tmp_path / "sweeps/large"))).space.transfer
    near = [r for r in there.trials() if r.parameters["kind"] != "a"]
    assert [r.values for r in source.results] == [(r.metrics["loss"], r.metrics["memory"]) for r in near]
    other = LARGE.replace("objectives: [{metric: loss}]", two.replace("memory", "speed"))
    with pytest.raises(InputError, match="and this sweep to minimize loss, maximize speed; take it out"):
        read_sources(large(tmp_path / "small", other), lambda _: None)


def test_a_source_whose_trials_have_not_all_ended_is_said_to_be_so(tmp_path):
    for name, trials in (("half", 5), ("whole", 8)):
        finished(tmp_path / name, trials=trials)
    notices: list[str] = []
    read_sources(large(f"{tmp_path}/half, {tmp_path}/whole"), notices.append)
    assert ["5 of its 8 trials have ended" in notice for notice in notices] == [True, False]


def test_results_outside_of_the_sources_constraints_are_left_out(tmp_path):
    bounded = SMALL.replace("program:", "outcome_constraints: [memory <= 0.02]\nprogram:")
    experiment = Experiment.create(open_store(str(tmp_path / "small")), loads(bounded, "space.yaml"))
    for _ in range(8):
        found = experiment.ask("worker", wait=lambda _: None)
        assert found is not None
        metrics = {"loss": -found.parameters["lr"], "memory": found.parameters["lr"]}
        experiment.apply(found.trial, Complete(worker="worker", attempt=1, metrics=metrics))
    within = [r.parameters["lr"] for r in experiment.trials() if r.parameters["lr"] <= 0.02]
    (source,) = read_sources(large(tmp_path / "small"), lambda _: None).transfer
    kept = [result.parameters["lr"] for result in source.results]
    assert kept
    assert set(kept) <= set(within)


def test_a_parameter_in_another_unit_is_said_to_be_so(tmp_path):
    finished(tmp_path / "small")
    notices: list[str] = []
    per_cent = LARGE.replace("more: {min: 0.0, max: 1.0}", "old: {min: 10.0, max: 100.0}")
    read_sources(large(tmp_path / "small", per_cent), notices.append)
    assert "left out old; no value of old there lies in this sweep's range" in notices[0]


def test_a_short_sweep_with_a_source_is_not_said_to_lack_a_surrogate(tmp_path):
    finished(tmp_path / "small")
    for source in (True, False):
        text = LARGE + "run_cap: 3\n"
        notices: list[str] = []
        space = large(
            tmp_path / "small", text if source else text.replace("transfer: {from: [SOURCE]}\n", "")
        )
        create_sweep(space, str(tmp_path / f"{source}"), on_notice=notices.append, skip_if_exists=False)
        assert any("leaves no trial to the surrogate" in notice for notice in notices) is not source


def test_sweep_goes_on_without_its_source(tmp_path):
    finished(tmp_path / "small")
    experiment, _ = created(tmp_path)

    def first() -> Mapping[str, Any]:
        opened = Experiment.open(experiment.store)
        return Optimizer(opened.space).generate()[0].parameters

    before = first()
    shutil.rmtree(tmp_path / "small")
    assert first() == before
    again, notices = created(tmp_path, skip_if_exists=True)  # the source is not read again
    assert again.space == experiment.space
    assert not any(notice.startswith("transfer") for notice in notices)


def test_first_trial_has_the_best_of_the_source(tmp_path):
    finished(tmp_path / "small", loss=lambda p: abs(p["lr"] - 0.01) + (p["kind"] != "b"))
    experiment, _ = created(tmp_path)
    (candidate,) = Optimizer(experiment.space).generate()
    assert candidate.generator == "botorch"
    assert (candidate.parameters["kind"], candidate.parameters["width"]) == ("b", 2)


def test_copy_keeps_the_source(tmp_path):
    finished(tmp_path / "small")
    experiment, _ = created(tmp_path)
    copy(experiment.store.url, str(tmp_path / "copy"), live=False, on_notice=lambda _: None)
    assert Experiment.open(open_store(str(tmp_path / "copy"))).space.transfer == experiment.space.transfer


def test_an_edited_result_is_damage(tmp_path):
    finished(tmp_path / "small")
    experiment, _ = created(tmp_path)
    path = tmp_path / "sweeps/large/sweep.json"
    document = json.loads(path.read_text())
    document["space"]["transfer"][0]["results"][0]["value"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(DamagedObject, match="sha256"):
        Experiment.open(experiment.store)


def test_many_results_are_thinned_by_rank(tmp_path, monkeypatch):
    there = finished(tmp_path / "small")
    monkeypatch.setattr(sources, "MAX_RESULTS", 4)
    space = large(tmp_path / "small", LARGE.replace("[b, c]", "[a, b, c]"))
    kept = read_sources(space, lambda _: None).transfer[0].results
    losses = sorted(r.metrics["loss"] for r in there.trials())
    assert len(kept) == 4
    assert {losses[0], losses[-1]} <= {result.value for result in kept}


def test_refused_sources(tmp_path):
    def refused(name: str, text: str = LARGE, **options: Any) -> Callable[[], object]:
        def call() -> object:
            finished(tmp_path / name, **options)
            return read_sources(large(tmp_path / name, text), lambda _: None)

        return call

    def running() -> object:
        finished(tmp_path / "running", trials=7).ask("host-7", wait=lambda _: None)
        return read_sources(large(tmp_path / "running"), lambda _: None)

    def damaged() -> object:
        finished(tmp_path / "damaged")
        (tmp_path / "damaged/trials/000003.json").write_text("{")
        return read_sources(large(tmp_path / "damaged"), lambda _: None)

    def folder_of_sweeps() -> object:
        finished(tmp_path / "several/one")
        return read_sources(large(tmp_path / "several"), lambda _: None)

    def twice() -> object:
        finished(tmp_path / "same")
        copy(str(tmp_path / "same"), str(tmp_path / "copied"), live=False, on_notice=lambda _: None)
        return read_sources(large(f"{tmp_path}/same, {tmp_path}/copied"), lambda _: None)

    def a_file() -> object:
        (tmp_path / "file").write_text("")
        return read_sources(large(tmp_path / "file"), lambda _: None)

    bounded = SMALL.replace("program:", "outcome_constraints: [memory <= -1]\nprogram:")

    def infeasible() -> object:
        finished(tmp_path / "infeasible", bounded)
        return read_sources(large(tmp_path / "infeasible"), lambda _: None)

    narrow = LARGE.replace("lr: {min: 1.0e-3, max: 1.0,", "lr: {min: 1.0, max: 9.0,").replace("kind", "sort")
    golden_messages.compare_refusals(
        "Sources that are refused",
        InputError,
        {
            "not there": lambda: read_sources(large(tmp_path / "nowhere"), lambda _: None),
            "a folder of sweeps": folder_of_sweeps,
            "a file": a_file,
            "still at work": running,
            "a damaged record": damaged,
            "another direction": refused("up", LARGE.replace("loss}", "loss, goal: maximize}")),
            "the same sweep twice": twice,
            "one letter is missing": lambda: read_sources(large(tmp_path / "runing"), lambda _: None),
            "another metric": refused("other", LARGE.replace("loss}", "accuracy, goal: maximize}")),
            "no completed trial": refused("empty", trials=0),
            "no result within its constraints": infeasible,
            "no common parameter, or no common range": refused("apart", narrow),
            "one loss for all": refused("flat", loss=lambda _: 1.0),
        },
        hide=tmp_path,
    )
