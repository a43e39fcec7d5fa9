"""The examples of docs/explanation/sharing.md are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

from memory_store import MemoryStore
from silent_watcher import Silent

from sweeps.experiment import Experiment
from sweeps.programs.result import Completed, parse_result
from sweeps.programs.signals import Stop
from sweeps.space.definition import Space
from sweeps.space.space_file import loads
from sweeps.trials.costs import nominal, paid
from sweeps.worker.loop import work

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "sharing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
SPACE, LENGTHS = (text for language, text in BLOCKS if language == "yaml")
(RESULT,) = (text for language, text in BLOCKS if language == "json")
COMMAND, BRANCHING = (text for language, text in BLOCKS if language == "python")


def results(space: Space) -> list[tuple[dict, float | None, float, float]]:
    sweep = Experiment.create(MemoryStore(), space)
    work(sweep, stop=Stop(), watcher=Silent())
    return [(dict(r.parameters), r.metrics.get("loss"), nominal(r), paid(r)) for r in sweep.trials()]


def test_the_example_computes_each_first_stage_once(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_stages.py").write_text(COMMAND)
    space = loads(SPACE, "space.yaml")
    assert space.stages, "this version reads no stages"
    found = results(space)
    assert [(given["align.steps"], cost, price) for given, _, cost, price in found] == [
        (50, 70, 70), (50, 70, 20), (100, 120, 120), (100, 120, 20)
    ]  # fmt: skip
    alone = results(loads(SPACE.replace("{method: grid}", "{method: grid, reuse: none}"), "space.yaml"))
    assert [loss for _, loss, _, _ in found] == [loss for _, loss, _, _ in alone]
    assert len({loss for _, loss, _, _ in found}) == 4
    assert sum(price for _, _, _, price in alone) == sum(cost for _, _, cost, _ in found)


def test_the_example_computes_each_step_of_a_trunk_once(tmp_path, monkeypatch) -> None:
    """In whichever order: 90 steps before a decay, and decays of 10, 20 and 30."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.py").write_text(BRANCHING)
    found = results(loads(LENGTHS, "space.yaml"))
    assert sorted((given["train.steps"], cost) for given, _, cost, _ in found) == [
        (40, 40), (80, 80), (120, 120)
    ]  # fmt: skip
    assert sum(price for _, _, _, price in found) == 90 + 10 + 20 + 30
    alone = results(loads(LENGTHS.replace("{method: grid}", "{method: grid, reuse: none}"), "space.yaml"))
    losses = {given["train.steps"]: loss for given, loss, _, _ in alone}
    assert all(loss == losses[given["train.steps"]] for given, loss, _, _ in found)
    assert len(set(losses.values())) == 3


def test_the_result_on_the_page_is_understood() -> None:
    import json

    space = loads(SPACE, "space.yaml")
    outcome = parse_result(space, json.loads(RESULT), "result.json")
    assert isinstance(outcome, Completed)
    assert [(stage.name, stage.reused, stage.cost) for stage in outcome.stages] == [
        ("align", True, 400), ("train", False, 120)
    ]  # fmt: skip
