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
program: {command: [python, train.py, "${overrides}"]}
parameters:
  lr: {type: float, low: 1.0e-5, high: 0.1, log: true}
  activation: {choices: [relu, gelu]}
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
        "1: study_name": "name:",
        "2: directions": "objectives: [{metric: LOSS, goal: minimize}]",
        "3: n_trials": "run_cap:",
        "4: sampler": "search: {method: bayes}, random or grid",
        "5: pruner": "early_terminate: {type: median}",
        "6: n_jobs": "sweep launch local --workers N",
        "9: parameters.lr.type": "the type follows from the values",
        "9: parameters.lr.low": "min:",
        "9: parameters.lr.high": "max:",
        "9: parameters.lr.log": "distribution: log_uniform_values",
        "10: parameters.activation.choices": "values:",
    }
    lines = answered(STUDY)
    assert len(lines) == len(expected)
    for line, (word, advice) in zip(lines, expected.items(), strict=True):
        assert line.startswith(f"study.yaml:{word}: ")
        assert advice in line


def test_a_hydra_application_keeps_its_configuration() -> None:
    (line,) = answered(APPLICATION)
    assert line.startswith("study.yaml:3: ")
    assert "hydra/sweeper=stagesweep" in line
