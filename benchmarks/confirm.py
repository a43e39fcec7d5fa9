"""The winner of a confirmation against the luckiest trial of a search: `python -m benchmarks.confirm`.

For each seed one search of the two-stage problem with normal noise. Its first 30 trials are a search too,
whose best by the surrogate's posterior mean get 10 fresh runs; regret is in true loss. `--coverage N`
simulates N sweeps without a surrogate instead (a minute for 500): how often the interval has the winner's
expected loss, how often the truly best candidate leaves, and how many runs those that leave save.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import wilcoxon  # type: ignore[import-untyped]  # scipy ships no types

from benchmarks.problems import METRIC, PROBLEMS, Problem
from sweeps.search.confirm.posterior import estimate
from sweeps.search.confirm.race import Losses, remaining

Floats = npt.NDArray[np.float64]

ROUNDS = 5
"""Rounds that a confirmation in the search's benchmark has, if the budget lasts."""

SIMULATED_NOISES = (0.01, 0.02, 0.05)
SIMULATED_ROUNDS = (2, 3, 5, 8)
SIMULATED_TOP = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50, help="how many")
    parser.add_argument("--first-seed", type=int, default=1000, help="0 to 7 were used while tuning")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--runs", type=int, default=10, help="of the confirmation, or further trials")
    parser.add_argument("--top", type=int, nargs="+", default=[5, 3], help="numbers of candidates to compare")
    parser.add_argument("--noise", type=float, default=0.02, help="standard deviation")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--problem", default="two_stage", choices=list(PROBLEMS))
    parser.add_argument("--coverage", type=int, metavar="N", help="simulate N sweeps instead")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers import torch
    if arguments.coverage:
        print(coverage(arguments.coverage, arguments.first_seed))
        return
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    found = []
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {
            pool.submit(
                regrets,
                arguments.problem,
                seed,
                trials=arguments.trials,
                runs=arguments.runs,
                top=arguments.top,
                noise=arguments.noise,
            ): seed
            for seed in seeds
        }
        for done in as_completed(waiting):
            regret, seconds = done.result()
            found.append(regret)
            shown = ", ".join(f"{name}: {value:.5f}" for name, value in regret.items())
            print(f"seed {waiting[done]}: {shown}; {seconds:.0f} s of CPU", flush=True)
    print(table(found, arguments.trials, arguments.runs))


def regrets(
    problem: str, seed: int, *, trials: int, runs: int, top: Sequence[int], noise: float
) -> tuple[dict[str, float], float]:
    """Return the regret of each way to choose a trial, the baseline first, and the seconds of CPU."""
    start, chosen = time.process_time(), PROBLEMS[problem]
    true, observed, means = _searched(chosen, seed, trials, runs, noise)
    ways = {
        f"lowest of {trials + runs}": int(np.argmin(observed)),
        f"lowest of {trials}": int(np.argmin(observed[:trials])),
        "lowest posterior mean": int(np.argmin(means)),
    }
    for number in top:
        best = [int(trial) for trial in np.argsort(means, kind="stable")[:number]]
        rng = np.random.default_rng((seed, number, round(noise * 1000)))
        losses = np.array(true[:trials])[:, None] + rng.normal(scale=noise, size=(trials, ROUNDS))
        selection = confirmed(losses, best, runs)
        ways[f"confirmed, {number} candidates"] = estimate(selection, {}, {}).winner
    ways["the best trial"] = int(np.argmin(true[:trials]))
    return {name: true[trial] - chosen.optimum for name, trial in ways.items()}, time.process_time() - start


def confirmed(losses: Floats, top: Sequence[int], runs: int) -> Losses:
    """Return the part of the losses [trials, rounds] that a confirmation measures.

    A round is a new seed for all candidates that remain; it takes place if there are runs for all of them.
    """
    rounds = losses.shape[1]
    measured: dict[int, dict[int, float]] = {trial: {} for trial in top}
    for seed in range(rounds):
        staying = remaining(measured, seeds=rounds)
        if len(staying) > runs:
            break
        for trial in staying:
            measured[trial][seed] = float(losses[trial, seed])
        runs -= len(staying)
    return measured


def _searched(
    problem: Problem, seed: int, trials: int, more: int, noise: float
) -> tuple[list[float], list[float], list[float]]:
    """Return true and observed losses of all trials, and the posterior means after the first `trials`."""
    from benchmarks.samplers import SOBOL, completed  # not in the parent, which needs no Ax
    from sweeps.search.determinism import stable_seed
    from sweeps.search.encoding import Encoding
    from sweeps.search.optimizer import Optimizer
    from sweeps.space.domain import Domain

    space = problem.space(seed=seed, sobol=SOBOL)
    optimizer, encoding = Optimizer(space), Encoding(Domain(space))
    draws = np.random.default_rng((seed, round(noise * 1000))).normal(scale=noise, size=trials + more)
    records, points, true, means = [], [], [], []
    for index in range(trials + more):
        optimizer.observe(records)
        if index == trials:
            means = [mean for mean, _ in optimizer.view().predict(points)[METRIC]]
        (candidate,) = optimizer.generate()
        true.append(problem.function(candidate.parameters))
        observed = true[-1] + float(draws[index])
        records.append(completed(index, candidate.parameters, candidate.generator, observed))
        point = encoding.encode(candidate.parameters)
        if point is None:
            raise ValueError(f"the search left its space: {candidate.parameters}")
        points.append(encoding.on_all_axes(point, stable_seed(seed, index, "inactive")))
    return true, [float(record.metrics[METRIC] or 0.0) for record in records], means


def table(found: Sequence[dict[str, float]], trials: int, runs: int) -> str:
    """Return a Markdown table: medians over the seeds, and Wilcoxon's test of each against the baseline."""
    baseline = f"lowest of {trials + runs}"
    against = statistics.median(regret[baseline] for regret in found)
    lines = [
        f"Regret after {trials} trials and {runs} more runs, {len(found)} seeds; lower is better.",
        "",
        "| chosen | median (quartiles) | mean | median / baseline's | p |",
        "|---|---|---|---|---|",
    ]
    for way in found[0]:
        values = [regret[way] for regret in found]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        differences = [regret[way] - regret[baseline] for regret in found]
        p = f"{float(wilcoxon(differences).pvalue):.3f}" if any(differences) else ""
        lines.append(
            f"| {way} | {middle:.4f} ({low:.4f}, {high:.4f}) | {statistics.fmean(values):.4f} "
            f"| {middle / against:.2f} | {p} |"
        )
    return "\n".join(lines)


class Simulated(NamedTuple):
    """Result of one simulated confirmation, as numbers whose means are shown."""

    covered: float
    too_low: float
    too_high: float
    width: float
    bias: float
    first: float
    lost: float
    runs: float


def simulated(rng: np.random.Generator, noise: float, rounds: int) -> Simulated:
    """Simulate a sweep of 30 trials and the confirmation of its best.

    Twelve trials are anywhere, 18 near the optimum, at a scale that differs by a factor of e from sweep to
    sweep. The surrogate's mean is half the observed loss and half a smoother, less noisy one. Of the noise's
    variance up to 40 % is the seed's, the same for all candidates (18 % in
    docs/explanation/findings/runs.csv). Test losses have an offset of their text, and most of
    the run's own noise.
    """
    scale, share = 0.01 * np.exp(rng.normal()), 0.4 * rng.random()
    true = 3 + np.concatenate([rng.exponential(0.4, 12), rng.gamma(2.0, scale, 18)])
    observed = true + noise * rng.normal(size=30)
    surrogate = (observed + true + 0.5 * noise * rng.normal(size=30)) / 2
    top = [int(trial) for trial in np.argsort(surrogate)[:SIMULATED_TOP]]
    offset = 0.05 * rng.normal()

    error = np.sqrt(share) * rng.normal(size=rounds) + np.sqrt(1 - share) * rng.normal(size=(30, rounds))
    selection = confirmed(true[:, None] + noise * error, top, SIMULATED_TOP * rounds)
    test_losses = true[:, None] + offset + noise * (0.9 * error + 0.2 * rng.normal(size=error.shape))
    test = {
        trial: {seed: float(test_losses[trial, seed]) for seed in runs} for trial, runs in selection.items()
    }
    found = estimate(selection, test, {trial: float(observed[trial]) for trial in top})
    truth = true[found.winner] + offset
    return Simulated(
        covered=found.low <= truth <= found.high,
        too_low=found.high < truth,
        too_high=found.low > truth,
        width=found.high - found.low,
        bias=(found.mean - truth) / noise,
        first=(observed[found.winner] - true[found.winner]) / noise,
        lost=min(top, key=lambda trial: float(true[trial])) not in remaining(selection, seeds=rounds),
        runs=sum(map(len, selection.values())) / (SIMULATED_TOP * rounds),
    )


def coverage(sweeps: int, first_seed: int) -> str:
    """Return a Markdown table of simulated sweeps, over all and by noise and by number of rounds."""
    groups: dict[str, list[Simulated]] = defaultdict(list)
    for index in range(sweeps):
        noise = SIMULATED_NOISES[index % len(SIMULATED_NOISES)]
        rounds = SIMULATED_ROUNDS[index % len(SIMULATED_ROUNDS)]
        found = simulated(np.random.default_rng((first_seed, index)), noise, rounds)
        for group in ("all", f"noise {noise}", f"{rounds} rounds"):
            groups[group].append(found)
    lines = [
        f"{sweeps} simulated sweeps, 95 % intervals of the winner's expected loss; bias in noise sd.",
        "",
        "| sweeps | covered | interval too low, too high | width | bias | bias of the first loss "
        "| the best left | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted(groups, key=lambda name: (name != "all", "noise" not in name)):
        mean = Simulated(*(statistics.fmean(values) for values in zip(*groups[name], strict=True)))
        lines.append(
            f"| {name} ({len(groups[name])}) | {mean.covered:.1%} | {mean.too_low:.1%}, {mean.too_high:.1%} "
            f"| {mean.width:.4f} | {mean.bias:+.2f} | {mean.first:+.2f} | {mean.lost:.1%} | {mean.runs:.0%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
