"""`trunk:` of a stage in a search space file: what is read, and what is refused."""

from __future__ import annotations

from malformed_space import Case, compare

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


# fmt: off
CASES = [
    Case("word", "{length: a.steps, decay: a.decay}", "a.steps", 14, "stages[0].trunk"),
    Case("no_length", "length: a.steps, ", "", 14, "stages[0].trunk"),
    Case("no_decay", ", decay: a.decay", "", 14, "stages[0].trunk"),
    Case("steps", "length: a.steps", "steps: a.steps", 14, "stages[0].trunk.steps"),
    Case("every", "a.decay}", "a.decay, every: 3}", 14, "stages[0].trunk.every"),
    Case("misspelt", "length: a.steps", "length: a.step", 14, "stages[0].trunk.length"),
    Case("number", "length: a.steps", "length: 30", 14, "stages[0].trunk.length"),
    Case("float", "length: a.steps", "length: a.decay", 14, "stages[0].trunk.length"),
    Case("choice", "length: a.steps", "length: a.gate", 14, "stages[0].trunk.length"),
    Case("conditional", "length: a.steps", "length: a.k", 14, "stages[0].trunk.length"),
    Case("of_another_stage", "length: a.steps", "length: b.steps", 14, "stages[0].trunk.length"),
    Case("fixed", "length: a.steps", "length: b.fixed", 14, "stages[0].trunk.length"),
    Case("above_1", "decay: a.decay", "decay: 1.5", 14, "stages[0].trunk.decay"),
    Case("below_0", "decay: a.decay", "decay: -0.1", 14, "stages[0].trunk.decay"),
    Case("nan", "decay: a.decay", "decay: .nan", 14, "stages[0].trunk.decay"),
    Case("boolean", "decay: a.decay", "decay: true", 14, "stages[0].trunk.decay"),
    Case("misspelt_decay", "decay: a.decay", "decay: a.dekay", 14, "stages[0].trunk.decay"),
    Case("integer_decay", "decay: a.decay", "decay: a.steps", 14, "stages[0].trunk.decay"),
    Case("decay_above_1", "decay: a.decay", "decay: b.lr", 14, "stages[0].trunk.decay"),
    Case("of_a_later_stage", "decay: a.decay", "decay: b.share", 14, "stages[0].trunk.decay"),
    Case("choice_decay", "decay: a.decay", "decay: a.gate", 14, "stages[0].trunk.decay"),
]
# fmt: on


def test_each_is_refused_as_the_page_says() -> None:
    compare("Trunks of search spaces", BASE, CASES)
