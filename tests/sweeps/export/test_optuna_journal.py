"""The exported journal opens in Optuna and agrees with the records."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.errors import InputError
from sweeps.export import optuna_journal, table
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Space
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"), Objective(metric="score", goal="maximize")),
    program=Program(kind="function", function="m:f"),
    parameters=(
        Range(name="lr", min=1e-3, max=1e-1, kind="float", log=True),
        Range(name="steps", min=1, max=100, kind="int", log=True),
        Choice(name="schedule", values=("linear", "cosine")),
        Fixed(name="seed", value=0),
    ),
)
PARAMETERS = {"lr": 1e-2, "steps": 7, "schedule": "cosine", "seed": 0}


def record(index: int, status: str = "completed", **fields: object) -> Trial:
    defaults: dict[str, object] = {
        "parameters": PARAMETERS,
        "generator": "sobol",
        "started": 10.0,
        "ended": 20.0,
        "created": 5.0,
    }
    if status == "completed":
        defaults["metrics"] = {"loss": 3.0 + index, "score": 0.5, "loss_sem": 0.1}
    return Trial(trial=index, status=status, **(defaults | fields))  # type: ignore[arg-type]  # a table of cases


@pytest.fixture
def study(tmp_path: Path):
    records = [
        record(0, curve=((10.0, 4.0), (20.0, 3.5))),
        record(1, "failed", error="diverged\nlast words"),
        record(2, "early_stopped"),
        record(3, "running", worker="w", ended=None),
        record(4, "pending", started=None, ended=None),
        record(5, "abandoned"),
        record(6, generator="imported", parameters=PARAMETERS | {"lr": 5.0}),
        record(7, metrics={"loss": 3.0}),
    ]
    return written(tmp_path / "journal.log", records)


def written(journal: Path, records: list[Trial], space: Space = SPACE):
    optuna = pytest.importorskip("optuna")
    optuna_journal.write(journal, space, records)
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    return optuna.load_study(study_name="case", storage=optuna.storages.JournalStorage(backend))


def test_trials_behind_a_missing_record_keep_their_numbers(tmp_path: Path) -> None:
    trials = written(tmp_path / "journal.log", [record(1), record(3)]).trials
    assert [(trial.number, trial.state.name) for trial in trials] == [
        (0, "FAIL"), (1, "COMPLETE"), (2, "FAIL"), (3, "COMPLETE"),
    ]  # fmt: skip
    assert trials[3].values == [6.0, 0.5]
    assert "lost" in trials[2].user_attrs["error"]


def test_steps_that_are_fractions_are_numbered(tmp_path: Path) -> None:
    """Optuna's steps are integers: cut off, several would be one."""
    records = [record(0, curve=((0.25, 4.0), (0.5, 3.0))), record(1, curve=((1.0, 2.0), (2.0, 1.0)))]
    trials = written(tmp_path / "journal.log", records).trials
    assert [trial.intermediate_values for trial in trials] == [{0: 4.0, 1: 3.0}, {0: 2.0, 1: 1.0}]


def test_optuna_opens_it_with_the_sweeps_goals(study) -> None:
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.metric_names == ["loss", "score"]
    assert [trial.number for trial in study.best_trials] == [0]


def test_every_trial_is_there_in_its_state(study) -> None:
    states = ["COMPLETE", "FAIL", "PRUNED", "RUNNING", "WAITING", "FAIL", "COMPLETE", "FAIL"]
    assert [trial.state.name for trial in study.trials] == states
    first = study.trials[0]
    assert (first.values, first.params) == ([3.0, 0.5], PARAMETERS)
    assert first.intermediate_values == {10: 4.0, 20: 3.5}
    assert first.duration.total_seconds() == 10
    assert first.user_attrs["loss_sem"] == 0.1
    assert study.trials[1].user_attrs["error"] == "diverged"


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_optunas_best_trial_is_the_sweeps(goal: str, tmp_path: Path) -> None:
    sign = 1.0 if goal == "minimize" else -1.0
    space = replace(
        SPACE,
        objectives=(Objective(metric="loss", goal=goal),),  # type: ignore[arg-type]  # a table of cases
        outcome_constraints=("mem <= 0.3", "score >= 0.1"),
    )
    results = [(5.0, 0.1), (2.0, 0.1 + 0.2), (1.0, 99.0), (0.5, None)]  # on the bound, but for rounding
    records = [
        record(at, metrics={"loss": sign * loss, "score": 0.5, "mem": mem})
        for at, (loss, mem) in enumerate(results)
    ]
    # The luckiest repeat is no result of the search.
    records.append(record(4, generator="confirm", metrics={"loss": sign * 0.1, "score": 0.5, "mem": 0.1}))
    study = written(tmp_path / "journal.log", records, space)
    assert study.trials[4].state.name == "PRUNED"
    best = table.best(space, records)
    assert best is not None
    assert study.best_trial.number == best.trial == 1


def test_what_lies_outside_the_space_is_kept_as_words(study) -> None:
    imported = study.trials[6]
    assert "lr" not in imported.params
    assert imported.user_attrs["outside.lr"] == 5.0


def test_writing_again_replaces_it_and_leaves_no_other_file(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    for count in (2, 1):
        optuna_journal.write(tmp_path / "journal.log", SPACE, [record(i) for i in range(count)])
    assert [path.name for path in tmp_path.iterdir()] == ["journal.log"]
    assert (tmp_path / "journal.log").read_text().count('"op_code":4') == 1  # one trial was created


@pytest.mark.parametrize("missing", ["optuna", "optuna.storages.journal"], ids=["none", "Optuna 3"])
def test_without_optuna_the_message_says_what_to_install(missing: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=r"pip install 'optuna>=4\.1'"):
        optuna_journal.write(tmp_path / "journal.log", SPACE, [])
