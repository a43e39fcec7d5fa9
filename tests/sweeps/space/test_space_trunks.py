"""`trunk:` of a stage in a search space file: what is read, and what is refused."""

from __future__ import annotations

import pytest

from sweeps.errors import SpaceError
from sweeps.space.definition import Trunk
from sweeps.space.space_file import loads
from sweeps.space.stages import Stages

BASE = """\
name: a
objectives: [{metric: loss}]
program: {command: [train, "${overrides}"]}
parameters:
  a.steps: {min: 10, max: 60}
  a.decay: {min: 0.1, max: 0.5}
  a.gate: {values: [true, false], when: {true: [a.k]}}
  a.k: {min: 1, max: 5}
  b.lr: {min: 0.1, max: 2.0}
  b.steps: {values: [10, 20], ordered: true}
  b.share: {value: 0.25}
  b.fixed: {value: 30}
stages:
  - {name: one, parameters: ["a.*"], trunk: {length: a.steps, decay: a.decay}}
  - {name: two, parameters: ["b.*"], trunk: {length: b.steps, decay: 0.15}}
"""


def test_trunks_are_read() -> None:
    space = loads(BASE, "x.yaml")
    assert [stage.trunk for stage in space.stages] == [
        Trunk(length="a.steps", decay="a.decay"),
        Trunk(length="b.steps", decay=0.15),
    ]
    fixed = loads(BASE.replace("decay: 0.15", "decay: b.share"), "x.yaml")
    assert fixed.stages[1].trunk == Trunk(length="b.steps", decay="b.share")
    earlier = loads(BASE.replace("decay: 0.15", "decay: a.decay"), "x.yaml")
    assert earlier.stages[1].trunk == Trunk(length="b.steps", decay="a.decay")


def test_a_trunk_of_the_first_stage_alone_is_something_to_share() -> None:
    text = BASE.replace(
        "{min: 0.1, max: 2.0}\n  b.steps: {values: [10, 20], ordered: true}",
        "{value: 1}\n  b.steps: {value: 2}",
    ).replace(", trunk: {length: b.steps, decay: 0.15}", "")
    stages = Stages(loads(text, "x.yaml"))
    assert stages.shared
    assert not stages.later
    assert not Stages(loads(text.replace(", trunk: {length: a.steps, decay: a.decay}", ""), "x.yaml")).shared


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("{length: a.steps, decay: a.decay}", "a.steps", "", "`key: value` pairs"),
        ("length: a.steps, ", "", "", "`length:` is missing"),
        (", decay: a.decay", "", "", "`decay:` is missing"),
        ("length: a.steps", "steps: a.steps", ".steps", "write length:"),
        ("a.decay}", "a.decay, every: 3}", ".every", "the program itself decides"),
        ("length: a.steps", "length: a.step", ".length", "did you mean `a.steps`?"),
        ("length: a.steps", "length: 30", ".length", "`30` is not among the parameters"),
        ("length: a.steps", "length: a.decay", ".length", "must be integers from 0"),
        ("length: a.steps", "length: a.gate", ".length", "must be integers from 0"),
        ("length: a.steps", "length: a.k", ".length", "depends on a condition"),
        ("length: a.steps", "length: b.steps", ".length", "belongs to the stage two"),
        ("length: a.steps", "length: b.fixed", ".length", "is fixed"),
        ("decay: a.decay", "decay: 1.5", ".decay", "1.5 is no share of the steps"),
        ("decay: a.decay", "decay: -0.1", ".decay", "is no share of the steps"),
        ("decay: a.decay", "decay: .nan", ".decay", "not a finite number"),
        ("decay: a.decay", "decay: true", ".decay", "not a number"),
        ("decay: a.decay", "decay: a.dekay", ".decay", "did you mean `a.decay`?"),
        ("decay: a.decay", "decay: a.steps", ".decay", "a number from 0 to 1"),
        ("decay: a.decay", "decay: b.lr", ".decay", "can be 2.0"),
        ("decay: a.decay", "decay: b.share", ".decay", "belongs to a later stage, two"),
        ("decay: a.decay", "decay: a.gate", ".decay", "a number from 0 to 1"),
    ],
)
def test_it_is_refused_in_one_line(old: str, new: str, key: str, says: str) -> None:
    assert old in BASE
    with pytest.raises(SpaceError) as caught:
        loads(BASE.replace(old, new, 1), "x.yaml")
    assert (caught.value.line, caught.value.key) == (14, f"stages[0].trunk{key}"), str(caught.value)
    assert says in caught.value.problem
    assert "\n" not in str(caught.value)
