"""Best value of a few trials, compared with other samplers: `python -m benchmarks.search`.

Prints a Markdown table of the best value after `--trials` trials: the seeds' median and quartiles. Below it,
whether ours differs from Ax used directly beyond noise (Wilcoxon's signed-rank test over seeds).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

import numpy as np
from scipy.stats import wilcoxon  # type: ignore[import-untyped]  # scipy ships no types

from benchmarks.problems import PROBLEMS

NAMES = ("ours", "random", "ax", "optuna-tpe", "optuna-gp")
SIGNIFICANT = 0.05

Runs = dict[tuple[str, str, int], float]
"""The best value by problem, sampler and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="others were looked at while tuning")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--samplers", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers import torch
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    runs = _run_all(arguments, seeds)
    print(table(runs, arguments.problems, arguments.samplers, seeds, arguments.trials))
    if {"ours", "ax"} <= set(arguments.samplers):
        print()
        for problem in arguments.problems:
            print(comparison(runs, problem, seeds))


def _run_all(arguments: argparse.Namespace, seeds: Sequence[int]) -> Runs:
    jobs = [
        (problem, sampler, seed)
        for seed in seeds
        for problem in arguments.problems
        for sampler in arguments.samplers
    ]
    runs: Runs = {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(best, *job, arguments.trials): job for job in jobs}
        for done in as_completed(waiting):
            runs[waiting[done]], seconds = done.result()
            print(*waiting[done], f"{runs[waiting[done]]:.5f}", f"{seconds:.1f} s of CPU", flush=True)
    return runs


def best(problem: str, sampler: str, seed: int, trials: int) -> tuple[float, float]:
    """Return the best value of one search, and its CPU seconds."""
    from benchmarks.landscapes import searchers  # not in the parent, which needs no Ax
    from benchmarks.samplers import SOBOL

    made = {
        "ours": partial(searchers.Ours, reuse=False),
        "random": searchers.Random,
        "ax": searchers.Ax,
        "optuna-tpe": partial(searchers.Optuna, sampler="TPESampler"),
        "optuna-gp": partial(searchers.Optuna, sampler="GPSampler"),
    }[sampler]
    start, chosen = time.process_time(), PROBLEMS[problem]
    searcher = made(searchers.Task(space=chosen.space(seed=seed, sobol=SOBOL), seed=seed))
    values = []
    for trial in range(trials):
        values.append(chosen.function(searcher.ask(trial)))
        searcher.tell(trial, values[-1])
    return min(values), time.process_time() - start


def table(
    runs: Runs, problems: Sequence[str], samplers: Sequence[str], seeds: Sequence[int], trials: int
) -> str:
    lines = [
        f"Best value after {trials} trials, median of {len(seeds)} seeds (quartiles); lower is better.",
        "",
        f"| problem | optimum | {' | '.join(samplers)} |",
        f"|---|---|{'---|' * len(samplers)}",
    ]
    for problem in problems:
        cells = []
        for sampler in samplers:
            values = [runs[problem, sampler, seed] for seed in seeds]
            low, high = np.quantile(values, (0.25, 0.75))
            cells.append(f"{statistics.median(values):.4f} ({low:.4f}, {high:.4f})")
        lines.append(f"| {problem} | {PROBLEMS[problem].optimum:.4f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def comparison(runs: Runs, problem: str, seeds: Sequence[int]) -> str:
    """Return one line on ours minus Ax, paired by seed."""
    differences = [runs[problem, "ours", seed] - runs[problem, "ax", seed] for seed in seeds]
    p = float(wilcoxon(differences).pvalue) if any(differences) else 1.0
    median = statistics.median(differences)
    verdict = "no difference beyond noise" if p >= SIGNIFICANT else ("worse" if median > 0 else "better")
    return f"ours vs Ax direct on {problem}: median difference {median:+.5f}, p = {p:.3f}: {verdict}"


if __name__ == "__main__":
    main()
