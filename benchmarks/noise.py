"""Search quality on noisy losses, by what the search knows of the noise: `python -m benchmarks.noise`.

The two-stage problem with normal noise of sd 0.01, 0.02 and 0.05. The search gets the right standard error,
one that is 3.5 times too large (as the spread over texts is, beside the spread over seeds), or none, so that
it infers the noise. The regret is in true loss: of the trial with the lowest observed loss, and of the best.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace

import numpy as np
from scipy.stats import wilcoxon  # type: ignore[import-untyped]  # scipy ships no types

from benchmarks.problems import METRIC, PROBLEMS

FACTORS = {"right": 1.0, "3.5 times too large": 3.5, "inferred": None}
NOISES = (0.01, 0.02, 0.05)

Runs = dict[tuple[float, str, int], tuple[float, float]]
"""Regret of the lowest observed loss and of the best trial, by noise, by what is reported, and by seed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--problem", default="two_stage", choices=list(PROBLEMS))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers import torch
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    jobs = [(noise, reported, seed) for seed in seeds for noise in NOISES for reported in FACTORS]
    runs: Runs = {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(search, arguments.problem, *job, arguments.trials): job for job in jobs}
        for done in as_completed(waiting):
            *regrets, seconds = done.result()
            runs[waiting[done]] = (regrets[0], regrets[1])
            print(
                *waiting[done],
                *(f"{regret:.5f}" for regret in regrets),
                f"{seconds:.1f} s of CPU",
                flush=True,
            )
    print(table(runs, seeds, arguments.trials))


def search(problem: str, noise: float, reported: str, seed: int, trials: int) -> tuple[float, float, float]:
    """Return the regret of the lowest observed loss, that of the best trial, and the seconds of CPU."""
    from benchmarks.samplers import SOBOL, completed  # not in the parent, which needs no Ax
    from sweeps.search.optimizer import Optimizer

    start, chosen = time.process_time(), PROBLEMS[problem]
    space, factor = chosen.space(seed=seed, sobol=SOBOL), FACTORS[reported]
    known = "inferred" if factor is None else factor * noise
    optimizer = Optimizer(replace(space, search=replace(space.search, noise=known)))
    draws = np.random.default_rng((seed, round(noise * 1000))).normal(scale=noise, size=trials)
    records, true = [], []
    for index in range(trials):
        optimizer.observe(records)
        (candidate,) = optimizer.generate()
        true.append(chosen.function(candidate.parameters))
        value = true[-1] + float(draws[index])
        records.append(completed(index, candidate.parameters, candidate.generator, value))
    observed = [float(record.metrics[METRIC] or 0.0) for record in records]
    return (
        true[int(np.argmin(observed))] - chosen.optimum,
        min(true) - chosen.optimum,
        time.process_time() - start,
    )


def table(runs: Runs, seeds: Sequence[int], trials: int) -> str:
    """Return a Markdown table: medians over the seeds, and Wilcoxon's test of each against what is right."""
    lines = [
        f"Regret after {trials} trials, median of {len(seeds)} seeds (quartiles); lower is better.",
        "",
        "| noise sd | standard error | the trial with the lowest loss | the best trial | p, against right |",
        "|---|---|---|---|---|",
    ]
    for noise in NOISES:
        for reported in FACTORS:
            mine = [runs[noise, reported, seed][0] for seed in seeds]
            low, high = np.quantile(mine, (0.25, 0.75))
            best = statistics.median(runs[noise, reported, seed][1] for seed in seeds)
            differences = [runs[noise, reported, s][0] - runs[noise, "right", s][0] for s in seeds]
            p = f"{float(wilcoxon(differences).pvalue):.3f}" if any(differences) else ""
            lines.append(
                f"| {noise} | {reported} | {statistics.median(mine):.4f} ({low:.4f}, {high:.4f}) "
                f"| {best:.4f} | {p} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
