"""Sweeps of the tiny model with shared first stages and without: `python -m benchmarks.reuse_runs`.

Each trial has 100 steps of Stage 1.9 and 60 of Stage 2, and each sweep 24 trials by one worker with one
thread. The two sweeps of a seed run side by side, so that their wall times compare. A benchmark that was
stopped goes on where it was: sweeps are kept in `--storage`, with their wall times in `wall.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sweeps

SEARCHES = ("none", "auto")
METRIC = "final_loss"

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--batch", type=int, default=4, help="sequences of 128 tokens in a step")
    parser.add_argument("--storage", type=Path, default=Path("reuse-runs"))
    arguments = parser.parse_args()
    rows = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        spaces = [space(seed, reuse, arguments.trials, arguments.batch) for reuse in SEARCHES]
        rows += [row(sweep, wall) for sweep, wall in run(spaces, arguments.storage)]
    print(table(rows))


def space(seed: int, reuse: str, trials: int, batch: int) -> dict[str, Any]:
    """Return the search space of one sweep: three parameters of Stage 1.9 and three of Stage 2."""
    return {
        "name": f"{reuse}-{seed}",
        "objectives": [{"metric": METRIC, "goal": "minimize"}],
        "program": {
            "trainer": {
                "overrides": [
                    "model=tiny",
                    "data=stdlib",
                    "device.threads=1",
                    f"stage1_9.batch_size={batch}",
                    f"stage2.batch_size={batch}",
                    "eval.batches=4",
                    "eval.at=[1.0]",
                ]
            }
        },
        "parameters": {
            "stage1_9.optimizer.lr": {"min": 1e-3, "max": 1.6e-2, "distribution": "log_uniform_values"},
            "stage1_9.lm_loss_weight": {"min": 0.0, "max": 0.9},
            "stage1_9.loss_type": {"values": ["mse_normalized", "cosine", "mse"]},
            "stage2.optimizer.lr": {"min": 1e-3, "max": 1.6e-2, "distribution": "log_uniform_values"},
            "stage2.lambda_warmup.start": {"min": 0.0, "max": 1.0},
            "stage2.schedule.decay_fraction": {"min": 0.1, "max": 0.9},
            "stage1_9.max_steps": {"value": 100},
            "stage2.max_steps": {"value": 60},
            "seed": {"value": seed},
        },
        "search": {"method": "bayes", "seed": seed, "reuse": reuse},
        "run_cap": trials,
    }


def run(spaces: Sequence[dict[str, Any]], storage: Path) -> list[tuple[Any, float]]:
    """Run sweeps side by side, or what is left of them, by a worker each.

    Returns:
        The sweeps, each with its wall time in seconds.
    """
    storage.mkdir(parents=True, exist_ok=True)
    path = storage / "wall.json"
    walls: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    made = [sweeps.create(each, storage=str(storage), skip_if_exists=True) for each in spaces]
    begun = time.monotonic()
    running = {
        sweep.name: subprocess.Popen(
            [sys.executable, "-m", "sweeps", "worker", "--storage", sweep.url],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        for sweep in made
        if not (storage / f"{sweep.name}.ended").exists()
    }
    try:
        while running:
            time.sleep(0.2)
            for name in [name for name, worker in running.items() if worker.poll() is not None]:
                walls[name] = walls.get(name, 0.0) + time.monotonic() - begun
                if status := running.pop(name).returncode:
                    raise SystemExit(f"the worker of {name} ended with status {status}")
                (storage / f"{name}.ended").touch()
    finally:
        walls |= {name: walls.get(name, 0.0) + time.monotonic() - begun for name in running}
        path.write_text(json.dumps(walls))
    return [(sweep, walls[sweep.name]) for sweep in made]


def row(sweep: Any, wall: float) -> Row:
    """Return the figures of a finished sweep."""
    table = sweep.trials()
    return {
        "sweep": sweep.name,
        "wall": wall,
        "trials": len(table),
        "nominal": float(table["cost_nominal"].sum()),
        "paid": table["cost_paid"].astype(float).tolist(),
        "losses": table[METRIC].astype(float).tolist(),
    }


def best_at(row: Row, compute: float) -> float:
    """Return the lowest loss of the trials that end before more than this compute is paid."""
    spent, best = 0.0, float("inf")
    for paid, loss in zip(row["paid"], row["losses"], strict=True):
        spent += paid
        if spent > compute:
            break
        best = min(best, loss)
    return best


def paid_until(row: Row, loss: float) -> float:
    """Return what is paid once a trial has this loss or a lower one; infinity: none has."""
    spent = 0.0
    for paid, found in zip(row["paid"], row["losses"], strict=True):
        spent += paid
        if found <= loss:
            return spent
    return float("inf")


def table(rows: Sequence[Row]) -> str:
    """Return a row for each sweep.

    The last columns have its best loss at what the cheaper sweep of its seed has paid, and what it had paid
    when it came to the best loss of the plain one.
    """
    lines = [
        "| sweep | trials | wall | effective steps paid | of | best | best at the smaller compute "
        "| paid until the best of none |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seed = row["sweep"].rpartition("-")[2]
        both = [other for other in rows if other["sweep"].rpartition("-")[2] == seed]
        least = min(sum(other["paid"]) for other in both)
        goal = next(min(other["losses"]) for other in both if other["sweep"] == f"none-{seed}")
        lines.append(
            f"| {row['sweep']} | {row['trials']} | {row['wall']:.0f} s | {sum(row['paid']):.0f} "
            f"| {row['nominal']:.0f} | {min(row['losses']):.4f} | {best_at(row, least):.4f} "
            f"| {paid_until(row, goal):.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
