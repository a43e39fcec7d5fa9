"""Spaces and configurations from Python values, words and files: typed, completed, refused like a file's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sweeps.errors import SpaceError
from sweeps.space.definition import Choice, Fixed, Range
from sweeps.space.literals import (
    CALLER,
    configuration,
    configuration_of_words,
    configurations_of_file,
    space_of,
)

DOCUMENT = {
    "name": "given",
    "objectives": [{"metric": "loss"}],
    "parameters": {
        "lr": {"min": 1e-4, "max": 1e-2, "distribution": "log_uniform_values"},
        "layers": {"min": 1, "max": 9},
        "opt": {"values": ["adam", "sgd", "1e-3"], "when": {"sgd": ["momentum"]}},
        "momentum": {"min": 0.0, "max": 0.9},
        "flag": {"values": [True, False]},
        "mode": {"value": "yes"},
    },
}


@pytest.fixture
def given():
    return space_of(DOCUMENT, "here")


def test_a_document_is_read_as_a_file_is(given):
    assert given.program == CALLER
    assert given.parameters[0] == Range(name="lr", min=1e-4, max=1e-2, kind="float", log=True)
    assert given.parameter("flag") == Choice(name="flag", values=(True, False))
    assert given.parameter("mode") == Fixed(name="mode", value="yes")
    of_numpy = {"x": {"values": (np.int64(1), np.int64(3))}}
    assert space_of(DOCUMENT | {"parameters": of_numpy}, "here").parameter("x").values == (1, 3)
    function = space_of(DOCUMENT | {"program": {"function": "a:b"}}, "here").program
    assert function.function == "a:b"


def test_what_is_left_out_is_the_middle_or_the_baselines(given):
    assert configuration(given, {"layers": 3}, "here") == {
        "lr": pytest.approx(1e-3),
        "layers": 3,
        "opt": "adam",
        "flag": True,
        "mode": "yes",
    }
    based = replace(
        given, baseline={"lr": 5e-3, "layers": 2, "opt": "sgd", "momentum": 0.5, "flag": False, "mode": "yes"}
    )
    assert configuration(based, {"layers": 4}, "here") == based.baseline | {"layers": 4}
    without = configuration(based, {"opt": "adam"}, "here")
    assert "momentum" not in without  # it is switched off now
    assert without["lr"] == 5e-3


def test_numbers_of_other_libraries_are_taken(given):
    found = configuration(given, {"lr": np.float32(0.001), "layers": np.int64(2)}, "here")
    assert (type(found["lr"]), type(found["layers"])) == (float, int)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lrr": 1}, "here: lrr: not among the parameters; did you mean `lr`?"),
        ({"lr": 1.0}, "here: lr: `1.0` is outside of 0.0001 to 0.01"),
        ({"layers": 2.5}, "here: layers: `2.5` is not an integer"),
        ({"layers": float("nan")}, "here: layers: "),
        ({"opt": "adamw"}, "here: opt: `adamw` is not among its values"),
        ({"momentum": 0.1}, "here: momentum: it is switched off unless opt is sgd"),
        ({"lr": None}, "here: lr: has no value"),
        ({"lr": [1]}, "here: lr: expected one number"),
        ({"lr": {1}}, "here: set cannot be written down"),
        ({"mode": "no"}, "here: mode: `no` is not among its values"),
    ],
)
def test_a_value_that_does_not_fit_is_one_line(given, values, message):
    with pytest.raises(SpaceError) as caught:
        configuration(given, values, "here")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_words_have_the_parameters_type(given):
    words = ["lr=1e-3", "layers=4", "opt=1e-3", "flag=false", "mode='yes'"]
    assert configuration_of_words(given, words, "here") == {
        "lr": 1e-3,
        "layers": 4,
        "opt": "1e-3",
        "flag": False,
        "mode": "yes",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr"], "here: 'lr' is not an override; write key=value"),
        (["lr=1e-3", "lr=2e-3"], "here: lr: given twice; keep one"),
        (["lr=high"], "here: lr: `high` is not a number"),
        (["opt=a: b # c"], "here: opt: `a: b # c` is not among its values"),
        (["layers="], "here: layers: "),
    ],
)
def test_wrong_words_are_one_line(given, words, message):
    with pytest.raises(SpaceError) as caught:
        configuration_of_words(given, words, "here")
    assert str(caught.value).startswith(message)


def test_a_file_has_one_trial_or_a_list(given, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("- {layers: 2}\n- layers: 3\n  opt: sgd\n")
    assert [found["layers"] for found in configurations_of_file(given, file)] == [2, 3]
    file.write_text('{"layers": 5}')
    assert [found["layers"] for found in configurations_of_file(given, file)] == [5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {layers: 2}\n- {layers: 20}\n", "own.yaml:2: [1].layers: `20` is outside of 1 to 9"),
        ("layers", "own.yaml:1: write a list of trials"),
        ("[]", "own.yaml:1: the list is empty"),
        ("- {layers: 2\n", "own.yaml:"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_place(given, tmp_path, text, message):
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(SpaceError) as caught:
        configurations_of_file(given, file)
    assert message in str(caught.value)
    with pytest.raises(SpaceError, match=r"nothere.yaml: "):
        configurations_of_file(given, tmp_path / "nothere.yaml")
