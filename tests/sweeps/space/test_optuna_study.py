"""A study of Optuna's is answered with all of its words and what to write for them, in one go."""

from __future__ import annotations

import pytest

from sweeps.errors import SpaceError
from sweeps.space.space_file import loads

STUDY = """\
study_name: sphere
directions: [minimize, maximize]
n_trials: 20
sampler: optuna.samplers.RandomSampler
pruner: MedianPruner
n_jobs: 4
search_space:
  lr: {type: float, low: 1.0e-5, high: 0.1, log: true}
  activation: {name: CategoricalDistribution, choices: [relu, gelu]}
"""
APPLICATION = """\
defaults: [{override hydra/sweeper: optuna}]
hydra:
  sweeper: {n_trials: 20, params: {x: "interval(0, 1)"}}
"""


def answered(text: str) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        loads(text, "study.yaml")
    return str(caught.value).splitlines()


def test_each_word_has_its_line_and_what_to_write() -> None:
    expected = {
        "1: study_name": "name: sphere",
        "2: directions": "objectives: [{metric: LOSS, goal: minimize}, {metric: LOSS, goal: maximize}]",
        "3: n_trials": "run_cap: 20",
        "4: sampler": "search: {method: random}",
        "5: pruner": "early_terminate: {type: median}",
        "6: n_jobs": "sweep launch local --workers N",
        "8: search_space": "write parameters:",
        "8: search_space.lr.type": "leave it out",
        "8: search_space.lr.low": "min: 1.0e-5",
        "8: search_space.lr.high": "max: 0.1",
        "8: search_space.lr.log": "distribution: log_uniform_values",
        "9: search_space.activation.name": "leave it out",
        "9: search_space.activation.choices": "values:",
    }
    *lines, last = answered(STUDY)
    assert len(lines) == len(expected)
    for line, (word, advice) in zip(lines, expected.items(), strict=True):
        assert line.startswith(f"study.yaml:{word}: ")
        assert advice in line
    assert last.startswith("study.yaml:1: `program:` ")


def test_what_it_advises_is_a_search_space() -> None:
    space = loads(
        """\
name: sphere
objectives: [{metric: a, goal: minimize}, {metric: b, goal: maximize}]
run_cap: 20
search: {method: random}
program: {command: [python, train.py, "${overrides}"]}
parameters:
  lr: {min: 1.0e-5, max: 0.1, distribution: log_uniform_values}
  activation: {values: [relu, gelu]}
""",
        "space.yaml",
    )
    assert [parameter.name for parameter in space.parameters] == ["lr", "activation"]


@pytest.mark.parametrize("sampler", ["TPESampler", "{name: GPSampler}", "[a]", "null"])
def test_samplers_that_learn_and_unknown_ones_are_bayes(sampler: str) -> None:
    (line, *_) = answered(f"sampler: {sampler}\nparameters: {{}}")
    assert line.endswith("{method: bayes}")


def test_a_hydra_application_keeps_its_configuration() -> None:
    (line,) = answered(APPLICATION)
    assert line.startswith("study.yaml:3: ")
    assert "hydra/sweeper=stagesweep" in line
