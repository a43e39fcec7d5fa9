"""The sweep that docs/explanation/answer.md needs, trained in one go: `python -m benchmarks.real sweep`.

One sweep of enqueued trials in three phases, each begun when the one before it has ended: the rates of both
stages, for Stage 2 alone and after a Stage 1.9 of equal compute; the lengths over three seeds, each way with
its own best rates; then lambda's start and saliency. Within a phase trials come seed by seed: a run that
ends early has whole comparisons of fewer seeds. The records are written after each phase and at the end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import sweeps

Point = dict[str, Any]

RATE_1_9, RATE_2 = "stage1_9.optimizer.lr", "stage2.optimizer.lr"
STEPS_1_9, STEPS_2 = "stage1_9.max_steps", "stage2.max_steps"
LAMBDA, SALIENCY = "stage2.lambda_warmup.start", "stage1_9.saliency.enabled"

RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
LENGTHS = (50, 100, 200, 400)
STEPS = 200
"""Steps of Stage 2 after a Stage 1.9."""
SEEDS = (0, 1, 2)
MIDDLE = 100
"""The length of Stage 1.9 whose rates are searched."""


def alone(length: int) -> int:
    """Return the steps of Stage 2 alone with the FLOPs of a Stage 1.9 of this length and Stage 2.

    A step of Stage 1.9 is 4/3 of one of Stage 2: the teacher's forward pass comes on top.
    """
    return STEPS + round(length * 4 / 3)


SETTING = (
    *("model=hf", "model.name=real/smollm2_16k"),
    *("data=text", "data.files=real/text.jsonl", "data.text_key=text", "data.sequence_length=256"),
    *("data.held_out_fraction=0.04", "data.held_out_tokens=131072"),
    *("data.test_fraction=0.005", "data.test_tokens=4096", "stage1_9.batch_size=12", "stage2.batch_size=12"),
    *("device=cuda", "device.threads=1", "device.dtype=bfloat16", "device.compile=layers"),
    *("eval.batches=4", "eval.batch_size=64", "eval.at=[]", "samples.enabled=false"),
    *("stage1_9.trunk_every=[35,70,140]", "force=true"),
)
"""Overrides of all trials."""


def space(setting: Sequence[str] = SETTING) -> dict[str, Any]:
    """Return the sweep's definition."""
    return {
        "name": "answer",
        "objectives": [{"metric": "final_loss"}],
        "program": {"trainer": {"overrides": list(setting)}},
        "parameters": {
            STEPS_1_9: {"values": [0, *LENGTHS], "ordered": True},
            STEPS_2: {"values": sorted({STEPS, *map(alone, LENGTHS)}), "ordered": True},
            RATE_1_9: {"values": list(RATES), "ordered": True},
            RATE_2: {"values": list(RATES), "ordered": True},
            LAMBDA: {"values": [0.0, 0.75, 1.0], "ordered": True},
            SALIENCY: {"values": [False, True]},
            "seed": {"values": list(SEEDS)},
        },
        "search": {"method": "random"},
        "run_cap": 1,
        "snapshots": {"keep": 12, "keep_gib": 14},
    }


def point(stage1_9: int, stage2: int, rates: Mapping[bool, tuple[float, float]], seed: int = 0) -> Point:
    """Return a trial; `rates` has those of both stages by whether there is a Stage 1.9."""
    first, second = rates[stage1_9 > 0]
    return {
        **{STEPS_1_9: stage1_9, STEPS_2: stage2, RATE_1_9: first, RATE_2: second},
        **{LAMBDA: 0.75, SALIENCY: False, "seed": seed},
    }


def phases(trials: Any) -> Iterator[list[Point]]:
    """Yield the trials of each phase.

    Args:
        trials: returns the sweep's table; asked once the trials of the phase before it have ended.
    """
    middle = RATES[len(RATES) // 2]
    pairs = [{True: (first, second), False: (middle, second)} for second in RATES for first in RATES[1::2]]
    yield [
        *(point(0, alone(MIDDLE), pair) for pair in pairs[::2]),
        *(point(MIDDLE, STEPS, pair) for pair in pairs),
    ]
    table = trials()
    rates = {each: best_rates(table, after_stage1_9=each) for each in (False, True)}
    yield [
        point(*lengths, rates, seed)
        for seed in SEEDS
        for lengths in [(0, STEPS), *(each for n in LENGTHS for each in ((n, STEPS), (0, alone(n))))]
    ]
    length = best_length(trials(), rates[True])
    changes: list[Point] = [{LAMBDA: 0.0}, {LAMBDA: 1.0}, {SALIENCY: True}]
    yield [point(length, STEPS, rates, seed) | change for seed in SEEDS for change in changes]


def best_rates(table: pd.DataFrame, *, after_stage1_9: bool) -> tuple[float, float]:
    """Return the rates of the lowest completed loss, with a Stage 1.9 before Stage 2 or without one."""
    own = table[(table.status == "completed") & ((table[f"param.{STEPS_1_9}"] > 0) == after_stage1_9)]
    if own.empty:
        raise SystemExit(
            f"no trial {'with' if after_stage1_9 else 'without'} Stage 1.9 completed: see `sweep trials`"
        )
    best = own.loc[own["final_loss"].idxmin()]
    return float(best[f"param.{RATE_1_9}"]), float(best[f"param.{RATE_2}"])


def best_length(table: pd.DataFrame, rates: tuple[float, float]) -> int:
    """Return the length of Stage 1.9 with the lowest mean loss over the seeds at these rates."""
    own = table[
        (table.status == "completed")
        & (table[f"param.{STEPS_1_9}"] > 0)
        & (table[f"param.{RATE_1_9}"] == rates[0])
        & (table[f"param.{RATE_2}"] == rates[1])
    ]
    return int(own.groupby(f"param.{STEPS_1_9}")["final_loss"].mean().idxmin())


def train(
    storage: str, records: Path, *, minutes: float, workers: int, setting: Sequence[str] = SETTING
) -> None:
    """Train the phases with so many workers at once, for so many minutes, and write the records.

    What runs when the time is over is handed back; called again with the same storage, it goes on.
    """
    ends = time.monotonic() + minutes * 60
    sweep = sweeps.create(space(setting), storage=storage, skip_if_exists=True)
    for points in phases(sweep.trials):
        known = len(sweep.trials())
        sweep.extend(run_cap=known + len(points))
        added = {sweep.enqueue(each, skip_if_exists=True) for each in points}
        sweep.extend(run_cap=len(sweep.trials()))
        is_ended = run_workers(sweep.url, workers, ends)
        table = sweep.trials()
        table.to_csv(records, index=False)
        ended = table[table.trial.isin(added) & (table.status == "completed")]
        print(f"{len(ended)} of {len(added)} trials of this phase completed", flush=True)
        if not is_ended:
            print(f"the {minutes:g} minutes are over; the same command goes on")
            return


def run_workers(url: str, workers: int, ends: float) -> bool:
    """Run workers until the sweep has no trial left, and return True; at the time `ends` stop them."""
    command = [sys.executable, "-m", "sweeps", "worker", "--storage", url]
    started = [subprocess.Popen(command) for _ in range(workers)]
    try:
        while any(each.poll() is None for each in started):
            if time.monotonic() > ends:
                return False
            time.sleep(0.5)
        return True
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait()
