"""A program's own defaults, and the sweep whose first trial has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeps.experiment import Experiment
from sweeps.operations.creation import create_sweep
from sweeps.operations.opening import new_store
from sweeps.programs.kinds import program_of
from sweeps.space.definition import Space
from sweeps.space.space_file import loads
from trainer.api import Composition

SPACE = """\
name: defaults
objectives: [{metric: final_loss}]
program: {trainer: {overrides: [model=tiny, data=stdlib]}}
parameters:
  stage1_9.optimizer.lr:  {min: 1.0e-4, max: 1.0e-1, distribution: log_uniform_values}
  stage2.optimizer.lr:    {min: 1.0e-4, max: 1.0e-1, distribution: log_uniform_values}
  stage1_9.max_steps:     {value: 40}
  stage2.max_steps:       {value: 40}
"""


def space(text: str = SPACE) -> Space:
    return loads(text, "defaults.yaml")


def composed(key: str, *overrides: str) -> Any:
    value: Any = Composition(["model=tiny", "data=stdlib", *overrides]).config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_the_trainers_defaults_are_those_of_its_configuration() -> None:
    found = program_of(space()).defaults()
    assert found == {
        key: composed(key, "stage1_9.max_steps=40", "stage2.max_steps=40")
        for key in ("stage1_9.optimizer.lr", "stage2.optimizer.lr")
    }


def test_a_key_that_leads_to_a_section_has_none() -> None:
    text = SPACE.replace(
        "  stage1_9.max_steps:", "  stage2.optimizer: {values: [a, b]}\n  stage1_9.max_steps:"
    )
    assert "stage2.optimizer" not in program_of(space(text)).defaults()


def test_other_programs_have_none() -> None:
    function = loads(
        SPACE.replace("{trainer: {overrides: [model=tiny, data=stdlib]}}", "{function: 'm:f'}"), "x"
    )
    assert program_of(function).defaults() == {}


@pytest.mark.parametrize("wanted", [True, False])
def test_the_first_trial_of_a_new_sweep_has_them(tmp_path: Path, wanted: bool) -> None:
    notices: list[str] = []
    found = space(SPACE if wanted else f"{SPACE}baseline: none\n")
    experiment = create_sweep(found, str(tmp_path), skip_if_exists=False, on_notice=notices.append)
    baseline = experiment.space.baseline or {}
    assert baseline.get("stage2.optimizer.lr") == (composed("stage2.optimizer.lr") if wanted else None)
    assert any("the first trial has the trainer's defaults" in line for line in notices) == wanted


def test_stated_defaults_of_a_function_are_noticed(tmp_path: Path) -> None:
    notices: list[str] = []
    text = (
        "name: f\nobjectives: [{metric: loss}]\nprogram: {function: 'objectives_for_tests:paraboloid'}\n"
        "parameters: {x: {min: 0.0, max: 1.0, default: 0.2}}\n"
        "search: {stop: {expected_gain: 0.1}}\nrun_cap: 20\n"
    )
    create_sweep(loads(text, "x"), str(tmp_path), skip_if_exists=False, on_notice=notices.append)
    assert [line.partition(";")[0] for line in notices if "first trial" in line] == [
        "the first trial has the stated defaults"
    ]
    assert any("search.stop is judged from 30 results on" in line for line in notices)


def test_a_sweep_made_before_is_the_same_sweep(tmp_path: Path) -> None:
    """What versions before have stored: no baseline, and nothing about defaults."""
    store = new_store(str(tmp_path), "defaults")
    before = program_of(space()).complete()
    Experiment.create(store, before)
    found = create_sweep(space(), str(tmp_path), skip_if_exists=True, on_notice=lambda _: None)
    assert found.space.baseline is None
