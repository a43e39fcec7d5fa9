"""The notebooks: clean as committed, without logic, and running to their end on a sweep made here."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import AnalysisError

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "analysis" / "notebooks").glob("*.ipynb"))
SPACE = """\
name: ablation
objectives: [{metric: final_loss, goal: minimize}]
program: {function: "two_stages:run"}
parameters:
  seed:                         {values: [0, 1]}
  stage1_9.max_steps:           {values: [0, 25, 100], ordered: true}
  stage2.max_steps:             {values: [60, 120, 240], ordered: true}
  stage2.lambda_warmup.enabled: {values: [true, false]}
search: {method: grid}
"""
PROGRAM = """\
import random

def run(parameters):
    first, second = parameters["stage1_9.max_steps"], parameters["stage2.max_steps"]
    noise = random.Random(str(sorted(parameters.items()))).gauss(0, 0.01)
    loss = 2.5 + 0.8 * (1 + first) ** -0.3 + 12 * (1 + second) ** -0.6 + noise
    loss += 0.3 * (not parameters["stage2.lambda_warmup.enabled"])
    return {"final_loss": loss, "final_loss_sem": 0.01, "effective_steps": 2 * first + second}
"""


def cells(notebook: Path, kind: str = "code") -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


def test_there_are_three() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["ablation", "efficiency", "pareto"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_committed_without_output_and_hold_no_logic(notebook: Path) -> None:
    for cell in cells(notebook):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            logic = (
                ast.If, ast.For, ast.While, ast.FunctionDef, ast.Lambda, ast.ListComp, ast.BinOp, ast.Try,
            )  # fmt: skip
            assert not isinstance(node, logic), ast.unparse(node)
    (parameters,) = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", ())]
    assert "table" in "".join(parameters["source"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trials of a finished sweep, made by the command line as a user would."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "space.yaml").write_text(SPACE)
    (folder / "two_stages.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    for argv in (["init", "space.yaml"], ["worker"], ["export", "trials.csv"]):
        subprocess.run([sys.executable, "-m", "sweeps", *argv], cwd=folder, env=environment, check=True)
    return folder / "trials.csv"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run_to_their_end_on_a_real_sweep(notebook: Path, exported: Path, tmp_path: Path) -> None:
    papermill = [sys.executable, "-m", "papermill", str(notebook), "out.ipynb", "-p", "table", str(exported)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    ran = subprocess.run(
        [*papermill, "-k", "python3"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    outputs = [cell["outputs"] for cell in cells(tmp_path / "out.ipynb")]
    assert not any(output["output_type"] == "error" for cell_outputs in outputs for output in cell_outputs)
    shown = json.dumps(outputs)
    drawn = sum("image/png" in output.get("data", {}) for cell_outputs in outputs for output in cell_outputs)
    assert drawn == {"pareto": 1, "efficiency": 2, "ablation": 1}[notebook.stem]
    assert "<Figure size" not in shown  # named, not shown
    wanted = {
        "pareto": ("pareto", "most efficient", "chance: front"),
        "efficiency": ("iso_compute", "100 effective steps"),
        "ablation": ("ablation", "stage2.lambda_warmup.enabled", "lower"),
    }[notebook.stem]
    for word in wanted[1:]:
        assert word in shown, word
    for ending in (".png", ".svg"):
        assert (tmp_path / "pictures" / wanted[0]).with_suffix(ending).stat().st_size > 2000


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_without_a_table_they_show_the_example_and_say_so(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells(notebook):
        exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    shown = capsys.readouterr().out
    assert shown.startswith("EXAMPLE, ")
    assert f"trials.csv in {tmp_path}; `sweep export trials.csv`" in shown
    assert len(names["trials"]) == 5


def test_another_table_has_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from analysis import notebook

    monkeypatch.chdir(tmp_path)
    with pytest.raises(AnalysisError, match=r"trails\.csv"):
        notebook.load("trails.csv")


OWN = """trial,status,attempt,generator,worker,seconds,error,param.seed,param.wide,accuracy,energy
0,completed,1,grid,a,4,,0,1,0.50,1
1,completed,1,grid,a,6,,0,2,0.75,2
2,completed,1,grid,a,8,,1,1,0.52,3
3,completed,1,grid,a,9,,1,2,0.78,4
"""
"""A sweep of a function: nothing of stages, and a metric of which more is better."""


def run_notebook(name: str, **parameters: Any) -> dict[str, Any]:
    """Run the cells as papermill does, which sets parameters after the cell of that tag; return all names."""
    names: dict[str, Any] = {}
    for cell in cells(ROOT / "analysis" / "notebooks" / f"{name}.ipynb"):
        exec(compile("".join(cell["source"]), name, "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            names |= parameters
    return names


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("trials.csv").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize("compute", ["seconds", "energy"])
@pytest.mark.parametrize(("goal", "front"), [("maximize", (0, 1, 3)), ("minimize", (0,))])
def test_metric_to_maximize_and_a_column_of_ones_own(
    own: Path, compute: str, goal: str, front: tuple[int, ...]
) -> None:
    names = run_notebook("pareto", compute=compute, y="accuracy", goal=goal)
    assert (names["result"].x, names["result"].front) == (compute, front)


def test_efficiency_of_a_metric_to_maximize(own: Path) -> None:
    names = run_notebook("efficiency", compute="energy", y="accuracy", goal="maximize", baseline=0.4)
    assert names["result"].most_efficient == 1  # 0.35 for 2; the others have 0.10, 0.04 and 0.095 for 1


def test_table_without_the_measure_says_which_it_has(own: Path) -> None:
    with pytest.raises(AnalysisError, match=r"report no effective_steps: .*; set `compute` to 'seconds', or"):
        run_notebook("pareto", y="accuracy")
    with pytest.raises(AnalysisError, match=r"compute 'hours' is unknown; .*; set `compute` to"):
        run_notebook("pareto", y="accuracy", compute="hours")


def test_ablation_needs_no_compute(own: Path) -> None:
    names = run_notebook("ablation", y="accuracy", questions=[["wide", 2, 1]])
    assert [paired.mean for _, paired in names["pairs"]] == [pytest.approx(0.255)]
