"""W&B sweep files become search space files that mean the same, or are refused with every problem at once."""

from __future__ import annotations

import json
import math
import re
from types import MappingProxyType

import pytest

from sweeps.errors import SpaceError
from sweeps.space.definition import Choice, EarlyTerminate, Fixed, Range, Space, from_plain
from sweeps.space.overrides import with_parameters
from sweeps.space.space_file import loads
from sweeps.space.wandb_sweep import translate

HEAD = "program: train.py\nmethod: bayes\nmetric: {name: val/loss, goal: minimize}\n"


def space(parameters: str, more: str = "") -> Space:
    text = translate(f"{HEAD}parameters: {{{parameters}}}\n{more}", "runs/my sweep.yaml").text
    return loads(text, "translated.yaml")


def test_program_metric_method_and_name_are_kept() -> None:
    found = space("lr: {min: 0.001, max: 0.1}", "run_cap: 20\n")
    assert found.name == "my-sweep"
    assert [(o.metric, o.goal) for o in found.objectives] == [("val/loss", "minimize")]
    assert found.program.command == ("python", "train.py", "${args}")
    assert (found.search.method, found.run_cap) == ("bayes", 20)


def test_parameters_of_every_kind_mean_the_same() -> None:
    found = space(
        "a: {value: 3}, b: {values: [x, y], probabilities: [0.1, 0.9]}, c: {values: [7]}, d: {min: 1, max: 9}, "
        "e: {min: 0.0, max: 1.0}, f: {distribution: log_uniform_values, min: 1.0e-4, max: 0.1}, "
        "g: {distribution: log_uniform, min: -9.21, max: -2.3}, "
        "h: {distribution: q_uniform, min: 0.05, max: 1.02, q: 0.1}, "
        "i: {distribution: log_normal, mu: -5, sigma: 0.5}, j: {parameters: {k: {values: [1, 2]}}}"
    )
    assert found.parameter("a") == Fixed(name="a", value=3)
    assert found.parameter("b") == Choice(name="b", values=("x", "y"))
    assert found.parameter("c") == Fixed(name="c", value=7)
    assert found.parameter("d") == Range(name="d", min=1, max=9, kind="int")
    assert found.parameter("e") == Range(name="e", min=0.0, max=1.0, kind="float")
    assert found.parameter("f") == Range(name="f", min=1e-4, max=0.1, kind="float", log=True)
    g, i = found.parameter("g"), found.parameter("i")
    assert isinstance(g, Range)
    assert (g.min, g.max, g.log) == (math.exp(-9.21), math.exp(-2.3), True)
    assert found.parameter("h") == Range(name="h", min=0.1, max=1.0, kind="float", step=0.1)
    assert isinstance(i, Range)
    assert (i.normal, i.log) == ((-5.0, 0.5), True)
    assert i.max == pytest.approx(math.exp(-3.5))
    assert found.parameter("j.k") == Choice(name="j.k", values=(1, 2))


def test_texts_that_look_like_numbers_stay_texts() -> None:
    texts = ("1e5", "nan", "Infinity", "0o17", "08:15", "2026-01-01 b", "1.5", "", "~", "yes", "a: b", "x")
    listed = ", ".join(map(json.dumps, texts))
    found = space(f"a: {{values: [{listed}]}}, b: {{value: '2e5'}}, c: {{value: [['3e5'], 'inf']}}")
    assert found.parameter("a") == Choice(name="a", values=texts)
    assert found.parameter("b") == Fixed(name="b", value="2e5")
    assert found.parameter("c") == Fixed(name="c", value=(("3e5",), "inf"))


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("min_iter: 9", 9.0),
        ("s: 2, max_iter: 27", 3.0),
        ("s: 9000, max_iter: 27", 0.0),
        ("min_iter: 4, eta: 2", 4.0),
    ],
)
def test_hyperband_starts_at_the_same_step(written: str, first: float) -> None:
    early = space(
        "lr: {min: 0.1, max: 1.0}", f"early_terminate: {{type: hyperband, {written}}}"
    ).early_terminate
    eta = 2.0 if "eta" in written else 3.0
    assert early == EarlyTerminate(type="hyperband", min_step=first, eta=eta)


def test_what_means_something_else_stands_above_it_as_a_comment() -> None:
    found = translate(f"{HEAD}parameters: {{b: {{values: [x, y], probabilities: [0.1, 0.9]}}}}", "w.yaml")
    comments = [line.removeprefix("# ") for line in found.text.splitlines() if line.startswith("#")]
    assert comments == list(found.notes)
    assert any(note.startswith("parameters.b: ") for note in found.notes)


def test_nested_parameters_are_passed_in_another_way_which_is_said_once() -> None:
    nested = "o: {parameters: {lr: {min: 0.1, max: 1.0}, sub: {parameters: {x: {value: 3}}}}}"
    notes = translate(f"{HEAD}parameters: {{{nested}}}", "w.yaml").notes
    assert [note.partition(":")[0] for note in notes].count("parameters.o") == 1


def test_variables_of_a_command_are_kept() -> None:
    words = 'command: ["${env}", A=1, "${interpreter}", "${program}", "${args}"]\n'
    found = space("lr: {min: 0.1, max: 1.0}", words).program.command
    assert found == ("env", "A=1", "python", "train.py", "${args}")


@pytest.mark.parametrize(("theirs", "ours"), [("${args}", "${args}"), ("${args_no_hyphens}", "${overrides}")])
def test_a_command_of_words_is_kept(theirs: str, ours: str) -> None:
    words = f'command: ["${{env}}", "${{interpreter}}", -m, lab.train, "{theirs}"]\n'
    assert space("lr: {min: 0.1, max: 1.0}", words).program.command == (
        "python",
        "-m",
        "lab.train",
        ours,
    )


PARAMETERS = {
    "lr": 0.001, "n": 3, "on": True, "off": False, "none": None, "sizes": [1, [2.5, "a"]], "text": "a b's ${x}",
}  # fmt: skip


@pytest.mark.parametrize(
    "macro",
    [
        "args", "args_no_boolean_flags", "args_no_equals", "args_no_hyphens", "args_append_hydra",
        "args_override_hydra", "args_json",
    ],
)  # fmt: skip
def test_arguments_are_those_of_wandb(macro: str) -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    command = f'command: ["${{interpreter}}", "${{program}}", "${{{macro}}}"]\n'
    parameters = ", ".join(f"{name}: {{value: {json.dumps(v)}}}" for name, v in PARAMETERS.items())
    found = space(f"{parameters}, k: {{values: [1, 2]}}", command)
    values = {name: from_plain(value) for name, value in PARAMETERS.items()}
    argv = with_parameters(found.program.command, MappingProxyType(values), str)  # as records have them
    wandb = create_sweep_command_args({"args": {name: {"value": v} for name, v in PARAMETERS.items()}})
    assert argv == ["python", "train.py", *wandb[macro]]


@pytest.mark.parametrize("macro", ["${args_json_file}", "${envvar:HOME}", "x=${envvar:HOME}", "${unknown}"])
def test_other_macros_are_refused(macro: str) -> None:
    words = f'command:\n- python\n- "{macro}"\n- "${{args}}"\n'
    with pytest.raises(SpaceError, match=r"w.yaml:7: command\[1\]: "):
        translate(f"{HEAD}parameters: {{a: {{min: 0, max: 9}}}}\n{words}", "w.yaml")


def test_quantised_values_stay_whole() -> None:
    found = space(
        "a: {distribution: q_log_uniform_values, min: 32, max: 256}, "
        "b: {distribution: q_log_uniform_values, min: 32, max: 256, q: 32}, "
        "c: {distribution: q_log_uniform_values, min: 0.1, max: 0.5, q: 0.1}, "
        "d: {distribution: q_log_uniform_values, min: 8, max: 80000, q: 8}, "
        "e: {distribution: q_log_uniform, min: 0, max: 3}, "
        "f: {distribution: q_normal, mu: 100, sigma: 10}"
    )
    assert found.parameter("a") == Range(name="a", min=32, max=256, kind="int", log=True)
    assert found.parameter("b") == Choice(name="b", values=tuple(range(32, 257, 32)), ordered=True)
    assert found.parameter("c") == Choice(name="c", values=(0.1, 0.2, 0.3, 0.4, 0.5), ordered=True)
    assert found.parameter("d") == Range(name="d", min=8, max=80000, kind="int", log=True)
    assert found.parameter("e") == Range(name="e", min=1, max=20, kind="int", log=True)
    f = found.parameter("f")
    assert isinstance(f, Range)
    assert (f.kind, f.min, f.max) == ("int", 70, 130)


@pytest.mark.parametrize(
    "kind", ["beta", "q_beta", "q_log_normal", "inv_log_uniform", "inv_log_uniform_values"]
)
def test_distribution_without_equal_is_named(kind: str) -> None:
    with pytest.raises(SpaceError, match=f"parameters.a.distribution: `{kind}`"):
        space(f"a: {{distribution: {kind}, a: 1, b: 2}}")


@pytest.mark.parametrize(
    ("parameter", "early", "problem"),
    [
        ("{distribution: log_normal, mu: 512, sigma: 100}", "", "a: mu and sigma are those of the logarithm"),
        ("{distribution: log_normal, sigma: 1000}", "", "a: mu and sigma are those of the logarithm"),
        ("{distribution: q_uniform, min: 0.2, max: 0.8}", "", "a: leaves fewer than two multiples of 1"),
        ("{distribution: q_normal, mu: 0.5, sigma: 0.01}", "", "a: leaves fewer than two multiples of 1"),
        (
            "{distribution: q_uniform, min: 0, max: 0.5, q: 0.6}",
            "",
            "a.q: leaves fewer than two multiples of 0.6",
        ),
        ("{distribution: q_uniform, min: 0, max: 1.0, q: 1.0e-320}", "", "a.q: has too many multiples"),
        ("{distribution: q_normal, sigma: 1.0e+308}", "", "a: has too many multiples"),
        (
            "{value: 1}",
            "{type: hyperband, max_iter: 27, s: 2, eta: 0}",
            "early_terminate.eta: is not above 1",
        ),
    ],
)
def test_numbers_that_leave_no_range_are_refused(parameter: str, early: str, problem: str) -> None:
    with pytest.raises(SpaceError, match=re.escape(problem)):
        space(f"a: {parameter}", f"early_terminate: {early}\n" if early else "")


def test_problem_is_cited_where_the_user_wrote_it() -> None:
    text = (
        f"{HEAD}parameters:\n  a: {{values: [1, auto]}}\n  b:\n    min: 5\n    max: 5\n  n:\n"
        "    parameters:\n      c: {distribution: q_uniform, min: 0, max: 1.0e+9, q: 3}\n"
        "command: [python, train.py]\n"
    )
    with pytest.raises(SpaceError) as caught:
        translate(text, "w.yaml")
    assert [(each.file, each.line, each.key) for each in caught.value.problems] == [
        ("w.yaml", 5, "parameters.a.values"),
        ("w.yaml", 8, "parameters.b.max"),
        ("w.yaml", 11, "parameters.n.parameters.c.q"),
        ("w.yaml", 12, "command"),
    ]


def test_sweep_without_end_is_noted_once() -> None:
    body = f"{HEAD}parameters: {{a: {{min: 0, max: 9}}}}\n"
    assert [note for note in translate(body, "w.yaml").notes if "has no end" in note] != []
    assert not any("has no end" in note for note in translate(body + "run_cap: 5\n", "w.yaml").notes)
    grid = body.replace("bayes", "grid")
    assert not any("has no end" in note for note in translate(grid, "w.yaml").notes)


def test_all_problems_are_told_at_once() -> None:
    text = (
        "program: train.py\nmethod: bayse\nparameters:\n  a: {distribution: beta, min: 0, max: 1}\n"
        "  b: {mean: 3}\ncontroller: {type: local}\n"
    )
    with pytest.raises(SpaceError) as caught:
        translate(text, "w.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "w.yaml:",
        "w.yaml:2:",
        "w.yaml:4:",
        "w.yaml:5:",
        "w.yaml:6:",
    ]
    assert "`metric:` is missing" in lines[0]
    assert "`bayes`" in lines[1]
    assert "`beta`" in lines[2]


def test_wandb_file_in_place_of_a_search_space_is_recognised() -> None:
    with pytest.raises(SpaceError, match=r"sweep init --from-wandb w\.yaml SPACE\.yaml"):
        loads(f"{HEAD}parameters: {{lr: {{min: 0.1, max: 1.0}}}}\n", "w.yaml")
