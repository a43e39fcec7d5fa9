"""Good search spaces: what each key means, what is filled in, and the files that ship with the project."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from sweeps.space.definition import (
    Brake,
    Budget,
    Choice,
    Condition,
    EarlyTerminate,
    Fixed,
    Lease,
    Objective,
    Parameter,
    Program,
    Range,
    Search,
    Space,
    Value,
)
from sweeps.space.overrides import to_overrides
from sweeps.space.scale import middle
from sweeps.space.space_file import load, loads
from sweeps.space.space_json import from_json, to_json

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "search_spaces").glob("*.yaml"))

COMPLETE = """\
name: stage1_9-stage2
objectives: [{metric: final_loss, goal: minimize}]
outcome_constraints: ["peak_memory_gib <= 40"]
program: {trainer: {overrides: [model=tiny, data=stdlib]}}
parameters:
  stage1_9.optimizer.lr:        {min: 1.0e-3, max: 8.0e-3, distribution: log_uniform_values}
  stage1_9.max_steps:           {min: 50, max: 1000, distribution: int_log_uniform}
  stage1_9.saliency.enabled:    {values: [true, false], when: {true: [stage1_9.saliency.initial_k]}}
  stage1_9.saliency.initial_k:  {values: [0.05, 0.1, 0.15, 0.2], ordered: true}
  stage2.max_steps:             {value: 200}
parameter_constraints: ["stage1_9.max_steps <= 1000"]
search: {method: bayes, sobol: 12, seed: 0}
run_cap: 30
baseline: {stage1_9.optimizer.lr: 3.0e-3}
lease: {heartbeat_s: 30, expire_s: 90, max_attempts: 3}
budget: {effective_steps: 1e5, device_hours: 20, usd: 24, wall_hours: 48}
early_terminate: {type: percentile, percentile: 25, min_trials: 8, min_step: 40}
"""


def space(parameters: str, rest: str = "") -> Space:
    head = "name: a\nobjectives: [{metric: loss}]\nprogram: {function: a.b:c}\n"
    return loads(f"{head}parameters:\n  {{z: {{min: 0, max: 1}}, {parameters}}}\n{rest}", "x.yaml")


def only(parameters: str) -> Parameter:
    return space(parameters).parameters[1]


def same(a: object, b: object) -> bool:
    """Equal, and bools, integers and floats told apart."""
    return repr(a) == repr(b)


def test_every_key_of_the_schema_becomes_a_value() -> None:
    complete = loads(COMPLETE, "x.yaml")
    assert dataclasses.replace(complete, baseline=None) == Space(
        name="stage1_9-stage2",
        objectives=(Objective(metric="final_loss", goal="minimize"),),
        outcome_constraints=("peak_memory_gib <= 40",),
        program=Program(kind="trainer", overrides=("model=tiny", "data=stdlib")),
        parameters=(
            Range(name="stage1_9.optimizer.lr", min=1e-3, max=8e-3, kind="float", log=True),
            Range(name="stage1_9.max_steps", min=50, max=1000, kind="int", log=True),
            Choice(
                name="stage1_9.saliency.enabled",
                values=(True, False),
                when=((True, ("stage1_9.saliency.initial_k",)),),
            ),
            Choice(name="stage1_9.saliency.initial_k", values=(0.05, 0.1, 0.15, 0.2), ordered=True),
            Fixed(name="stage2.max_steps", value=200),
        ),
        parameter_constraints=(),
        search=Search(method="bayes", sobol=12, seed=0),
        run_cap=30,
        lease=Lease(heartbeat_s=30, expire_s=90, max_attempts=3),
        budget=Budget(effective_steps=1e5, device_hours=20.0, usd=24.0, wall_hours=48.0),
        early_terminate=EarlyTerminate(type="percentile", percentile=25.0, min_trials=8, min_step=40.0),
    )
    assert complete.baseline == {
        "stage1_9.optimizer.lr": 3e-3,
        "stage1_9.max_steps": 224,
        "stage1_9.saliency.enabled": True,
        "stage1_9.saliency.initial_k": 0.1,
        "stage2.max_steps": 200,
    }


@pytest.mark.parametrize(
    ("written", "noise"), [("inferred", "inferred"), ("reported", "reported"), ("0.02", 0.02), ("1", 1.0)]
)
def test_the_noise_is_a_word_or_a_number(written: str, noise: str | float) -> None:
    assert space("y: {value: 1}", f"search: {{noise: {written}}}").search.noise == noise


def test_what_is_left_out_has_the_documented_default() -> None:
    assert space("y: {value: 1}") == Space(
        name="a",
        objectives=(Objective(metric="loss", goal="minimize"),),
        parameters=(Range(name="z", min=0, max=1, kind="int"), Fixed(name="y", value=1)),
        program=Program(kind="function", function="a.b:c"),
        search=Search(method="bayes", sobol=None, seed=0),
        run_cap=None,
        baseline=None,
        lease=Lease(heartbeat_s=30.0, expire_s=90.0, max_attempts=3),
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("min: 1, max: 9", Range(name="y", min=1, max=9, kind="int")),
        ("min: 1.0, max: 9", Range(name="y", min=1.0, max=9.0, kind="float")),
        ("min: 1, max: 9, distribution: uniform", Range(name="y", min=1.0, max=9.0, kind="float")),
        ("min: 1, max: 9, distribution: int_uniform", Range(name="y", min=1, max=9, kind="int")),
        (
            "min: 1, max: 9, distribution: log_uniform_values",
            Range(name="y", min=1.0, max=9.0, kind="float", log=True),
        ),
        (
            "min: 1, max: 9, distribution: int_log_uniform",
            Range(name="y", min=1, max=9, kind="int", log=True),
        ),
        ("min: -5, max: 5", Range(name="y", min=-5, max=5, kind="int")),
    ],
)
def test_the_distribution_gives_the_kind_of_range(written: str, expected: Range) -> None:
    assert same(only(f"y: {{{written}}}"), expected)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("+3", 3),
        ("-0.0", -0.0),
        ("2.", 2.0),
        ("true", True),
        ("FALSE", False),
        ("'true'", "true"),
        ("'1e-3'", "1e-3"),
        ("'yes'", "yes"),
        ("'2024-01-31'", "2024-01-31"),
        ("'null'", "null"),
        ("''", ""),
        ("y", "y"),
        ("1e-3x", "1e-3x"),
        ("v1.0", "v1.0"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("9007199254740992", 2**53),
        ('"a\\nb"', "a\nb"),
        ("'${x}'", "${x}"),
    ],
)
def test_scalars_are_typed_as_in_yaml_1_2(written: str, expected: Value) -> None:
    fixed = only(f"y: {{value: {written}}}")
    assert isinstance(fixed, Fixed)
    assert same(fixed.value, expected)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[1, 2]", (1, 2)),
        ("[0, 0.5, 1]", (0.0, 0.5, 1.0)),
        ("[true, false]", (True, False)),
        ("[adamw, muon]", ("adamw", "muon")),
        ("['1', '2']", ("1", "2")),
    ],
)
def test_the_values_of_a_choice_have_one_type(written: str, expected: tuple[Value, ...]) -> None:
    choice = only(f"y: {{values: {written}}}")
    assert isinstance(choice, Choice)
    assert same(choice.values, expected)


def test_the_redundant_distributions_of_wandb_are_taken() -> None:
    assert only("y: {value: 3, distribution: constant}") == Fixed(name="y", value=3)
    assert only("y: {values: [1, 2], distribution: categorical}") == Choice(name="y", values=(1, 2))


@pytest.mark.parametrize("key", ["optimizer@stage2.optimizer", "db/mysql", "a.0.b", "_x", "a-b", "model"])
def test_every_kind_of_hydra_key_is_a_parameter(key: str) -> None:
    assert only(f"'{key}': {{value: 3}}").name == key


def test_nested_conditions_have_keys_typed_like_the_values() -> None:
    nested = space(
        "a: {values: [1, 2], when: {2: [b]}}, b: {values: [x, y], when: {y: [c]}}, c: {min: 0.0, max: 1.0}"
    )
    assert nested.parents() == {"b": Condition(parent="a", value=2), "c": Condition(parent="b", value="y")}
    assert nested.active({"a": 2, "b": "y"}) == ("z", "a", "b", "c")
    assert nested.active({"a": 1}) == ("z", "a")


def test_conditions_on_a_number_are_relations_to_it() -> None:
    found = space(
        'n: {min: 0, max: 9, when: {"> 0": [a], "<=2": [b], 4: [c]}}, a: {values: [1, 2]}, b: {values: [1, 2]}, '
        "c: {values: [1, 2]}"
    )
    assert {name: str(condition) for name, condition in found.parents().items()} == {
        "a": "n > 0",
        "b": "n <= 2",
        "c": "n is 4",
    }
    assert found.active({"n": 0}) == ("z", "n", "b")
    assert found.active({"n": 1}) == ("z", "n", "a", "b")
    assert found.active({"n": 4}) == ("z", "n", "a", "c")
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


def test_ranges_have_steps_and_normal_distributions() -> None:
    found = space(
        "a: {min: 0.1, max: 0.9, step: 0.2}, b: {min: 10, max: 50, step: 20}, c: {min: 1, max: 3, step: 1}, "
        "d: {min: 1.0e-4, max: 1.0, distribution: log_normal, mu: -4.6, sigma: 1}, e: {min: 1, max: 2, step: 0.5}"
    )
    a, b, c, d, e = (found.parameter(name) for name in "abcde")
    assert a == Range(name="a", min=0.1, max=0.9, kind="float", step=0.2)
    assert b == Range(name="b", min=10, max=50, kind="int", step=20)
    assert c == Range(name="c", min=1, max=3, kind="int")
    assert d == Range(name="d", min=1e-4, max=1.0, kind="float", log=True, normal=(-4.6, 1.0))
    assert e == Range(name="e", min=1.0, max=2.0, kind="float", step=0.5)
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


def test_plain_ranges_are_stored_without_unset_fields() -> None:
    written = to_json(space("a: {min: 0, max: 9}"))["parameters"][-1]
    assert written == {"name": "a", "min": 0, "max": 9, "kind": "int", "log": False, "type": "range"}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("{trainer: {}}", Program(kind="trainer")),
        ("{trainer:}", Program(kind="trainer")),
        ("{trainer: {overrides: [a=1, +b=2]}}", Program(kind="trainer", overrides=("a=1", "+b=2"))),
        ("{trainer: {processes: 2}}", Program(kind="trainer", processes=2)),
        ("{trainer: {processes: 4, nodes: 2}}", Program(kind="trainer", processes=4, nodes=2)),
        (
            '{command: [python, -u, train.py, "${overrides}", "--out=${run_dir}", 3]}',
            Program(
                kind="command", command=("python", "-u", "train.py", "${overrides}", "--out=${run_dir}", "3")
            ),
        ),
        ("{function: pkg.mod:fn}", Program(kind="function", function="pkg.mod:fn")),
        (
            '{command: [./train, "${args}"], devices: 8}',
            Program(kind="command", command=("./train", "${args}"), devices=8),
        ),
    ],
)
def test_a_program_is_one_of_three(program: str, expected: Program) -> None:
    text = (
        f"name: a\nobjectives: [{{metric: m}}]\nprogram: {program}\nparameters: {{x: {{min: 0, max: 1}}}}\n"
    )
    assert loads(text, "x.yaml").program == expected


def test_constraint_on_one_parameter_narrows_its_range() -> None:
    narrowed = space(
        "lr: {min: 0.001, max: 0.1, distribution: log_uniform_values}, "
        "n: {min: 1, max: 100, distribution: int_log_uniform}",
        'parameter_constraints: ["lr <= 0.05", "3*n <= 100", "n >= 1.5"]\n',
    )
    assert narrowed.parameter("lr") == Range(name="lr", min=0.001, max=0.05, kind="float", log=True)
    assert same(narrowed.parameter("n"), Range(name="n", min=2, max=33, kind="int", log=True))
    assert narrowed.parameter_constraints == ()


def test_a_condition_may_always_hold_within_a_constraint() -> None:
    narrowed = space(
        'n: {min: 0, max: 9, when: {"> 0": [lr]}}, lr: {min: 0.1, max: 0.9}',
        'parameter_constraints: ["n >= 1"]\n',
    )
    assert narrowed.parameter("n") == Range(name="n", min=1, max=9, kind="int", when=(("> 0", ("lr",)),))


def test_constraints_on_several_parameters_stay_as_they_stand() -> None:
    constrained = space(
        "a: {min: 1, max: 100}, b: {min: 1.0, max: 9.0}",
        'parameter_constraints: ["a + 2*b <= 50", "a >= b"]\nbaseline: {a: 30}\n',
    )
    assert constrained.parameter_constraints == ("a + 2*b <= 50", "a >= b")
    assert constrained.baseline == {"z": 0, "a": 30, "b": 5.0}


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        (Range(name="x", min=1, max=10, kind="int"), 6),
        (Range(name="x", min=8, max=80, kind="int", log=True), 25),
        (Range(name="x", min=1.0, max=4.0, kind="float"), 2.5),
        (Range(name="x", min=-1e100, max=1e100, kind="float"), 0.0),
        (Range(name="x", min=0.1, max=0.9, kind="float", step=0.2), 0.5),
        (Range(name="x", min=50, max=400, kind="int", step=100), 250),
        (Choice(name="x", values=(1, 2, 4), ordered=True), 2),
        (Choice(name="x", values=(1, 2, 4, 8), ordered=True), 2),
        (Choice(name="x", values=("b", "a")), "b"),
        (Fixed(name="x", value="v"), "v"),
    ],
)
def test_the_middle_of_a_parameter(parameter: Parameter, expected: Value) -> None:
    assert same(middle(parameter), expected)


def test_middle_of_a_logarithmic_range_is_geometric() -> None:
    found = middle(Range(name="x", min=1e-3, max=1e-1, kind="float", log=True))
    assert math.isclose(float(found), 1e-2)
    tight = Range(name="x", min=0.1, max=math.nextafter(0.1, 1), kind="float", log=True)
    assert tight.min <= float(middle(tight)) <= tight.max


def test_a_baseline_leaves_out_what_its_own_values_switch_off() -> None:
    text = COMPLETE.replace("baseline: {", "baseline: {stage1_9.saliency.enabled: false, ")
    baseline = loads(text, "x.yaml").baseline
    assert baseline is not None
    assert "stage1_9.saliency.initial_k" not in baseline


def test_an_empty_baseline_is_the_middle_of_everything() -> None:
    assert space("y: {values: [1, 2]}", "baseline: {}\n").baseline == {"z": 0, "y": 1}


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + COMPLETE.replace("\n", "\r\n").encode())
    assert load(path) == loads(COMPLETE, "x.yaml")


def test_six_spaces_and_the_ablations_ship_with_the_project() -> None:
    names = [path.stem for path in SHIPPED]
    assert [name for name in names if not name.startswith("ablation_")] == [
        *("quickstart", "recovery", "smollm2", "stage1_9_stage2", "stage3", "stage_length"),
    ]
    assert [name for name in names if name.startswith("ablation_")] == [
        *("ablation_lambda_saliency", "ablation_length", "ablation_optimizers", "ablation_stage1_9"),
    ]


def corners(shipped: Space) -> list[dict[str, Value]]:
    """Parameters at both ends of everything, and the baseline."""

    def end(parameter: Parameter, position: int) -> Value:
        if isinstance(parameter, Range):
            return (int if parameter.kind == "int" else float)((parameter.min, parameter.max)[position])
        return parameter.value if isinstance(parameter, Fixed) else parameter.values[position]

    ends = [{p.name: end(p, position) for p in shipped.parameters} for position in (0, -1)]
    trials = [{name: values[name] for name in shipped.active(values)} for values in ends]
    return trials + ([dict(shipped.baseline)] if shipped.baseline else [])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_space_composes_at_both_ends_of_every_range(path: Path) -> None:
    from trainer.api import check

    shipped = load(path)
    assert shipped.program.kind == "trainer"
    for parameters in corners(shipped):
        config = check([*shipped.program.overrides, *to_overrides(parameters)])
        for key, value in parameters.items():
            found: object = config
            for part in key.split("."):
                found = getattr(found, part)
            assert same(found, value), key


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{first: 2}", Brake(first=2, later=5)),
        ("{later: 9}", Brake(first=3, later=9)),
        ("{first: 0, later: null}", Brake(first=0, later=0)),
        ("null", Brake(first=0, later=0)),
    ],
)
def test_a_brake_is_set_or_released(written: str, expected: Brake) -> None:
    assert space("", f"brake: {written}\n").brake == expected
    assert space("").brake == Brake(first=3, later=5)


@pytest.mark.parametrize("key", ["effective_steps", "device_hours", "usd", "wall_hours"])
def test_each_limit_of_a_budget_stands_alone(key: str) -> None:
    limited = space("", f"budget: {{{key}: 2}}\n").budget
    assert {name: limit for name, limit in dataclasses.asdict(limited).items() if limit is not None} == {
        key: 2.0
    }
    assert isinstance(getattr(limited, key), float)


def test_without_sections_nothing_is_limited_or_stopped() -> None:
    assert (space("").budget, space("").early_terminate) == (Budget(), None)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", EarlyTerminate(percentile=50.0, min_trials=5, min_step=10.0)),
        ("percentile: 12.5", EarlyTerminate(percentile=12.5)),
        ("min_trials: 1", EarlyTerminate(min_trials=1)),
        ("min_step: 0", EarlyTerminate(min_step=0.0)),
    ],
)
def test_what_early_terminate_leaves_out_has_a_default(written: str, read: EarlyTerminate) -> None:
    text = COMPLETE.replace("percentile: 25, min_trials: 8, min_step: 40", written)
    assert same(loads(text, "x.yaml").early_terminate, read)


@pytest.mark.parametrize("objectives", ["[{metric: loss}]", "[{metric: loss}, {metric: usd}]"])
def test_curve_rule_goes_with_any_number_of_objectives(objectives: str) -> None:
    text = (
        f"name: a\nobjectives: {objectives}\nprogram: {{command: [run, '${{overrides}}']}}\nparameters: {{x: {{min: 0.0, max: 1.0}}}}\n"
        "early_terminate: {type: curve, min_trials: 7, margin: 0.01}\n"
    )
    assert loads(text, "x.yaml").early_terminate == EarlyTerminate(type="curve", min_trials=7, margin=0.01)
