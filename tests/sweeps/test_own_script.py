"""`sweeps.script`, by which a user's own script reads its parameters, reports, and writes its result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sweeps.script import finish, parameters, report
from sweeps.space.overrides import WORDS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "word", ["${overrides}", "${args}", "${args_wandb}", "${args_no_equals}", "${args_no_hyphens}"]
)
@pytest.mark.parametrize(
    "value", [3, 0.5, 1e-05, True, False, None, "adam", (1, 2), ((1, 2), (3,)), ("a b", "c,d")], ids=str
)
def test_values_keep_their_types(word, value):
    """Without defaults: what each form of the command line says is read as what it was."""

    def listed(each):
        return [listed(inner) for inner in each] if isinstance(each, tuple) else each

    assert parameters(argv=WORDS[word]({"stage2.x": value})) == {"stage2.x": listed(value)}


ANY_TEXT = st.text(alphabet="a'\"\\${} ,é[]=1", max_size=8)


@given(ANY_TEXT, st.sampled_from(["${overrides}", "${args}", "${args_no_equals}"]))
@example("none", "${args}")
@example("None", "${overrides}")
@example("lr=5", "${args_no_equals}")
@example("'q'", "${args}")
def test_any_text_is_read_back(text, word):
    known = {"name": "default", "lr": 1.0}
    assert parameters(known, argv=WORDS[word]({"name": text, "lr": 0.1})) == {"name": text, "lr": 0.1}


@given(st.lists(ANY_TEXT, max_size=3), st.sampled_from(["${overrides}", "${args}"]))
@example(["a\\", "b"], "${overrides}")
@example(["None", "none"], "${overrides}")
@example(["a\n"], "${args}")
def test_any_texts_of_a_list_are_read_back(texts, word):
    assert parameters({"names": []}, argv=WORDS[word]({"names": tuple(texts)})) == {"names": texts}


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ([], {"lr": 0.1, "n": 4, "fast": False, "name": "x", "any": None}),
        (["lr=1", "--n=7", "--fast"], {"lr": 1.0, "n": 7, "fast": True, "name": "x", "any": None}),
        (["--name", "3", "any=3"], {"lr": 0.1, "n": 4, "fast": False, "name": "3", "any": 3}),
        (["--lr", "-1e-3"], {"lr": -0.001, "n": 4, "fast": False, "name": "x", "any": None}),
    ],
    ids=["defaults", "types", "text", "negative"],
)  # fmt: skip
def test_a_value_has_the_type_of_its_default(argv, found):
    read = parameters(lr=0.1, n=4, fast=False, name="x", any=None, argv=argv)
    assert read == found
    assert [type(value) for value in read.values()] == [type(value) for value in found.values()]


@pytest.mark.parametrize("kernel", ["ipykernel_launcher.py", "colab_kernel_launcher.py"])
def test_in_a_notebook_they_are_the_defaults(monkeypatch, kernel):
    monkeypatch.setattr(sys, "argv", [f"/env/site-packages/{kernel}", "-f", "/run/kernel-1.json"])
    assert parameters(lr=0.1) == {"lr": 0.1}
    monkeypatch.setattr(sys, "argv", ["train.py", "lr=0.2"])  # as `%run train.py lr=0.2` there
    assert parameters(lr=0.1) == {"lr": 0.2}


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["lrr=1"], "lrr: no such parameter; did you mean lr?"),
        (["--lr"], "--lr: a value is missing"),
        (["--depth=1"], "depth: no such parameter; known are: lr, n"),
        (["n=1.5"], "n=1.5: not a whole number, as its default 4 is"),
        (["lr=fast"], "lr=fast: not a number"),
        (["fast"], "fast: write NAME=VALUE or --NAME=VALUE"),
    ],
    ids=["misspelt", "no value", "unknown", "fraction", "text", "word"],
)
def test_a_wrong_word_ends_the_script_in_one_line(argv, problem, capsys):
    with pytest.raises(SystemExit) as ended:
        parameters(lr=0.1, n=4, argv=argv)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert problem in said
    assert said.count("\n") == 1


def test_reports_and_the_result_are_files_of_the_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SWEEP_RUN_DIR", str(tmp_path))
    report(step=1, loss=0.5)
    report(step=2, loss=float("nan"), of=2, note="end")
    finish({"eval.loss": np.float32(0.25)}, loss=0.5)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[0] == '{"step": 1, "loss": 0.5}'
    assert json.loads(lines[1])["note"] == "end"
    assert json.loads((tmp_path / "result.json").read_text()) == {"eval.loss": 0.25, "loss": 0.5}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "result.json"]
    assert capsys.readouterr().out == ""


def test_a_run_folder_of_ones_own_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEP_RUN_DIR", str(tmp_path / "runs" / "again"))
    finish(loss=0.5)
    assert json.loads((tmp_path / "runs" / "again" / "result.json").read_text()) == {"loss": 0.5}


def test_without_a_sweep_they_are_printed(monkeypatch, capsys):
    monkeypatch.delenv("SWEEP_RUN_DIR", raising=False)
    report(step=1, loss=0.5)
    finish(loss=0.5)
    assert capsys.readouterr().out == '{"step": 1, "loss": 0.5}\n{"loss": 0.5}\n'
    with pytest.raises(ValueError, match=r"finish\(loss="):
        finish()


def test_only_the_standard_library_is_imported():
    """`-S` leaves out installed packages; the folder of this checkout alone is added."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from sweeps.script import parameters; print(parameters())"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("{}\n", "")


SPACE = """\
name: early
objectives: [{metric: loss}]
program: {command: [python, train.py, "${args}"]}
parameters: {x: {values: [1, 2, 3, 100]}}
search: {method: grid}
early_terminate: {type: median, min_trials: 3, min_step: 5}
lease: {heartbeat_s: 0.3, expire_s: 60}
"""
SCRIPT = """\
import time
from sweeps.script import finish, parameters, report

x = parameters(x=1)["x"]
for step in range(1, 11):
    report(step=step, of=10, loss=x)
if x == 100:
    time.sleep(60)  # until it is stopped
finish(loss=x)
"""


def test_a_script_that_falls_behind_is_stopped(sweep, tmp_path, monkeypatch):
    """A command, too, not only a function: by the lines of its `metrics.jsonl`."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert sweep("init", "space.yaml").status == 0
    ran = sweep("worker", "--exit-when-idle")
    assert ran.status == 0, ran.err
    rows = json.loads(sweep("trials", "--format", "json").out)
    by_x = {row["param.x"] if "param.x" in row else row["parameters"]["x"]: row["status"] for row in rows}
    assert by_x == {1: "completed", 2: "completed", 3: "completed", 100: "early_stopped"}
