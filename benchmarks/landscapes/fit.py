"""Held-out quality of surrogates on random trials: `python -m benchmarks.landscapes fit`.

A better fit is not a better search: this is to drop variants that are hopeless.

Shapes: N held-out trials.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy.stats import norm, spearmanr

from benchmarks.landscapes import replay
from benchmarks.landscapes.searchers import Ours, Task, find
from benchmarks.landscapes.tables import METRIC, RANDOM, read
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
from sweeps.trials.record import Trial

TRIALS = (12, 20, 30)
"""Numbers of random trials that a surrogate is fitted to."""


def measure(landscape: str, searcher: str, trials: int, seed: int) -> tuple[float, float]:
    """Return (mean log density, rank correlation) of all random trials but those of the fit.

    The density is that of the loss with the noise of seeds, in nats; a fit that failed has NaN.
    """
    loaded = replay.load(landscape)
    found = find(searcher)(Task(space=loaded.space, seed=seed))
    assert isinstance(found, Ours)
    rows = [row for row in read(landscape) if row["kind"] == RANDOM and row[METRIC] == row[METRIC]]
    order = np.random.default_rng(seed).permutation(len(rows))
    names = [parameter.name for parameter in loaded.space.parameters]
    records = [
        Trial(
            trial=nth,
            status="completed",
            generator="sobol",
            parameters={name: rows[at][name] for name in names},
            metrics={METRIC: float(rows[at][METRIC])},
        )
        for nth, at in enumerate(order)
    ]
    optimizer = found._optimizer
    optimizer.observe(records)
    points_N = list(optimizer.points().values())[trials:]
    losses_N = np.array([float(rows[at][METRIC]) for at in order[trials:]])
    optimizer.observe(records[:trials])
    try:
        predicted = np.array(optimizer.view().predict(points_N)[METRIC])
    except SURROGATE_FAILURES:
        return math.nan, math.nan
    spread_N = np.hypot(predicted[:, 1], np.std(loaded.residuals))
    density = norm.logpdf(losses_N, predicted[:, 0], spread_N).mean()
    return float(density), float(spearmanr(losses_N, predicted[:, 0]).statistic)


def table(landscapes: Sequence[str], searchers: Sequence[str], seeds: int, processes: int) -> str:
    """Return a row for each searcher: medians over the seeds, then over the landscapes, by trials."""
    cases = [
        (landscape, searcher, trials, seed)
        for landscape in landscapes
        for searcher in searchers
        for trials in TRIALS
        for seed in range(seeds)
    ]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(cases, pool.map(_measure, cases), strict=True))
    lines = [
        "| landscape | surrogate | "
        + " | ".join(f"density, rank after {trials}" for trials in TRIALS)
        + " |",
        "|---|---|" + "---|" * len(TRIALS),
    ]
    for landscape in (*landscapes, "mean of all"):
        for searcher in searchers:
            cells = []
            for trials in TRIALS:
                each = [landscape] if landscape in landscapes else list(landscapes)
                pairs = [
                    tuple(
                        statistics.median(found[name, searcher, trials, seed][which] for seed in range(seeds))
                        for which in (0, 1)
                    )
                    for name in each
                ]
                density, rank = np.mean(pairs, axis=0)
                cells.append(f"{density:.2f}, {rank:.2f}")
            lines.append(f"| {landscape} | {searcher} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _measure(case: tuple[str, str, int, int]) -> tuple[float, float]:
    return measure(*case)
