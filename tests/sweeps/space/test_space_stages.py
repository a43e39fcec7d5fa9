"""`stages:`, `snapshots:` and `search.reuse` of a search space file: what is read, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from malformed_space import Case, compare

from sweeps.errors import SpaceError
from sweeps.space import space_json
from sweeps.space.definition import Snapshots, Space, Stage
from sweeps.space.domain import Domain
from sweeps.space.space_file import loads
from sweeps.space.stages import Stages

HEAD = """\
name: a
objectives: [{metric: loss}]
program: {command: [train, "${overrides}"]}
parameters:
  seed: {value: 1}
  a.steps: {min: 10, max: 60}
  a.gate: {values: [true, false], when: {true: [a.k]}}
  a.k: {min: 0.0, max: 1.0}
  b.lr: {min: 0.1, max: 1.0}
  b.steps: {values: [20, 10]}
  b.kind: {values: [x, y]}
"""
FIRST = '  - {name: stage1_9, parameters: ["a.*", seed], cost: "2*a.steps"}'
SECOND = '  - {name: stage2, parameters: ["b.*"], cost: b.steps}'
BASE = f"{HEAD}stages:\n{FIRST}\n{SECOND}\n"


def parsed(rest: str) -> Space:
    return loads(HEAD + rest, "x.yaml")


MINUS = """\
name: a
objectives: [{metric: loss}]
program: {command: [train, "${args}"]}
parameters:
  weight-decay: {min: 0.0, max: 1.0}
  warm-up: {min: 1, max: 100}
  steps: {min: 1, max: 100}
parameter_constraints: ["weight-decay <= 0.5", "2*warm-up - steps <= 100"]
stages:
  - {name: first, parameters: [warm-up], cost: 2*warm-up + 1}
  - {name: second, parameters: ["*"], cost: steps}
search: {method: random}
baseline: {warm-up: 9, steps: 9}
"""


def test_names_with_a_minus_may_stand_in_constraints_and_costs() -> None:
    space = loads(MINUS, "x.yaml")
    assert space.parameter("weight-decay").max == 0.5
    assert space_json.from_json(space_json.to_json(space)) == space
    assert space_json.problem(space) is None
    (constraint,) = Domain(space).constraints
    assert constraint.coefficients == {"warm-up": 2.0, "steps": -1.0}
    assert Stages(space).costs({"weight-decay": 0.1, "warm-up": 3, "steps": 4}) == {
        "first": 7.0,
        "second": 4.0,
    }
    with pytest.raises(SpaceError, match=r"breaks `2\*warm-up - steps <= 100`"):
        loads(MINUS.replace("{warm-up: 9, steps: 9}", "{warm-up: 99, steps: 1}"), "x.yaml")


def test_stages_are_read_in_order_with_their_patterns_and_costs() -> None:
    space = loads(BASE, "x.yaml")
    assert space.stages == (
        Stage(name="stage1_9", parameters=("a.*", "seed"), cost="2*a.steps"),
        Stage(name="stage2", parameters=("b.*",), cost="b.steps"),
    )
    stages = Stages(space)
    assert stages.shared
    assert stages.costs({"a.steps": 30, "b.steps": 10}) == {"stage1_9": 60.0, "stage2": 10.0}


@pytest.mark.parametrize(
    ("cost", "expected"),
    [("100", 100.0), ("1e2", 100.0), ("0", 0.0), ('"60 - a.steps"', 30.0), ('"seed + a.steps/10"', 4.0)],
)
def test_a_cost_is_a_number_or_an_expression(cost: str, expected: float) -> None:
    space = loads(BASE.replace('"2*a.steps"', cost), "x.yaml")
    costs = Stages(space).costs({"seed": 1, "a.steps": 30, "b.steps": 10})
    assert costs == {"stage1_9": pytest.approx(expected), "stage2": 10.0}


def test_without_costs_they_are_modelled() -> None:
    text = BASE.replace(', cost: "2*a.steps"', "").replace(", cost: b.steps", "")
    assert Stages(loads(text, "x.yaml")).costs({"a.steps": 30, "b.steps": 10}) is None


def test_a_parameter_belongs_to_the_first_stage_that_matches_it() -> None:
    last = "  - {name: stage2, parameters: ['*']}"
    text = f'{HEAD}stages:\n  - {{name: stage1, parameters: ["*.steps", a.k, a.gate]}}\n{last}\n'
    stages = Stages(loads(text, "x.yaml"))
    positions = {name: stages.position(name) for name in ("a.steps", "b.steps", "a.k", "b.lr", "seed")}
    assert positions == {"a.steps": 0, "b.steps": 0, "a.k": 0, "b.lr": 1, "seed": 1}


def test_a_stage_may_be_the_same_in_all_trials() -> None:
    text = f"{HEAD}stages:\n  - {{name: data, parameters: []}}\n  - {{name: rest, parameters: ['*']}}\n"
    stages = Stages(loads(text, "x.yaml"))
    assert stages.shared
    assert stages.end_identity({"a.steps": 30}) == stages.end_identity({"a.steps": 31})


def test_reuse_is_auto_unless_it_is_switched_off() -> None:
    assert parsed("").search.reuse == parsed("search: {reuse: auto}").search.reuse == "auto"
    off = loads(f"{BASE}search: {{reuse: none}}\n", "x.yaml")
    assert off.search.reuse == "none"
    assert not Stages(off).shared


def test_a_grid_may_share_stages() -> None:
    text = BASE.replace("{min: 0.0, max: 1.0}", "{values: [1, 2]}").replace(
        "{min: 0.1, max: 1.0}", "{value: 1}"
    )
    assert Stages(loads(f"{text}search: {{method: grid, reuse: auto}}\n", "x.yaml")).shared


def test_snapshots_have_limits() -> None:
    assert loads(BASE, "x.yaml").snapshots == Snapshots(keep=8, keep_gib=None)
    limited = loads(f"{BASE}snapshots: {{keep: 3, keep_gib: 40}}\n", "x.yaml")
    assert limited.snapshots == Snapshots(keep=3, keep_gib=40.0)
    trainer = HEAD.replace('{command: [train, "${overrides}"]}', "{trainer: }").replace(
        "a.steps", "stage2.max_steps"
    )
    assert loads(f"{trainer}snapshots: {{keep: 1}}\n", "x.yaml").snapshots.keep == 1


COST_1, COST_2 = "stages[0].cost", "stages[1].cost"
# fmt: off
CASES = [
    # the list and its entries
    Case("mapping", f"{FIRST}\n{SECOND}", "  stage1_9: 3", 13, "stages"),
    Case("trainer", '{command: [train, "${overrides}"]}', "{trainer: }", 13, "stages"),
    Case("one_stage", f"{SECOND}\n", "", 13, "stages"),
    Case("entry_is_word", SECOND, "  - stage2", 14, "stages[1]"),
    Case("unknown_key", "cost: b.steps", "costs: b.steps", 14, "stages[1].costs"),
    Case("no_name", "name: stage2, ", "", 14, "stages[1]"),
    Case("no_parameters", ', parameters: ["b.*"]', "", 14, "stages[1]"),
    # names
    Case("slash", "stage1_9,", "a/b,", 13, "stages[0].name"),
    Case("dots", "stage1_9,", "..,", 13, "stages[0].name"),
    Case("equal", "name: stage2", "name: stage1_9", 14, "stages[1].name"),
    Case("equal_but_case", "name: stage2", "name: Stage1_9", 14, "stages[1].name"),
    # patterns
    Case("forgotten", ", seed]", "]", 13, "stages"),
    Case("nothing", '"b.*"', '"b.*", "c.*"', 14, "stages[1].parameters[1]"),
    Case("misspelt", ", seed", ", sede", 13, "stages[0].parameters[1]"),
    Case("prefix", '"a.*"', "a", 13, "stages[0].parameters[0]"),
    Case("in_two", '"b.*"', '"b.*", seed', 14, "stages[1].parameters[1]"),
    Case("all_taken", '"a.*"', '"*"', 14, "stages[1].parameters[0]"),
    Case("other_wildcard", '"a.*"', '"[ab].*"', 13, "stages[0].parameters[0]"),
    Case("patterns_are_text", '["b.*"]', "b.*", 14, "stages[1].parameters"),
    # costs
    Case("one_cost", ", cost: b.steps", "", 14, "stages[1]"),
    Case("no_value", "cost: b.steps", "cost: ", 14, COST_2),
    Case("unknown_name", "2*a.steps", "2*a.step", 13, COST_1),
    Case("product", "2*a.steps", "a.steps*seed", 13, COST_1),
    Case("comparison", "2*a.steps", "a.steps <= 3", 13, COST_1),
    Case("boolean", "2*a.steps", "a.gate", 13, COST_1),
    Case("text", "cost: b.steps", "cost: b.kind", 14, COST_2),
    Case("conditional", "2*a.steps", "a.k", 13, COST_1),
    Case("of_a_later_stage", "2*a.steps", "b.steps", 13, COST_1),
    Case("negative", '"2*a.steps"', "-1", 13, COST_1),
    Case("negative_high", "2*a.steps", "50 - a.steps", 13, COST_1),
    Case("negative_low", "cost: b.steps", "cost: b.steps - 11", 14, COST_2),
    Case("infinite", "2*a.steps", "1e308*a.steps", 13, COST_1),
    Case("infinite_sum", "2*a.steps", "1e308 + 1e308", 13, COST_1),
    Case("nan", "2*a.steps", "nan", 13, COST_1),
    # search.reuse and snapshots
    Case("reuse", "", "search: {reuse: always}\n", 15, "search.reuse"),
    Case("reuse_boolean", "", "search: {reuse: false}\n", 15, "search.reuse"),
    Case("reuse_alone", "", "reuse: none\n", 15, "reuse"),
    Case("keep_none", "", "snapshots: {keep: 0}\n", 15, "snapshots.keep"),
    Case("keep_half", "", "snapshots: {keep: 1.5}\n", 15, "snapshots.keep"),
    Case("no_gib", "", "snapshots: {keep_gib: 0}\n", 15, "snapshots.keep_gib"),
    Case("gib_nan", "", "snapshots: {keep_gib: .nan}\n", 15, "snapshots.keep_gib"),
    Case("keep_unknown", "", "snapshots: {kep: 3}\n", 15, "snapshots.kep"),
    Case("alone", f"stages:\n{FIRST}\n{SECOND}\n", "snapshots: {keep: 3}\n", 12, "snapshots"),
]
# fmt: on


def test_each_is_refused_as_the_page_says() -> None:
    compare("Stages of search spaces", BASE, CASES)


PIECES = [*'*[]{},"-\n', "a.*", ": ", "+ ", "1e308*", "-1e-320", "b.steps", "cost", "null"]


@given(
    st.lists(
        st.tuples(st.integers(0, 130), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=3
    )
)
def test_any_damage_is_read_or_refused(edits: list[tuple[int, int, str]]) -> None:
    text = BASE
    for position, length, piece in edits:
        start = len(HEAD) + len("stages:\n") + position
        text = text[:start] + piece + text[start + length :]
    refusal = ""
    try:
        space = loads(text, "x.yaml")
    except SpaceError as error:
        refusal = str(error)
    else:
        costs = Stages(space).costs({"seed": 1, "a.steps": 60, "b.steps": 20})
        assert costs is None or all(0 <= cost < float("inf") for cost in costs.values())
    assert all(line.startswith("x.yaml:") for line in refusal.splitlines())
