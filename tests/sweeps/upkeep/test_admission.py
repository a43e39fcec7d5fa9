"""Rows against the space: accepted values, and every problem of a table."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from sweeps.space.definition import Choice, Fixed, Range
from sweeps.space.domain import Domain
from sweeps.upkeep.admission import admit
from sweeps.upkeep.tables import Row, Table, TableError


@pytest.fixture
def rich_space(space):
    """One parameter of every kind, a conditional one, both sorts of constraints."""
    return replace(
        space,
        parameters=(
            Range(name="lr", min=1e-4, max=1e-1, kind="float", log=True),
            Range(name="a", min=0, max=100, kind="int"),
            Range(name="b", min=0, max=100, kind="int"),
            Choice(name="saliency", values=(True, False), when=((True, ("k",)),)),
            Choice(name="k", values=(0.05, 0.1, 0.2), ordered=True),
            Choice(name="optimizer", values=("muon", "adamw")),
            Fixed(name="stage2.steps", value=200),
        ),
        parameter_constraints=("a + b <= 100",),
        outcome_constraints=("memory_gib <= 40",),
    )


GOOD = {
    "param.lr": "0.003",
    "a": "60",
    "b": "40.0",
    "saliency": "True",
    "k": "0.1",
    "optimizer": "muon",
    "loss": "3.25",
    "memory_gib": "12",
}


def table(*rows, numbers_from=2) -> Table:
    columns = dict.fromkeys(name for row in rows for name in row)
    return Table(
        file="t.csv",
        columns=tuple(columns),
        rows=tuple(
            Row(number=number, cells=MappingProxyType(dict(row)))
            for number, row in enumerate(rows, numbers_from)
        ),
    )


def test_text_becomes_the_types_of_the_space_in_its_order(rich_space):
    (result,) = admit(table(GOOD), rich_space).results
    assert list(result.parameters.items()) == [
        ("lr", 0.003),
        ("a", 60),
        ("b", 40),
        ("saliency", True),
        ("k", 0.1),
        ("optimizer", "muon"),
        ("stage2.steps", 200),
    ]
    assert [type(value) for value in result.parameters.values()] == [float, int, int, bool, float, str, int]
    assert dict(result.metrics) == {"loss": 3.25, "memory_gib": 12}


def test_what_is_switched_off_is_left_out(rich_space):
    (result,) = admit(table(GOOD | {"saliency": "false", "k": None}), rich_space).results
    assert "k" not in result.parameters
    assert result.parameters["saliency"] is False


@pytest.mark.parametrize("blank", [None, ""])
def test_empty_cell_is_the_value_that_is_written_so(rich_space, blank):
    with_blank = replace(
        rich_space, parameters=(*rich_space.parameters, Choice(name="prefix", values=(blank, "the ")))
    )
    results = admit(table(GOOD | {"prefix": None}, GOOD | {"prefix": "the"}), with_blank).results
    assert [result.parameters["prefix"] for result in results] == [blank, "the "]


def test_further_numbers_come_along_and_notes_do_not(rich_space):
    extra = {"usd": "0.5", "comment": "good", "metric.seconds": 3.0, "seconds": 9, "tokens": float("inf")}
    (result,) = admit(table(GOOD | extra), rich_space).results
    assert dict(result.metrics) == {
        "loss": 3.25,
        "memory_gib": 12,
        "usd": 0.5,
        "seconds": 3.0,
        "tokens": None,
    }


def test_metric_may_have_the_name_of_a_parameter(rich_space):
    (result,) = admit(table(GOOD | {"param.a": 1, "a": 7.5}), rich_space).results
    assert (result.parameters["a"], result.metrics["a"]) == (1, 7.5)


def test_rows_that_did_not_complete_are_counted_and_not_judged(rich_space):
    rows = [GOOD | {"status": "completed"}, {"status": "failed", "loss": None}, {"status": "running"}]
    admitted = admit(table(*rows), rich_space)
    assert len(admitted.results) == 1
    assert dict(admitted.left_out) == {"failed": 1, "running": 1}


BAD_ROWS = {
    "text for a number": ({"param.lr": "fast"}, "param.lr: 'fast' is not a finite number"),
    "nan": ({"param.lr": "nan"}, "param.lr: 'nan' is not a finite number"),
    "infinity": ({"a": "inf"}, "a: 'inf' is not a finite number"),
    "huge": ({"a": 10**400}, "is not a finite number"),
    "digits with underscores": ({"a": "1_0"}, "a: '1_0' is not a finite number"),
    "true for a number": ({"a": True}, "a: True is not a finite number"),
    "below the range": ({"param.lr": "1e-5"}, "param.lr: 1e-05 is outside of 0.0001 to 0.1"),
    "above the range": ({"b": 101}, "b: 101 is outside of 0 to 100"),
    "half a step": ({"a": "2.5"}, "a: 2.5 is not a whole number"),
    "unknown choice": ({"optimizer": "sgd"}, "optimizer: sgd is not among its values (muon, adamw)"),
    "number for a boolean": ({"saliency": "1"}, "saliency: 1 is not among its values (true, false)"),
    "number near a choice": ({"k": "0.11"}, "k: 0.11 is not among its values (0.05, 0.1, 0.2)"),
    "another fixed value": ({"stage2.steps": 100}, "stage2.steps: 100 is not among its values (200)"),
    "empty": ({"a": None}, "a: empty, but the trial had a value for it"),
    "empty, though switched on": ({"k": None}, "k: empty, but the trial had a value for it"),
    "given, though switched off": ({"saliency": "false"}, "k: switched off unless saliency is true"),
    "against a constraint": ({"a": 61}, "breaks `a + b <= 100` of the search space (a = 61, b = 40)"),
    "no objective": ({"loss": None}, "loss: empty"),
    "objective is NaN": ({"loss": float("nan")}, "loss: nan is not a finite number"),
    "objective is text": ({"loss": "low"}, "loss: 'low' is not a finite number"),
    "no constrained metric": ({"memory_gib": ""}, "memory_gib: '' is not a finite number"),
    "unknown status": ({"status": "done"}, "status: 'done' is none of pending, running"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_misfit_is_reported_with_file_row_and_column(rich_space, case):
    change, problem = BAD_ROWS[case]
    with pytest.raises(TableError) as caught:
        admit(table(GOOD, GOOD | change), rich_space)
    (reported,) = caught.value.problems
    assert reported.startswith("t.csv:3: ")
    assert problem in reported
    assert str(caught.value) == reported


BAD_COLUMNS = {
    "unknown parameter": (
        {"param.lrr": 1},
        "t.csv: param.lrr: not among the sweep's parameters; did you mean `lr`?",
    ),
    "two columns for a metric": ({"metric.loss": 1}, "t.csv: metric.loss: says the same as loss"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_a_column_that_does_not_fit_is_reported(rich_space, case):
    change, problem = BAD_COLUMNS[case]
    with pytest.raises(TableError) as caught:
        admit(table(GOOD | change), rich_space)
    assert caught.value.problems[0].startswith(problem)


def test_all_missing_required_columns_are_reported(rich_space):
    with pytest.raises(TableError) as caught:
        admit(table({"k": 0.1}), rich_space)
    reported = [problem.split(" (")[0] for problem in caught.value.problems]
    missing = ["param.lr", "param.a", "param.b", "param.saliency", "param.optimizer", "loss", "memory_gib"]
    assert reported == [f"t.csv: no column {name}" for name in missing]


def test_every_problem_has_its_own_line(rich_space):
    with pytest.raises(TableError) as caught:
        admit(table(*[GOOD | {"a": -1, "loss": None}] * 30), rich_space)
    assert len(caught.value.problems) == 60
    lines = str(caught.value).splitlines()
    assert "60" in lines[0]
    assert len(lines) == 22
    assert lines[-1] == "  … and 40 more"


@pytest.mark.parametrize("name", ["seed", "random_state", "data.seed"])
@pytest.mark.parametrize("declared", [True, False], ids=["fixed", "not among the parameters"])
def test_a_repeat_keeps_its_seed(space, declared, name):
    """The table of a confirmed sweep can be imported into another, where its repeats are repeats again."""
    if declared:
        space = replace(space, parameters=(*space.parameters, Fixed(name=name, value=0)))
    row = {"param.x": "0.5", "param.n": "3", "loss": "3.25", "param.eval.test": "True"}
    results = admit(table(row | {f"param.{name}": "199713"}, row | {f"param.{name}": None}), space).results
    assert [result.parameters.get(name) for result in results] == [199713, 0 if declared else None]
    assert results[0].parameters["eval.test"] is True
    first, second = (Domain(space).configuration(result.parameters) for result in results)
    assert first == second
    assert Domain(space).misfit(first) is None


def test_a_seed_that_is_a_text_stays_one(space):
    space = replace(space, parameters=(*space.parameters, Fixed(name="data.seed", value="007")))
    row = {"param.x": "0.5", "param.n": "3", "loss": "3.25", "param.data.seed": "007"}
    (result,) = admit(table(row), space).results
    assert result.parameters["data.seed"] == "007"


@pytest.mark.parametrize("text", ["None", "none"])
def test_a_text_that_may_stand_for_null_is_itself_where_it_is_a_value(space, text):
    named = replace(space, parameters=(Choice(name="c", values=(None, text)),))
    rows = [{"c": cell, "loss": "1"} for cell in (text, "null", None, "NONE")]
    assert [result.parameters["c"] for result in admit(table(*rows), named).results] == [
        text, None, None, None,
    ]  # fmt: skip
