"""The cost of a pool is printed before it starts, and above the limit nothing starts without a yes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from published import put

from runners.pools import launched
from runners.pools.pool import Pool
from sweeps.cli import cost_guard, launch, show
from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.operations.pools import folder, place_of
from sweeps.space.space_file import loads
from sweeps.storage.local import LocalStore
from sweeps.trials.lifecycle import Complete
from sweeps.trials.record import Attempt, Trial

FIDELITY = """\
name: case
objectives: [{metric: loss}]
program: {function: "m:f"}
parameters:
  lr: {min: 0.0, max: 1.0}
  size: {values: [1, 2]}
fidelity: {size: {cost: [0.1, 1]}}
run_cap: 10
"""
GRID = """\
name: case
objectives: [{metric: loss}]
program: {function: "m:f"}
parameters: {x: {values: [1, 2, 3]}, n: {values: [1, 2]}}
search: {method: grid}
"""
PRICED = ("launch", "local", "--devices", "none", "--price", "RunPod H100")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the pools that were started, which nobody has to wait for."""
    from runners.local import Local

    sizes: list[int] = []
    monkeypatch.setattr(Local, "up", lambda self, pool, report: sizes.append(pool.workers) or 0)
    return sizes


def test_dollars_per_hour_and_remaining_cost(sweep, space_file, started, monkeypatch):
    sweep("init", str(space_file))
    first = sweep(*PRICED, "--workers", "3")
    assert first.status == 0
    assert "$8.67 an hour for 3 workers (RunPod H100 at $2.89" in first.err

    experiment = Experiment.open(LocalStore("sweep-store/toy"))
    record = experiment.ask("somebody")
    monkeypatch.setattr(experiment.store, "now", lambda: record.started + 1800.0)
    experiment.apply(record.trial, Complete(worker="somebody", attempt=1, metrics={"loss": 1.0}, curve=()))
    # Four trials of half an hour are left: 4 x 0.5 x 2.89, shared by two workers.
    assert "$5.78 and 1.0 hours" in sweep(*PRICED, "--workers", "2").err
    assert started == [3, 2]


def test_a_users_own_trials_below_the_target_are_cheap_and_not_under_the_run_cap(tmp_path):
    """Four trials at the target took an hour, two below it 6 minutes: six of an hour are left."""
    space = loads(FIDELITY, "space.yaml")
    experiment = Experiment.create(LocalStore(tmp_path / "case"), space)
    for index in range(6):
        hours, size, generator = (1.0, 2, "sobol") if index < 4 else (0.1, 1, "enqueued")
        attempt = Attempt(attempt=1, worker="w", start=0.0, end=3600 * hours, reason="completed")
        record = Trial(
            trial=index,
            status="completed",
            parameters={"lr": index / 10, "size": size},
            generator=generator,
            metrics={"loss": 1.0, "usd": 10 * hours},
            history=(attempt,),
            started=0.0,
            ended=3600 * hours,
        )
        put(experiment.store, record)
    lines = show.status_lines(experiment, experiment.trials())
    assert any("$42.00 so far, about $102.00 when all 10 are done" in line for line in lines)
    pool = Pool(
        name="case", storage="x", folder=tmp_path, workers=2, command=("true",), dollars_per_hour=10.0
    )
    assert "about $60.00 and 3.0 hours for what is left" in cost_guard.cost_of(pool, 2, experiment)


@pytest.mark.parametrize("cap", ["run_cap: 20", ""])
def test_pool_costs_what_is_left_of_a_grid(tmp_path, cap):
    """Six configurations, whatever the run cap: two of an hour are left."""
    space = loads(f"{GRID}{cap}\n", "space.yaml")
    experiment = Experiment.create(LocalStore(tmp_path / "case"), space)
    for index in range(4):
        attempt = Attempt(attempt=1, worker="w", start=0.0, end=3600.0, reason="completed")
        put(
            experiment.store,
            Trial(
                trial=index,
                status="completed",
                parameters={"x": 1 + index // 2, "n": 1 + index % 2},
                generator="grid",
                metrics={"loss": 1.0},
                history=(attempt,),
                started=0.0,
                ended=3600.0,
            ),
        )
    pool = Pool(
        name="case", storage="x", folder=tmp_path, workers=2, command=("true",), dollars_per_hour=10.0
    )
    assert "about $20.00 and 1.0 hours for what is left" in cost_guard.cost_of(pool, 2, experiment)


def test_above_the_limit_nothing_starts_without_a_yes(sweep, space_file, started, monkeypatch):
    sweep("init", str(space_file))
    refused = sweep(*PRICED, "--workers", "4")
    assert refused.status == 2
    assert "$11.56 an hour" in refused.err
    assert "--yes" in refused.err
    assert sweep(*PRICED, "--workers", "3", "--max-dollars-per-hour", "8").status == 2
    assert started == []
    assert sweep(*PRICED, "--workers", "4", "--yes").status == 0
    assert sweep(*PRICED, "--workers", "4", "--max-dollars-per-hour", "12").status == 0

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer, status in ((False, 2), (True, 0)):
        monkeypatch.setattr(cost_guard.click, "confirm", lambda *words, answer=answer, **options: answer)
        assert sweep(*PRICED, "--workers", "5").status == status
    assert started == [4, 4, 5]


def test_a_pool_that_would_be_scaled_says_its_price_and_stays(sweep, space_file):
    sweep("init", str(space_file))
    files = folder(place_of(Experiment.open(LocalStore("sweep-store/toy"))), "slurm")
    files.mkdir(parents=True)
    pool = Pool(name="toy", storage="x", folder=files, workers=1, command=("true",), dollars_per_hour=2.5)
    launched.write(launched.Launched(runner="slurm", pool=pool))
    ran = sweep("pool", "scale", "8", "--dry-run")  # above the limit, at which it would ask
    assert (ran.status, ran.out) == (0, "")
    assert "8 workers: $20.00 an hour" in ran.err
    assert launched.read(files).pool == pool
    nothing = sweep("pool", "scale", "3", "local", "--dry-run")
    assert (nothing.status, "sweep launch local" in nothing.err) == (2, True)
    assert json.loads(sweep("history", "--format", "json").out) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--price", "RunPod"), "--price: "),
        (("--price", "abacus"), "'abacus'"),
        (("--max-dollars-per-hour", "5"), "--price"),
        (("--rates", "x.yaml"), "--rates needs --price NAME"),
    ],
    ids=str,
)
def test_a_price_that_nobody_knows_is_refused(sweep, space_file, started, options, expected):
    sweep("init", str(space_file))
    ran = sweep("launch", "local", "--devices", "none", *options)
    assert (ran.status, started) == (2, [])
    assert expected in ran.err


def test_an_accelerator_is_looked_up_at_its_kind_of_price():
    pool = Pool(
        name="toy",
        storage="gs://b/toy",
        folder=Path("x"),
        workers=2,
        command=("true",),
        accelerator="v6e-4",
        spot=True,
    )
    assert cost_guard.with_price(pool, None, None).dollars_per_hour == 1.70
    assert cost_guard.with_price(pool, "GCP v5litepod-8", None).dollars_per_hour == 2.04


@pytest.mark.parametrize(
    ("accelerator", "count", "spot", "dollars"),
    [("a100", 1, False, 0.66), ("A100", 8, False, 5.28), ("A100", 1, True, None), ("A10", 1, False, None)],
)
def test_of_several_machines_of_a_name_the_cheapest_is_the_least_that_a_pool_costs(
    sweep, space_file, accelerator, count, spot, dollars
):
    sweep("init", str(space_file))
    experiment = Experiment.open(LocalStore("sweep-store/toy"))
    pool = Pool(
        name="toy",
        storage="gs://b/toy",
        folder=Path("x"),
        workers=32,
        command=("true",),
        accelerator=accelerator,
        accelerator_count=count,
        spot=spot,
    )
    priced = cost_guard.with_price(pool, None, None)
    assert priced.dollars_per_hour == (None if dollars is None else pytest.approx(dollars))
    if dollars is None:
        cost_guard.guard(priced, 32, experiment, yes=False)  # says that it is not known
        return
    least = f"at least ${32 * dollars:.2f} an hour"
    assert cost_guard.cost_of(priced, 32, experiment).startswith(f"{least} for 32 workers (")
    assert f"the cheapest {accelerator}: Thunder A100 at $0.66" in cost_guard.cost_of(priced, 32, experiment)
    with pytest.raises(InputError, match=f"^{re.escape(least)} is above "):
        cost_guard.guard(priced, 32, experiment, yes=False)


def test_a_detached_pool_is_not_asked_about_twice(sweep, space_file, monkeypatch):
    sweep("init", str(space_file))
    argv: list[list[str]] = []

    def popen(words, **options):
        argv.append(words)
        raise OSError(12, "enough seen")

    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    sweep(*PRICED, "--workers", "9", "--yes", "--detach")
    assert argv[0].count("--yes") == 1
    assert "--detach" not in argv[0]
