"""The usual mistakes of a newcomer, each with the line that answers it: tests/golden/newcomer.txt.

A person has read that file. After a change of a message, `UPDATE_GOLDEN=1 pytest` this file, and read it again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "golden" / "newcomer.txt"

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
FILES = {
    "space.yaml": SPACE,
    "nested.yaml": NESTED,
    "typo.yaml": TYPO,
    "function.yaml": NO_SUCH_FUNCTION,
    "budget.yaml": BUDGET,
    "fails.yaml": FAILS,
    "train.sh": "echo ModuleNotFoundError: No module named torch; exit 1\n",
}

STEPS = (
    ("1. a misspelt command", ["wroker"]),
    ("2. no sweep yet", ["status"]),
    ("3. a file that is not there", ["init", "spaces.yaml"]),
    ("4. a misspelt section", ["init", "typo.yaml"]),
    ("5. parameters as a tree, as in a config file", ["init", "nested.yaml"]),
    ("6. a function that the module does not have", ["init", "function.yaml"]),
    ("7. a budget over something that may never be reported", ["init", "budget.yaml"]),
    ("", ["init", "space.yaml"]),
    ("8. the same sweep once more", ["init", "space.yaml"]),
    ("9. results before there are any", ["best"]),
    ("", ["pareto"]),
    ("", ["trials"]),
    ("10. a name that does not exist", ["status", "--name", "toyy"]),
    ("11. a result under another name than the objective's", ["ask"]),
    ("", ["tell", "0", "--metric", "los=0.3"]),
    ("", ["tell", "0", "--metric", "loss=0.3"]),
    ("12. another try of what is done, and of what is not there", ["retry", "0"]),
    ("", ["show", "99"]),
    ("13. more trials, the wrong way and the right one", ["worker"]),
    ("", ["worker"]),
    ("", ["ask"]),
    ("", ["extend", "--run-cap", "more"]),
    ("", ["extend", "--budget", "gpu_hours=3"]),
    ("", ["extend", "--run-cap", "4"]),
    ("14. a program that always fails", ["init", "fails.yaml"]),
    ("", ["worker", "--exit-when-idle"]),
    ("", ["best"]),
    ("", ["status"]),
    ("", ["show", "1"]),
    ("", ["doctor"]),
    ("", ["retry", "--failed"]),
    ("15. a record that somebody has edited", ["status", "--name", "toy"]),
    ("16. everything away", ["delete"]),
    ("", ["delete", "--name", "toy"]),
)


def cleaned(text: str) -> str:
    """Return the output without what differs between two runs."""
    for pattern, word in (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
        (r"\b[\w.-]+-\d+-[0-9a-f]{6}\b", "WORKER"),
        (r"\b\d+\.\d s\b", "SECONDS"),
        (r"\d+\.\d (B|KiB)\b", "SIZE"),
        (r"\(.*?/python3?[\d.]* ", "(PYTHON "),
    ):
        text = re.sub(pattern, word, text)
    return text


def of_sweep(diagnosis: str) -> str:
    """Return doctor's findings about the sweep: the machine's own differ."""
    parts = diagnosis.split("\n\n")
    return "\n\n".join(part for part in parts if "sweep-store" in part and "where: " in part) + "\n"


def test_each_usual_mistake_is_answered_with_the_way_on(sweep, tmp_path: Path, monkeypatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("sweeps.operations.control.getpass.getuser", lambda: "ada")
    monkeypatch.setattr("sweeps.operations.control.platform.node", lambda: "desk")
    lines = []
    for title, argv in STEPS:
        if title.startswith("15"):
            (tmp_path / "sweep-store" / "toy" / "trials" / "000001.json").write_text("{")
        ran = sweep(*argv)
        shown = of_sweep(ran.out) if argv == ["doctor"] else ran.out
        lines += [f"\n{title}\n" if title else "", f"$ sweep {' '.join(argv)}\n", shown, ran.err]
        lines += [f"[{ran.status}]\n"]
    transcript = cleaned("".join(lines)).lstrip()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(transcript)
    assert transcript == GOLDEN.read_text()


def test_refusals_are_one_line_with_a_way_on() -> None:
    text = GOLDEN.read_text()
    assert "Traceback" not in text
    refusals = [line for line in text.splitlines() if line.startswith("sweep: error: ")]
    assert len(refusals) >= 15
    ways = ("`", "write ", "did you mean", "see ", "--", "give ", "choose ", "start this in", "only a failed")
    assert [line for line in refusals if not any(way in line for way in ways)] == []


@pytest.mark.parametrize("nth", range(1, 17))
def test_every_mistake_has_its_answer(nth: int) -> None:
    assert re.search(rf"^{nth}\. .+\n\$ sweep ", GOLDEN.read_text(), re.MULTILINE)
