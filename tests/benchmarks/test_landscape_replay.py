"""Searchers replayed on landscapes: what trials pay, what is chosen, and what is made of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks.landscapes import compare
from benchmarks.landscapes import replay as replaying
from benchmarks.landscapes.replay import (
    Landscape,
    Run,
    Simulation,
    group_results,
    read_results,
    runs,
    simulate,
)
from benchmarks.landscapes.searchers import EXTRA, SEARCHERS, Searcher, Task, find
from sweeps.space.definition import (
    Choice,
    Fixed,
    Objective,
    Program,
    Range,
    Search,
    Space,
    Stage,
    Trunk,
    Value,
)
from sweeps.trials.stage_run import StageRun

pytestmark = pytest.mark.usefixtures("few_starts")

RUN = Run(landscape="made", searcher="random", seed=0, trials=3)
SPACE = Space(
    name="made",
    objectives=(Objective(metric="final_loss"),),
    parameters=(
        Range(name="first.lr", min=1e-3, max=1e-1, kind="float", log=True),
        Range(name="second.steps", min=10, max=40, kind="int"),
        Choice(name="second.kind", values=(1, 2, 4), ordered=True),
        Fixed(name="second.batch", value=4),
    ),
    program=Program(kind="function", function="made:none"),
    search=Search(),
    stages=(
        Stage(name="first", parameters=("first.*",), cost="60"),
        Stage(
            name="second", parameters=("second.*",), cost="second.steps",
            trunk=Trunk(length="second.steps", decay=0.5, every=10),
        ),
    ),
    baseline={"first.lr": 1e-2, "second.steps": 40, "second.kind": 2},
)  # fmt: skip
LANDSCAPE = Landscape(
    space=SPACE,
    losses=lambda rows: np.array(
        [row["second.kind"] + row["first.lr"] + row["second.batch"] for row in rows]
    ),
    residuals=np.array([-0.1, 0.1]),
    full=100.0,
)


class Scripted(Searcher):
    """Asks for what it was given, in turn, and keeps what is stored."""

    shares = True
    script: Sequence[Mapping[str, Value]] = ()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.runs: list[tuple[int, StageRun]] = []

    def ask(self, trial: int) -> Mapping[str, Value]:
        return self.script[trial % len(self.script)]

    def record_stage(self, trial: int, run: StageRun) -> None:
        self.runs.append((trial, run))


def scripted(
    *script: tuple[float, int, int], shares: bool = True, workers: int = 1
) -> tuple[Simulation, Scripted]:
    searcher = Scripted(Task(space=SPACE, seed=0, workers=workers))
    searcher.shares = shares
    searcher.script = [{"first.lr": lr, "second.steps": s, "second.kind": k} for lr, s, k in script]
    simulation = Simulation(LANDSCAPE, searcher, replace(RUN, workers=workers))
    simulation.run()
    return simulation, searcher


def test_without_sharing_every_trial_pays_all_stages() -> None:
    simulation, searcher = scripted((0.01, 40, 1), shares=False)
    assert [paid for paid, _, _ in simulation.curve] == [100.0, 200.0, 300.0]
    assert not searcher.runs
    assert simulation.reused == 0


def test_a_stored_first_stage_and_trunk_are_not_paid_again() -> None:
    # 60 + 40; kind differs: 40 alone; another length: from step 10 of the trunk of the first, 20 of 30 left.
    simulation, searcher = scripted((0.01, 40, 1), (0.01, 40, 2), (0.01, 30, 1), (0.02, 40, 1))
    assert [paid for paid, _, _ in simulation.curve] == pytest.approx(
        [100.0, 140.0, 160.0, 260.0, 280.0, 300.0]
    )
    reused = [
        (trial, run.name, run.reused_from) for trial, run in searcher.runs if run.reused_from is not None
    ]
    assert reused[:2] == [(1, "first", 0), (2, "first", 0)]
    assert [(t, r.name, r.step, r.cost) for t, r in searcher.runs[:3]] == [
        (0, "first", None, 60.0), (0, "second", 10, 10.0), (0, "second", 20, 20.0)
    ]  # fmt: skip


def test_workers_share_only_what_is_stored_when_they_ask() -> None:
    simulation, _ = scripted((0.01, 40, 1), (0.01, 40, 2), workers=2)
    assert [paid for paid, _, _ in simulation.curve] == [200.0, 200.0, 240.0, 240.0, 280.0, 280.0]
    assert simulation.reused == 6  # all but the first two; two more run at the end


def test_searchers_are_told_losses_with_noise_and_judged_without() -> None:
    searcher = SEARCHERS["random"](Task(space=SPACE, seed=1))
    simulation = Simulation(LANDSCAPE, searcher, replace(RUN, seed=1, noise=True))
    simulation.run()
    assert searcher.losses[0] - simulation.curve[0][1] == pytest.approx(LANDSCAPE.noise(1, 0))
    assert {LANDSCAPE.noise(1, trial) for trial in range(20)} == {-0.1, 0.1}
    assert all(own == lowest for _, own, lowest in simulation.curve)  # random search chooses the lowest


@pytest.mark.parametrize(
    "name", ["random", "optuna-tpe", "optuna-gp", "ax", "ours", "ours-plain", "smac", "smac-gp", "neps"]
)
def test_searchers_take_the_defaults_first_if_they_are_known(name: str) -> None:
    if name in EXTRA and find_spec(name.partition("-")[0]) is None:
        pytest.skip("not installed")
    searcher = find(name)(Task(space=SPACE, seed=0))
    asked = searcher.ask(0)
    assert {n: v for n, v in asked.items() if n != "second.batch"} == dict(SPACE.baseline or {})
    searcher.tell(0, 3.0)
    assert searcher.choose() == 0
    fresh = find(name)(Task(space=replace(SPACE, baseline=None), seed=0))
    assert {*fresh.ask(0), "second.batch"} == {*(SPACE.baseline or {}), "second.batch"}
    assert dict(fresh.ask(1)) != dict(asked)


def test_every_searcher_starts_eight_workers() -> None:
    for name in ("random", "optuna-tpe", "optuna-gp", "ax", "ours"):
        searcher = find(name)(Task(space=replace(SPACE, baseline=None), seed=0, workers=8))
        asked = {tuple(sorted(searcher.ask(trial).items())) for trial in range(8)}
        assert len(asked) == 8, name


def test_own_searcher_is_found_and_an_unknown_one_refused() -> None:
    assert find("benchmarks.landscapes.searchers:Random") is SEARCHERS["random"]
    with pytest.raises(ValueError, match="'fast'"):
        find("fast")
    with pytest.raises(ValueError, match="cannot be imported"):
        find("benchmarks.none:Random")


def test_a_replay_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "load", lambda _: pytest.fail("nothing is missing"))
    path = tmp_path / "replay.jsonl"
    result = simulate(RUN, LANDSCAPE)
    line = json.dumps(result)
    path.write_text(f"{line}\n{line[:20]}")
    assert replaying.replay([RUN], path, 1) == {RUN: json.loads(line)}
    assert list(read_results(path)) == [RUN]
    assert result["trials"] >= 3


def test_a_line_has_the_points_where_a_loss_changes() -> None:
    curve = [(1.0, 3.0, 3.0), (2.0, 3.0, 3.0000001), (3.0, 2.0, 3.0), (4.0, 2.0, 2.0), (5.0, 2.0, 2.0)]
    kept = replaying.changes(curve)
    assert kept == [(1.0, 3.0, 3.0), (3.0, 2.0, 3.0), (4.0, 2.0, 2.0)]
    for choice in get_args(compare.Choice):
        whole, short = (
            compare.losses_on_grid([{"curve": each, "full": 1.0}], 6, choice) for each in (curve, kept)
        )
        np.testing.assert_allclose(whole, short, atol=1e-6)


def made(searcher: str, seed: int, losses: Sequence[float]) -> tuple[Run, replaying.Result]:
    run = replace(RUN, searcher=searcher, seed=seed, trials=4)
    curve = [[100.0 * (nth + 1), loss, loss + 1] for nth, loss in enumerate(losses)]
    return run, {"full": 100.0, "curve": curve, "trials": len(curve), "reused": 0}


def test_table_has_the_compute_to_the_reference_loss() -> None:
    results = dict(
        [made("ax", seed, (4, 3, 3, 2)) for seed in range(3)] + [made("ours", seed, (4, 2, 2, 1)) for seed in range(3)]
        + [made("random", seed, (4, 4, 4, 4)) for seed in range(3)]
    )  # fmt: skip
    rows = [row.split(" | ") for row in compare.table(results).splitlines()[2:]]
    assert [row[6] for row in rows[:3]] == ["1.00 (1.00 to 1.00)", "0.50 (0.50 to 0.50)", "> 1 (> 1 to > 1)"]
    assert rows[1][7:9] == ["2.0000 (2.0000 to 2.0000)", "1.0000 (1.0000 to 1.0000)"]
    assert rows[3][0] == "| median of 1"
    assert "2.0000" not in compare.table({run: r for run, r in results.items() if run.searcher == "random"})


def test_losses_on_the_grid_change_where_a_trial_ends() -> None:
    (found,) = compare.losses_on_grid([made("ax", 0, (4, 3))[1]], 4, "own")
    assert np.isinf(found[: compare.POINTS - 1]).all()
    assert list(found[[compare.POINTS - 1, 2 * compare.POINTS - 2, 2 * compare.POINTS - 1, -1]]) == [
        4,
        4,
        3,
        3,
    ]
    (lowest,) = compare.losses_on_grid([made("ax", 0, (4, 3))[1]], 4, "lowest")
    assert lowest[-1] == 4


def test_there_is_a_figure_for_each_landscape(tmp_path: Path) -> None:
    results = dict(
        made(searcher, seed, (4, 3, 2, 2 + seed)) for searcher in ("ax", "ours") for seed in range(3)
    )
    run, late = made("random", 0, (3,))
    results[run] = {**late, "curve": [[350.0, 3.0, 3.0]]}  # of many workers: nothing has ended before
    (path,) = compare.figures(results, tmp_path)
    assert path.name == "made-1-workers-4-trials.svg"
    assert "true loss of the chosen configuration, made" in path.read_text()
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_runs_are_compared_seed_by_seed() -> None:
    found = runs(["a", "b"], ["ours", "ax"], [5, 6], [1], noise=True)
    assert [(run.seed, run.landscape, run.searcher) for run in found[:3]] == [
        (5, "a", "ours"), (5, "a", "ax"), (5, "b", "ours")
    ]  # fmt: skip
    assert all(run.noise and run.trials == 30 for run in found)
    assert len(group_results({run: {} for run in found})) == 2


def test_our_search_shares_stages_by_its_records() -> None:
    shared, plain = (find(name)(Task(space=SPACE, seed=0)) for name in ("ours", "ours-plain"))
    simulations = [Simulation(LANDSCAPE, searcher, replace(RUN, trials=5)) for searcher in (shared, plain)]
    for simulation in simulations:
        simulation.run()
    assert simulations[0].reused >= 2
    assert simulations[1].reused == 0
    assert len(simulations[0].curve) > len(simulations[1].curve)
    assert shared.choose() in shared.losses
