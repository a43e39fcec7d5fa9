"""Fixtures for tests of the analysis: exports of small sweeps, finished, running, confirmed and with shared stages."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeps.export import table
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

Build = Callable[..., dict[str, Any]]


@pytest.fixture
def length_sweep_file() -> Path:
    return Path(__file__).parents[2] / "analysis" / "examples" / "stage19_length_sweep.csv"


@pytest.fixture
def trial() -> Build:
    """Return a function that makes a trial of an export; what is not given is as in a completed trial."""

    def build(
        index: int,
        loss: float | None = None,
        *,
        status: str = "completed",
        stage1_9: int = 50,
        stage2: int = 60,
        error: str | None = None,
        generator: str = "sobol",
        **metrics: Any,
    ) -> dict[str, Any]:
        losses = {} if loss is None else {"final_loss": loss, "effective_steps": 2.0 * stage1_9 + stage2}
        return {
            "trial": index,
            "status": status,
            "attempt": 1,
            "generator": generator,
            "worker": None,
            "seconds": 12.5,
            "error": error,
            "parameters": {"stage1_9.max_steps": stage1_9, "stage2.max_steps": stage2},
            "metrics": losses | metrics,
        }

    return build


@pytest.fixture
def document() -> Build:
    """Return a function that makes an export of these trials; keywords set other fields."""

    def build(*trials: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "name": "lengths",
            "url": "file:///sweeps/lengths",
            "objectives": [{"metric": "final_loss", "goal": "minimize"}],
            "run_cap": 20,
            "trials": list(trials),
        } | fields

    return build


@pytest.fixture
def mattered(sweep: dict[str, Any]) -> dict[str, Any]:
    """The sweep below with its surrogate's view, and the provenance of the export."""
    names = ("stage1_9.max_steps", "schedule", "lr")
    done = [trial for trial in sweep["trials"] if trial["status"] == "completed"]
    held_out = [
        {
            "trial": t["trial"],
            "observed": t["metrics"]["final_loss"],
            "predicted": 3.5 + 0.1 * at,
            "predicted_sd": 0.1,
        }
        for at, t in enumerate(done)
    ]
    effects = {
        "stage1_9.max_steps": [10, 50, 400],
        "schedule": ["cosine", "linear"],
        "lr": [0.001, 0.002],
    }
    view = {
        "sensitivity": {
            n: {"first": f, "total": t}
            for n, f, t in zip(names, (0.2, 0.1, 0.5), (0.3, 0.1, 0.6), strict=True)
        },
        "cross_validation": held_out,
        "marginal": {
            name: [{"value": value, "mean": 3.5 - 0.1 * at, "sd": 0.05} for at, value in enumerate(values)]
            for name, values in effects.items()
        },
    }
    numeric = {
        name: {
            "chosen": chosen,
            "low": low,
            "high": high,
            "shares": [],
            "curve": [
                {"value": v, "mean": 3.4 + 0.2 * abs(at - 1), "sd": 0.05} for at, v in enumerate(values)
            ],
        }
        for name, chosen, low, high, values in (
            ("stage1_9.max_steps", 100, 50, 400, [0, 50, 100, 200, 400]),
            ("lr", 0.001, 0.0008, 0.0013, [0.0005, 0.001, 0.002, 0.004]),
        )
    }
    options = {
        "chosen": "cosine",
        "low": None,
        "high": None,
        "shares": [{"value": "cosine", "share": 0.62}, {"value": "linear", "share": 0.38}],
        "curve": [
            {"value": v, "mean": 3.4 + 0.1 * at, "sd": 0.05} for at, v in enumerate(["cosine", "linear"])
        ],
    }
    answer = {
        "trial": 4,
        "metric": "final_loss",
        "mean": 3.405,
        "sentences": [
            "trial 4: final_loss 3.405 by the model (measured 3.400)",
            "71 % that it is within one run's noise (0.011) of the best in this space",
            "12 more trials: expected gain 0.004",
        ],
        "parameters": numeric | {"schedule": options},
    }
    insight = {"trials": len(done), "note": "", "metrics": {"final_loss": view}, "optimum": answer}
    return sweep | {
        "best_trial": 4,
        "insight": insight,
        "provenance": {"stagesweep": "0.1.0", "written": "2026-11-21 12:00 UTC"},
    }


@pytest.fixture
def sweep(trial: Build, document: Build) -> dict[str, Any]:
    """A sweep with a baseline, a front of four, a beaten trial, a failure and a running trial."""
    return document(
        trial(0, 4.00, stage1_9=0, generator="baseline", final_loss_sem=0.02),
        trial(1, 3.60, stage1_9=25, final_loss_sem=0.012),
        trial(2, 3.90, stage1_9=50, final_loss_sem=0.012),
        trial(3, status="failed", error="diverged at step 37: loss is nan\nlast words\nof the program"),
        trial(4, 3.40, stage1_9=100, generator="botorch", final_loss_sem=0.012),
        trial(5, 3.36, stage1_9=400, generator="botorch", final_loss_sem=0.012),
        trial(6, status="running", generator="botorch"),
        best_command=shlex.join(
            ["python", "-m", "trainer", "model=tiny", "stage1_9.max_steps=400", "data.path='a b'"]
        ),
    )


@pytest.fixture
def confirmed(trial: Build, sweep: dict[str, Any]) -> dict[str, Any]:
    """The sweep above after `sweep confirm`: 4 and 5 are confirmed, 4 wins; 1 has one fresh run, a lucky one.

    Worked out by hand: the fresh runs of 4 have the mean 3.39, those of 5 have 3.42. The spread over seeds is
    √((2 · 0.01² + 2 · 0.01²) / 2) = 0.0141 with 2 degrees of freedom, the error of both means
    √(0.012² + 0.0141² / 2) = 0.0156.
    """

    def again(index: int, loss: float, seed: int, **fields: Any) -> dict[str, Any]:
        row = trial(index, loss, generator="confirm", final_loss_sem=0.012, test_loss=loss + 0.1, **fields)
        row["parameters"] |= {"seed": seed, "eval.test": True}
        return row

    runs = (
        again(7, 3.38, 100, stage1_9=100),
        again(8, 3.40, 101, stage1_9=100),
        again(9, 3.41, 100, stage1_9=400),
        again(10, 3.43, 101, stage1_9=400),
        again(11, 2.00, 100, stage1_9=25),
        again(12, 1.00, 101, stage1_9=25, status="failed", error="killed"),
    )
    return sweep | {"trials": [*sweep["trials"], *runs]}


@pytest.fixture
def three(trial: Build, document: Build) -> dict[str, Any]:
    """A sweep with three objectives. Worked out by hand: 0, 1, 2 and 4 are on their front; 3 is worse than 1 in
    all; 4 is beaten in loss and accuracy by 1 and has the least memory; 5 failed and 6 has no accuracy."""
    rows = [(3.4, 0.50, 8.0), (3.0, 0.60, 9.0), (2.8, 0.55, 9.5), (3.1, 0.59, 9.2), (3.6, 0.40, 4.0)]
    trials = [
        trial(i, loss, stage1_9=25 * i, accuracy=accuracy, peak_memory_gib=memory, final_loss_sem=0.02)
        for i, (loss, accuracy, memory) in enumerate(rows)
    ]
    return document(
        *trials,
        trial(5, status="failed", error="out of memory"),
        trial(6, 2.0, peak_memory_gib=1.0),
        objectives=[
            {"metric": "final_loss", "goal": "minimize"},
            {"metric": "accuracy", "goal": "maximize"},
            {"metric": "peak_memory_gib", "goal": "minimize"},
        ],
    )


@pytest.fixture
def shared(trial: Build, document: Build) -> dict[str, Any]:
    """A sweep in which trials 2, 3, 5 and 6 go on from trial 1's Stage 1.9 of 100 effective steps.

    Trial 0 is of before stages were recorded, 4 has a Stage 1.9 of its own and was stopped early, 5 failed
    after the stage that it reused, 7 was imported, and 8 repeats 6 with a fresh seed.
    """

    def stages(key: str, source: int | None, *later: float) -> list[dict[str, Any]]:
        first = {"name": "stage1_9", "key": key, "cost": 100.0, "reused_from": source, "snapshot": not source}
        return [first, *({"name": "stage2", "key": "", "cost": cost, "reused_from": None} for cost in later)]

    runs = (
        trial(1, 3.60) | {"stages": stages("a", None, 60.0)},
        trial(2, 3.90) | {"stages": stages("a", 1, 60.0)},
        trial(3, 3.50) | {"stages": stages("a", 1, 60.0)},
        trial(4, status="early_stopped", stage1_9=60) | {"stages": stages("b", None)},
        trial(5, status="failed", error="diverged") | {"stages": stages("a", 1)},
        trial(6, 3.40, generator="botorch") | {"stages": stages("a", 1, 60.0)},
    )
    imported = trial(7, 3.00, generator="imported")
    repeat = trial(8, 3.45, generator="confirm") | {"stages": stages("e", None, 60.0)}
    repeat["parameters"] |= {"seed": 7}
    return document(trial(0, 4.00, stage1_9=25), *runs, imported, repeat)


@pytest.fixture
def branched() -> dict[str, Any]:
    """The export of a sweep's records, in which trials of several lengths branch off two trunks of stage1_9.

    A step costs 2, the decay takes a fifth, and points are stored every 20 steps. Worked out by hand:

    - trunk of 0: 0 (100 steps) starts it; 1 (50) branches at 40, and 3 reuses its end; 2 (200) goes on from 80;
      5 (130) branches off that at 100 and is stopped early; 7 (400) runs, 180 steps of it are stored.
    - trunk of 4: 4 (100) starts it, its points are removed after 6 (50) has branched at 40.
    """

    def first(steps: int, key: str, **changes: Any) -> StageRun:
        run = StageRun(name="stage1_9", key=key * 32, cost=2.0 * steps, seconds=float(steps), usd=steps / 100)
        return replace(run, **changes)

    def points(trunk: str, *steps: int, stored: bool = True, source: int | None = None) -> Any:
        return tuple(
            first(step, f"{trunk}{step % 16:x}", step=step, snapshot=stored, branched_from=source)
            for step in steps
        )

    def row(index: int, steps: int, loss: float | None, lr: float, **changes: Any) -> Trial:
        metrics = (
            {} if loss is None else {"final_loss": loss, "effective_steps": 2.0 * steps + 60, "usd": 4.0}
        )
        record = Trial(
            trial=index, status="completed" if metrics else "early_stopped", generator="sobol", attempt=1,
            parameters={"stage1_9.max_steps": steps, "stage1_9.lr": lr}, metrics=metrics, **changes,
        )  # fmt: skip
        last = (StageRun(name="stage2", key="", cost=60.0),) if metrics else ()
        return replace(record, stages=record.stages + last)

    def off(source: int, step: int) -> dict[str, Any]:
        return {"branched_from": source, "branched_at": step, "saved": 2.0 * step}

    records = [
        row(0, 100, 3.5, 0.1, stages=(first(100, "a0"),), points=points("a", 20, 40, 60, 80)),
        row(1, 50, 3.8, 0.1, stages=(first(50, "a1", **off(0, 40)),)),
        row(
            2, 200, 3.2, 0.1, stages=(first(200, "a2", **off(0, 80)),),
            points=points("b", 100, 120, 140, 160, source=0),
        ),
        row(3, 50, 3.7, 0.1, stages=(first(50, "a1", reused_from=1),)),
        row(4, 100, 4.0, 0.4, stages=(first(100, "c0"),), points=points("c", 20, 40, 60, 80, stored=False)),
        row(
            5, 130, None, 0.1, stages=(first(130, "a5", **off(2, 100)),), points=points("d", 104, source=2)
        ),
        row(6, 50, 4.2, 0.4, stages=(first(50, "c6", **off(4, 40)),)),
        replace(
            row(7, 400, None, 0.1, points=points("e", 180, source=2)), status="running", worker="w"
        ),
    ]  # fmt: skip
    space = Space(
        name="lengths",
        objectives=(Objective(metric="final_loss"),),
        program=Program(kind="function", function="m:f"),
        parameters=(Range(name="stage1_9.lr", min=1e-3, max=1.0, kind="float"),),
    )
    document: dict[str, Any] = json.loads(json.dumps(table.document(space, "file:///sweeps/l", records)))
    return document
