"""Stated chances and gains beside the truth of a landscape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.json_lines import read_lines
from benchmarks.landscapes import calibration
from sweeps.space.definition import Objective, Program, Range, Search, Space

pytestmark = pytest.mark.timeout(600)

SPACE = Space(
    name="bowl",
    objectives=(Objective(metric="final_loss"),),
    program=Program(kind="function", function="m:f"),
    search=Search(sobol=4, noise=0.02),
    parameters=(Range(name="x", min=0, max=1, kind="float"),),
)


def bowl(rows: Sequence[dict[str, Any]]) -> np.ndarray[Any, Any]:
    return np.array([3.0 + (row["x"] - 0.3) ** 2 for row in rows])


@pytest.fixture
def landscape(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(space=SPACE, losses=bowl)
    monkeypatch.setattr(calibration, "load", lambda name: made)
    return made


def test_the_least_loss_of_a_landscape_is_found(landscape: Any) -> None:
    assert calibration.best_loss(landscape) == pytest.approx(3.0, abs=1e-6)


@pytest.mark.slow
def test_answers_are_compared_with_the_truth(landscape: Any) -> None:
    x = np.linspace(0, 1, 14)
    told = bowl([{"x": each} for each in x]) + 0.02 * np.random.default_rng(0).standard_normal(14)
    line = {
        "landscape": "bowl",
        "seed": 0,
        "best": 3.0,
        "trials": [
            {"parameters": {"x": float(a)}, "told": float(b), "true": float(bowl([{"x": a}])[0])}
            for a, b in zip(x, told, strict=True)
        ],
    }
    (row,) = calibration.answers(line, [10], 4)
    assert row["noise"] == pytest.approx(0.02, rel=1e-3)
    assert row["within"] == float(row["chosen"] <= row["noise"])
    lowest = int(np.argmin(told[:10]))
    assert row["lowest"] == pytest.approx((x[lowest] - 0.3) ** 2)
    assert row["gain"] >= 0
    assert "| 10 | 1 |" in calibration.table([row])


def test_searches_that_the_file_has_are_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "calibrate.jsonl"
    text = '{"landscape": "bowl", "seed": 0, "best": 3.0, "trials": [{}, {}]}\n'
    path.write_text(text)
    assert calibration.searches(["bowl"], [0], 2, path, 1) == read_lines(path)
    assert path.read_text() == text


def test_groups_of_stated_chances_hold_each_answer_once() -> None:
    rows = [
        {"after": 30, "chance": c, "within": 1.0, "noise": 0.1, "gain": 0.0, "gained": 0.0, "chosen": 0.0}
        | {"lowest": 0.0}
        for c in (0.0, 0.25, 0.6, 1.0)
    ]
    groups = calibration.table(rows).split("were within |\n|---|---|---|---|\n")[1].splitlines()
    assert [group.split("|")[2].strip() for group in groups] == ["1", "1", "1", "1"]
