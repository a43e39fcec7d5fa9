"""Spaces and configurations from Python values, words and files: typed, completed, refused like a file's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import golden_messages
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
    others = MappingProxyType({"x": MappingProxyType({"values": (Path("a/b"), np.array("c"))})})
    assert space_of(DOCUMENT | {"parameters": others}, "here").parameter("x").values == ("a/b", "c")
    function = space_of(DOCUMENT | {"program": {"function": "a:b"}}, "here").program
    assert function.function == "a:b"


@pytest.mark.parametrize(
    ("parent", "on"),
    [
        ({"values": [1, 2.5], "when": {1: ["lr"]}}, 1),
        ({"values": [1, 2.5], "when": {2.5: ["lr"]}}, 2.5),
        ({"values": [1, 2], "when": {1.0: ["lr"]}}, 1),
        ({"values": ["1", "2"], "when": {1: ["lr"]}}, "1"),
        ({"min": 0, "max": 3, "when": {0: ["lr"]}}, 0),
        ({"min": -3, "max": 3, "when": {-1: ["lr"]}}, -1),
    ],
    ids=str,
)
def test_conditions_have_numbers_for_keys(parent, on):
    parameters = {"a": parent, "lr": {"min": 0.1, "max": 1.0}}
    found = space_of(DOCUMENT | {"parameters": parameters}, "here")
    assert "lr" in found.active({"a": on})
    assert "lr" not in found.active({"a": 2})


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


def test_values_that_do_not_fit_are_refused_as_the_page_says(given):
    mistakes = (
        *({"lrr": 1}, {"lr": 1.0}, {"layers": 2.5}, {"layers": float("nan")}, {"opt": "adamw"}),
        *({"momentum": 0.1}, {"lr": None}, {"lr": [1]}, {"lr": {1}}, {"mode": "no"}),
    )
    calls = {f"{values}": partial(configuration, given, values, "here") for values in mistakes}
    golden_messages.compare_refusals("Values of a trial", SpaceError, calls)


def test_words_have_the_parameters_type(given):
    words = ["lr=1e-3", "layers=4", "opt=1e-3", "flag=false", "mode='yes'"]
    assert configuration_of_words(given, words, "here") == {
        "lr": 1e-3,
        "layers": 4,
        "opt": "1e-3",
        "flag": False,
        "mode": "yes",
    }
    odd = space_of(DOCUMENT | {"parameters": {"t": {"values": ["", "~", "x", "2"]}}}, "here")
    words = ("", "~", "x", '"x"', "2", "'2'")
    assert [configuration_of_words(odd, [f"t={word}"], "here")["t"] for word in words] == [
        *("", "~", "x", "x", "2", "2")
    ]


def test_wrong_words_are_refused_as_the_page_says(given):
    mistakes = (["lr"], ["lr=1e-3", "lr=2e-3"], ["lr=high"], ["opt=a: b # c"], ["layers="])
    calls = {
        f"`{' '.join(words)}`": partial(configuration_of_words, given, words, "here") for words in mistakes
    }
    golden_messages.compare_refusals("Words of a trial", SpaceError, calls)


def test_a_file_has_one_trial_or_a_list(given, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("- {layers: 2}\n- layers: 3\n  opt: sgd\n")
    assert [found["layers"] for found in configurations_of_file(given, file)] == [2, 3]
    file.write_text('{"layers": 5}')
    assert [found["layers"] for found in configurations_of_file(given, file)] == [5]


def test_wrong_files_are_refused_as_the_page_says(given):
    calls = {}
    for nth, text in enumerate(("- {layers: 2}\n- {layers: 20}\n", "layers", "[]", "- {layers: 2\n", None)):
        file = Path(f"own{nth}.yaml")
        if text is not None:
            file.write_text(text)
        calls[f"{text!r}" if text else "no file"] = partial(configurations_of_file, given, file)
    golden_messages.compare_refusals("Files of trials", SpaceError, calls)
