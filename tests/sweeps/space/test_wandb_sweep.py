"""W&B sweep files become search space files that mean the same, or are refused with every problem at once."""

from __future__ import annotations

import math

import pytest

from sweeps.errors import SpaceError
from sweeps.space.definition import Choice, EarlyTerminate, Fixed, Range, Space
from sweeps.space.space_file import loads
from sweeps.space.wandb_sweep import translated

HEAD = "program: train.py\nmethod: bayes\nmetric: {name: val/loss, goal: minimize}\n"


def space(parameters: str, more: str = "") -> Space:
    text = translated(f"{HEAD}parameters: {{{parameters}}}\n{more}", "runs/my sweep.yaml").text
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


@pytest.mark.parametrize(
    ("written", "first"), [("min_iter: 9", 9.0), ("s: 2, max_iter: 27", 3.0), ("min_iter: 4, eta: 2", 4.0)]
)
def test_hyperband_starts_at_the_same_step(written: str, first: float) -> None:
    early = space(
        "lr: {min: 0.1, max: 1.0}", f"early_terminate: {{type: hyperband, {written}}}"
    ).early_terminate
    eta = 2.0 if "eta" in written else 3.0
    assert early == EarlyTerminate(type="hyperband", min_step=first, eta=eta)


def test_what_means_something_else_stands_above_it_as_a_comment() -> None:
    found = translated(f"{HEAD}parameters: {{b: {{values: [x, y], probabilities: [0.1, 0.9]}}}}", "w.yaml")
    comments = [line.removeprefix("# ") for line in found.text.splitlines() if line.startswith("#")]
    assert comments == list(found.notes)
    assert any(note.startswith("parameters.b: all values are equally likely") for note in found.notes)


@pytest.mark.parametrize(("theirs", "ours"), [("${args}", "${args}"), ("${args_no_hyphens}", "${overrides}")])
def test_a_command_of_words_is_kept(theirs: str, ours: str) -> None:
    words = f'command: ["${{env}}", "${{interpreter}}", -m, lab.train, "{theirs}"]\n'
    assert space("lr: {min: 0.1, max: 1.0}", words).program.command == (
        "python",
        "-m",
        "lab.train",
        ours,
    )


def test_all_problems_are_told_at_once() -> None:
    text = (
        "program: train.py\nmethod: bayse\nparameters:\n  a: {distribution: beta, min: 0, max: 1}\n"
        "  b: {mean: 3}\ncontroller: {type: local}\n"
    )
    with pytest.raises(SpaceError) as caught:
        translated(text, "w.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "w.yaml:",
        "w.yaml:2:",
        "w.yaml:4:",
        "w.yaml:5:",
        "w.yaml:6:",
    ]
    assert "`metric:` is missing" in lines[0]
    assert "did you mean `bayes`?" in lines[1]
    assert "`beta` has no equal" in lines[2]


def test_a_file_of_wandb_in_place_of_a_search_space_is_recognised() -> None:
    with pytest.raises(SpaceError, match=r"sweep init --from-wandb w\.yaml SPACE\.yaml"):
        loads(f"{HEAD}parameters: {{lr: {{min: 0.1, max: 1.0}}}}\n", "w.yaml")
