"""The usual mistakes and wishes of a newcomer, each with the line that answers it: tests/golden/newcomer.md.

A person has read that file. After a change of a message, `UPDATE_GOLDEN=1 pytest` this file, and read it again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sweeps

GOLDEN = Path(__file__).parents[2] / "golden" / "newcomer.md"

SPACE = """\
name: toy
objectives: [{metric: loss, goal: minimize}]
program: {function: "objectives_for_tests:paraboloid"}
parameters:
  x: {min: 0.0, max: 1.0}
  n: {min: 1, max: 100}
search: {method: random, sobol: 4}
run_cap: 3
"""
NESTED = SPACE.replace("name: toy", "name: nested").replace(
    "  x: {min: 0.0, max: 1.0}\n", "  stage2:\n    optimizer:\n      lr: {min: 1e-4, max: 1e-2}\n"
)
TYPO = SPACE.replace("objectives:", "objective:")
NO_SUCH_FUNCTION = SPACE.replace(":paraboloid", ":parabola")
BUDGET = SPACE.replace("toy", "budgeted").replace("run_cap: 3", "budget: {usd: 5}")
FAILS = """\
name: failing
objectives: [{metric: loss, goal: minimize}]
program: {command: [sh, train.sh, "${overrides}"]}
parameters: {x: {min: 0.0, max: 1.0}}
search: {method: random}
run_cap: 9
"""
METHOD = SPACE.replace("name: toy", "name: method").replace("method: random", "method: bayesian")
WANDB = SPACE.replace("name: toy", "name: wandb").replace(
    "x: {min: 0.0, max: 1.0}", "x: {min: 0.1, max: 1.0, distribution: log_uniform}"
)
ALONE = FAILS.replace('"${overrides}"', '"--fast"')
SILENT = (
    FAILS.replace("failing", "silent").replace("train.sh", "silent.sh").replace("run_cap: 9", "run_cap: 1")
)
FILES = {
    "method.yaml": METHOD,
    "wandb.yaml": WANDB,
    "alone.yaml": ALONE,
    "silent.yaml": SILENT,
    "silent.sh": "echo loss 0.3\n",
    "results.csv": "learning_rate,loss\n0.1,0.5\n",
    "space.yaml": SPACE,
    "nested.yaml": NESTED,
    "typo.yaml": TYPO,
    "function.yaml": NO_SUCH_FUNCTION,
    "budget.yaml": BUDGET,
    "fails.yaml": FAILS,
    "train.sh": "echo ModuleNotFoundError: No module named torch; exit 1\n",
}

STEPS: tuple[tuple[str, list[str] | str], ...] = (
    ("a misspelt command", ["wroker"]),
    ("no sweep yet", ["status"]),
    ("an option without its value", ["status", "--storage"]),
    ("a misspelt option", ["status", "--fromat", "json"]),
    ("a misspelt variable: SWEEP_STORE=/data", "SWEEP_STORE=/data"),
    ("a file that is not there", ["init", "spaces.yaml"]),
    ("a misspelt section", ["init", "typo.yaml"]),
    ("parameters as a tree, as in a config file", ["init", "nested.yaml"]),
    ("a method by another name", ["init", "method.yaml"]),
    ("a distribution of W&B's", ["init", "wandb.yaml"]),
    ("a command that no parameter reaches", ["init", "alone.yaml"]),
    ("a function that the module does not have", ["init", "function.yaml"]),
    ("a budget over something that may never be reported", ["init", "budget.yaml"]),
    ("", ["init", "space.yaml"]),
    ("the same sweep once more", ["init", "space.yaml"]),
    ("results before there are any", ["best"]),
    ("", ["pareto"]),
    ("", ["trials"]),
    ("a name that does not exist", ["status", "--name", "toyy"]),
    ("a result under another name than the objective's", ["ask"]),
    ("", ["tell", "0", "--metric", "los=0.3"]),
    ("", ["tell", "0", "--metric", "loss=0.3"]),
    ("which parameters did the only trial have?", ["trials"]),
    ("another try of what is done, and of what is not there", ["retry", "0"]),
    ("", ["show", "99"]),
    ("more trials, the wrong way and the right one", ["worker"]),
    ("", ["worker"]),
    ("", ["ask"]),
    ("", ["extend", "--run-cap", "more"]),
    ("", ["extend", "--budget", "gpu_hours=3"]),
    ("", ["extend", "--run-cap", "4"]),
    ("a trial of one's own, outside of the range", ["enqueue", "x=2"]),
    ("is the best one really the best?", ["confirm"]),
    ("the front over something that was not measured", ["pareto", "--x", "gpu_hours"]),
    ("a table for a program that cannot be written", ["export", "trials.xlsx"]),
    ("a report into a folder that is not there", ["report", "--out", "results/report.html"]),
    ("results of before, with other names", ["import", "results.csv"]),
    ("a program that always fails", ["init", "fails.yaml"]),
    ("", ["worker", "--exit-when-idle"]),
    ("", ["best"]),
    ("", ["status"]),
    ("", ["show", "1"]),
    ("", ["doctor"]),
    ("", ["retry", "--failed"]),
    ("a script that writes no result", ["init", "silent.yaml"]),
    ("", ["worker", "--exit-when-idle"]),
    ("which key is the learning rate?", "python -m trainer --help lr"),
    ("a key without its stage", "python -m trainer lr=0.01 run_dir=out"),
    ("a misspelt option of a group", "python -m trainer data=tex run_dir=out"),
    ("a key of an option that was not chosen", "python -m trainer data.files=texts run_dir=out"),
    ("a text that Hydra does not read", "python -m trainer data=text 'data.files=[my texts ü]' run_dir=out"),
    ("a text file that is not there", "python -m trainer data=text data.files=novel.txt run_dir=out"),
    ("a run without a folder", "python -m trainer seed=1"),
    ("from Python: a sweep that exists", 'sweeps.create({"name": "toy", **SPACE})'),
    ("from Python: a sweep that does not", 'sweeps.open("sweep-store", "tony")'),
    ("from Python: run what has no program", 'sweeps.create({"name": "mine", **SPACE}).run()'),
    ("from Python: the best before there is one", 'sweeps.open(name="mine").best'),
    ("from Python: a limit that is none", 'sweeps.open(name="mine").extend(trials=50)'),
    ("from Python: a report without a step", 'sweeps.open(name="mine").ask().report(0.5)'),
    ("a record that somebody has edited", ["status", "--name", "toy"]),
    ("everything away", ["delete"]),
    ("", ["delete", "--name", "toy"]),
)
"""What is typed: words after `sweep`, or a line of a shell or of Python. Without a title it goes with the one before."""

PYTHON_SPACE = {
    "objectives": [{"metric": "loss"}],
    "parameters": {"lr": {"min": 0.1, "max": 1.0}},
    "search": {"method": "random"},
}


def in_python(line: str) -> str:
    """Return the last line of the traceback that a line of Python ends with."""
    try:
        eval(line, {"sweeps": sweeps, "SPACE": PYTHON_SPACE})
    except sweeps.SweepError as error:
        return f"{type(error).__name__}: {error}\n"
    return "nothing is wrong\n"


def train(line: str) -> str:
    from trainer.__main__ import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(shlex.split(line)[3:])
    return f"{said.getvalue()}[{status}]\n"


def cleaned(text: str) -> str:
    """Return the output without what differs between two runs."""
    for pattern, word in (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
        (r"\b[\w.-]+-\d+-[0-9a-f]{6}\b", "WORKER"),
        (r"\b\d+\.\d s\b", "SECONDS"),
        (r"(\n +\d+  completed .*?) +\d+(?:\.\d)?\n", r"\1  SECONDS\n"),
        (r"\d+\.\d (B|KiB)\b", "SIZE"),
        (r"\(.*?/python3?[\d.]* ", "(PYTHON "),
    ):
        text = re.sub(pattern, word, text)
    return text


def of_sweep(diagnosis: str) -> str:
    """Return doctor's findings about the sweep: the machine's own differ."""
    parts = diagnosis.split("\n\n")
    return "\n\n".join(part for part in parts if "sweep-store" in part and "where: " in part) + "\n"


def answer(
    sweep: Callable[..., Any], typed: list[str] | str, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """Return the line as one types it, and everything that it says."""
    if isinstance(typed, str) and typed.startswith("sweeps."):
        return f">>> {typed}", in_python(typed)
    if isinstance(typed, str) and typed.startswith("python"):
        return f"$ {typed}", train(typed)
    words = ["list"] if isinstance(typed, str) else typed
    if isinstance(typed, str):
        monkeypatch.setenv(*typed.split("="))
    ran = sweep(*words)
    if isinstance(typed, str):
        monkeypatch.delenv(typed.partition("=")[0])
    shown = of_sweep(ran.out) if words == ["doctor"] else ran.out
    prompt = f"{typed} sweep list" if isinstance(typed, str) else f"sweep {shlex.join(words)}"
    return f"$ {prompt}", f"{shown}{ran.err}[{ran.status}]\n"


HEAD = """\
# A newcomer's mistakes and wishes

Each with what answers it; in brackets the exit status. Read it as somebody who has just typed the line: does the answer
say what is wrong and what to type next? `UPDATE_GOLDEN=1 pytest tests/sweeps/cli/test_newcomer.py` writes this page.
"""


def test_each_usual_mistake_is_answered_with_the_way_on(sweep, tmp_path: Path, monkeypatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name in ("SWEEP_STORAGE", "SWEEP_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sweeps.operations.control.getpass.getuser", lambda: "ada")
    monkeypatch.setattr("sweeps.operations.control.platform.node", lambda: "desk")
    page, number = [HEAD], 0
    for title, typed in STEPS:
        if title.startswith("a record that"):
            (tmp_path / "sweep-store" / "toy" / "trials" / "000001.json").write_text("{")
        line, said = answer(sweep, typed, monkeypatch)
        if title:
            number += 1
            page.append(f"\n## {number}. {title}\n")
        page.append("\n" + "".join(f"    {each}".rstrip() + "\n" for each in [line, *said.splitlines()]))
    transcript = cleaned("".join(page))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(transcript, encoding="utf-8")
    assert transcript == GOLDEN.read_text(encoding="utf-8")


def test_refusals_are_one_line_with_a_way_on() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    assert "Traceback" not in text
    refusals = re.findall(
        r"^    (?:(?:sweep|trainer): error|\w+Error|CannotStart|SweepNotFound): .*", text, re.MULTILINE
    )
    assert len(refusals) >= 30
    ways = ("`", "write ", "did you mean", "see ", "--", "give ", "choose ", "start this in", "only a failed")
    ways += (
        "the columns are",
        "must end in",
        "outside of",
        " reasons:",
        "there are ",
        "it belongs to",
        "needs a value",
        "sweeps.",
        "say ",
        "sweep.",
        "there is",
        "known are",
    )
    assert [line for line in refusals if not any(way in line for way in ways)] == []


def test_there_are_thirty_and_each_has_an_answer() -> None:
    parts = re.split(r"^## ", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(parts) == sum(bool(title) for title, _ in STEPS) >= 30
    assert [part for part in parts if not re.match(r"\d+\. .+\n\n    [$>]+ .+\n    .+", part)] == []
