"""`sweep plan` on two small sweeps: the table, the file for the final sweep, and the figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeps.space.space_file import load

pytestmark = pytest.mark.usefixtures("fewer_points")

SPACE = """\
name: n{n}
objectives: [{{metric: loss}}]
program: {{function: "objectives_for_tests:paraboloid"}}
parameters:
  x: {{min: 0.0, max: 1.0}}
  n: {{value: {n}}}
  run: {{value: "1e5"}}
search: {{method: random}}
run_cap: 8
"""


@pytest.fixture
def two(sweep, tmp_path: Path, built_once) -> None:
    """Sweeps of (x - 0.3)² + n / 100 for n of 1 and 2."""

    def build() -> str:
        for n in (1, 2):
            file = tmp_path / f"n{n}.yaml"
            file.write_text(SPACE.format(n=n))
            sweep("init", str(file))
            assert sweep("worker", "--name", f"n{n}").status == 0
        return "./sweep-store/n2"

    built_once("two-sizes", build)


def test_plan_is_printed_written_and_drawn(sweep, two, tmp_path: Path) -> None:
    ran = sweep(
        "plan", "n2", "./sweep-store/n1", "--at", "n=4", "--write", "final.yaml", "--figure", "drift.svg"
    )
    assert ran.status == 0
    head, columns, x, *others = ran.out.splitlines()
    assert head == "n 4: extrapolated to 2 times the largest source; the sources span a factor of 2"
    assert columns.split() == ["parameter", "set", "to", "95", "%", "at", "1", "at", "2"]
    assert x.split()[0] == "x"
    assert float(x.split()[1]) == pytest.approx(0.3, abs=0.1)
    assert any(line.startswith("note: two sizes") for line in others)
    assert load(tmp_path / "final.yaml").parameter("run").value == "1e5"
    assert {path.name for path in tmp_path.glob("drift.*")} == {"drift.svg", "drift.png"}
    made = sweep("init", "final.yaml")
    assert (made.status, made.out.strip()) == (0, "./sweep-store/n2-at-4")
    assert "transfer from ./sweep-store/n1: 5 of 8 results; matched x" in made.err


def test_file_of_the_user_is_not_replaced(sweep, two, tmp_path: Path) -> None:
    ran = sweep("plan", "n1", "n2", "--at", "n=4", "--write", "the final.yaml")
    assert "`sweep init 'the final.yaml'` makes it" in ran.err
    (tmp_path / "final.yaml").write_text("mine")
    ran = sweep("plan", "n1", "n2", "--at", "n=4", "--write", "final.yaml")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == "sweep: error: final.yaml: there is a file already; name a new one\n"
    assert (tmp_path / "final.yaml").read_text() == "mine"


def test_missing_sweep_is_answered_with_those_that_are_there(sweep, two) -> None:
    advice = {"n3": "sweep-store has n1, n2\n", "./sweep-store/n3": "or point --storage at one\n"}
    for given, end in advice.items():
        ran = sweep("plan", "n1", given, "--at", "n=4")
        assert ran.status == 2
        assert "/sweep-store/n3: no sweep here; " in ran.err
        assert "sweep-store has n1, n2" in ran.err
        assert ran.err.endswith(end)


def test_third_measure_is_refused(sweep, two) -> None:
    for targets in (("n=4", "n=5"), ("n=4", "x=5", "y=6")):
        ran = sweep("plan", "n1", "n2", *(part for each in targets for part in ("--at", each)))
        assert ran.status == 2
        assert "--at names one size, and at most one other measure; leave out what is more" in ran.err


def test_plan_for_programs(sweep, two) -> None:
    document = json.loads(
        sweep("plan", "n1", "n2", "--at", "40", "--size", "10", "--size", "20", "--format", "json").out
    )
    assert (document["measure"], document["size"], document["beyond"]) == ("model_parameters", 40.0, 2.0)
    assert [source["size"] for source in document["sources"]] == [10.0, 20.0]
    assert document["space"]["parameters"]["n"] == {"value": 2}
    assert "the space file runs the model of n2: set that of model_parameters 40 there" in document["notes"]


def test_dollars_are_those_of_the_device(sweep, two) -> None:
    ran = sweep("plan", "n1", "n2", "--at", "n=4", "--device", "RunPod A100")
    assert "RunPod A100 at $1.19 an hour on demand" in ran.out


def test_damaged_sweep_is_one_line(sweep, two, tmp_path: Path) -> None:
    (tmp_path / "sweep-store" / "n1" / "sweep.json").write_text("{")
    ran = sweep("plan", "n1", "n2", "--at", "n=4")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "n1/sweep.json" in ran.err
