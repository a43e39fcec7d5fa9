"""Order of a grid whose stages have trunks: the longest of each first, then what branches off."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.search.grid import Grid
from sweeps.space.definition import Choice, Objective, Program, Search, Space, Stage, Trunk, Value
from sweeps.space.stages import decay_start
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

DECAY = 0.2
SPACE = Space(
    name="lengths",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Choice(name="seed", values=(0, 1)),
        Choice(name="one.steps", values=(50, 100), ordered=True),
        Choice(name="two.steps", values=(10, 20, 40), ordered=True),
    ),
    program=Program(kind="function", function="m:f"),
    search=Search(method="grid"),
    stages=(
        Stage(
            name="one",
            parameters=("seed", "one.*"),
            trunk=Trunk(length="one.steps", decay=DECAY, every=40),
        ),
        Stage(name="two", parameters=("two.*",), trunk=Trunk(length="two.steps", decay=DECAY, every=8)),
    ),
)
Lengths = tuple[int, int, int]


def lengths(parameters: dict[str, Value]) -> Lengths:
    seed, one, two = (int(parameters[name]) for name in ("seed", "one.steps", "two.steps"))
    return seed, one, two


def started(parameters: dict[str, Value], index: int) -> Trial:
    return Trial(trial=index, status="running", parameters=parameters, generator="grid")


def ended(record: Trial) -> Trial:
    """Return the record with the points and ends that the trial leaves."""
    runs, points = [], []
    for stage in SPACE.stages:
        assert stage.trunk is not None
        steps = int(record.parameters[stage.trunk.length])
        until = decay_start(steps, DECAY)
        runs.append(StageRun(name=stage.name, key="a" * 64, cost=1.0, snapshot=True))
        points += [
            StageRun(name=stage.name, key="b" * 64, cost=1.0, snapshot=True, step=step)
            for step in sorted({*range(stage.trunk.every, until + 1, stage.trunk.every), until})
        ]
    return replace(record, status="completed", stages=tuple(runs), points=tuple(points))


def test_one_worker_computes_the_longest_of_each_trunk_first():
    records: list[Trial] = []
    while left := Grid(SPACE).in_order(records):
        records.append(ended(started(left[0], len(records))))
    order = [lengths(dict(record.parameters)) for record in records]
    assert order[:4] == [(0, 100, 40), (1, 100, 40), (0, 50, 40), (1, 50, 40)]
    rest = itertools.product((0, 1), (50, 100), (10, 20))
    assert order[4:] == sorted(rest)


def test_configurations_on_stored_trunks_come_next():
    grid = Grid(SPACE)
    records = [started(p, i) for i, p in enumerate(grid.in_order([])) if int(p["two.steps"]) == 40]
    records = [replace(record, trial=index) for index, record in enumerate(records)]
    at = next(i for i, r in enumerate(records) if lengths(dict(r.parameters)) == (1, 50, 40))
    records[at] = ended(records[at])
    order = [lengths(p) for p in grid.in_order(records)]
    assert order[:2] == [(1, 50, 10), (1, 50, 20)]
    assert len(order) == 8  # and while nothing is left but trials whose trunks run, they are asked for


def test_deleted_steps_and_steps_in_decay_are_unusable():
    grid = Grid(SPACE)
    first = ended(started(next(p for p in grid.in_order([]) if lengths(p) == (0, 100, 40)), 0))
    others = [started(p, 1 + i) for i, p in enumerate(grid.in_order([first])) if int(p["two.steps"]) == 40]
    assert lengths(grid.in_order([first, *others])[0]) == (0, 100, 10)
    gone = replace(
        first,
        stages=tuple(replace(run, snapshot=False) for run in first.stages),
        points=tuple(replace(run, snapshot=False) for run in first.points),
    )
    assert lengths(grid.in_order([gone, *others])[0]) == (0, 50, 10)
    for one_kind in (replace(gone, points=first.points), replace(gone, stages=first.stages)):
        assert lengths(grid.in_order([one_kind, *others])[0]) == (0, 100, 10)
    late = tuple(run for run in first.points if run.name == "two" and run.step == 32)
    assert lengths(grid.in_order([replace(gone, points=late), *others])[0]) == (0, 50, 10)


def test_what_a_longer_one_will_open_comes_last():
    running = started(next(p for p in Grid(SPACE).in_order([]) if lengths(p) == (1, 100, 40)), 0)
    order = [lengths(p) for p in Grid(SPACE).in_order([running])]
    assert order[0] == (0, 100, 40)
    assert order.index((1, 100, 10)) < order.index((0, 50, 10))


def test_the_next_longest_opens_a_trunk_whose_first_trial_failed():
    grid = Grid(SPACE)
    failed = replace(started(grid.in_order([])[0], 0), status="failed")
    assert lengths(grid.in_order([failed])[0]) == (0, 100, 20)


def test_without_trunks_the_order_is_the_files():
    plain = replace(SPACE, stages=tuple(replace(stage, trunk=None) for stage in SPACE.stages))
    for space in (plain, replace(SPACE, search=Search(method="grid", reuse="none"))):
        grid = Grid(space)
        assert grid.in_order([]) == grid.left([])


@settings(max_examples=40)
@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_any_number_of_workers_tries_each_configuration_once(workers: int, chance: random.Random):
    grid = Grid(SPACE)
    records: list[Trial] = []
    running: list[int] = []
    while len(records) < 12 or running:
        if left := grid.in_order(records) if len(running) < workers else []:
            assert sorted(map(lengths, left)) == sorted(map(lengths, grid.left(records)))
            running.append(len(records))
            records.append(started(left[0], len(records)))
            continue
        done = running.pop(chance.randrange(len(running)))
        records[done] = (
            ended(records[done]) if chance.random() < 0.8 else replace(records[done], status="failed")
        )
    assert len({lengths(dict(record.parameters)) for record in records}) == 12
