"""The report of a sweep of 10,000 trials, and their front: `python -m benchmarks.report [--out page.html]`.

Limits: 20 s and 1 GiB for the page, 0.1 s for the front.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from analysis.report.report import render
from analysis.statistics.pareto import front

TRIALS = 10_000


def document(seed: int = 0) -> dict[str, Any]:
    """Return an export with two lengths, three more parameters, five metrics and a failure in ten."""
    random = np.random.default_rng(seed)
    trials = []
    for index in range(TRIALS):
        first, second = int(random.integers(0, 800)), int(random.integers(50, 400))
        steps = 2 * first + second
        failed = index % 10 == 9
        loss = 2.6 + 14 * (steps + 200) ** -0.4 + random.normal() * 0.05
        metrics = {
            "final_loss": loss,
            "final_loss_sem": 0.02,
            "effective_steps": steps,
            "perplexity": float(np.exp(loss)),
            "train_seconds": 10 + steps / 9,
            "usd": steps / 9e4,
        }
        parameters = {
            "stage1_9.max_steps": first,
            "stage2.max_steps": second,
            "stage1_9.optimizer.lr": float(10 ** random.uniform(-3, -2)),
            "stage2.lambda_warmup.schedule": "linear" if index % 2 else "cosine",
            "stage1_9.saliency.initial_k": (0.05, 0.1, 0.2)[index % 3],
        }
        trials.append(
            {
                "trial": index,
                "status": "failed" if failed else "completed",
                "attempt": 1,
                "generator": "sobol" if index < 3000 else "botorch",
                "worker": f"host-{index % 16}",
                "seconds": 12.0 + steps / 9,
                "error": "out of memory: 41 GiB estimated" if failed else None,
                "parameters": parameters,
                "metrics": {} if failed else metrics,
            }
        )
    goals = [{"metric": "final_loss", "goal": "minimize"}]
    return {"schema": 1, "name": "ten-thousand", "objectives": goals, "run_cap": 12_000, "trials": trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep the page here")
    out = parser.parse_args().out
    export = document()
    wall, cpu = time.perf_counter(), time.process_time()
    page = render(export)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{TRIALS:,} trials: {wall:.1f} s, {cpu:.1f} s of CPU; {peak:,.0f} MiB; page {len(page) / 1e6:.1f} MB"
    )
    random = np.random.default_rng(0)
    for objectives in (2, 3, 4):
        points = random.random((TRIALS, objectives))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            found = front(points, ["minimize"] * objectives)
            times.append(time.perf_counter() - start)
        print(f"front of {objectives} objectives: {1000 * sorted(times)[2]:.0f} ms, {len(found)} points")
    if out is not None:
        out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
