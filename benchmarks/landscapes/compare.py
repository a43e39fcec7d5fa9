"""Tables and figures of replayed searches: true loss of the chosen configuration against paid compute.

Shapes: S seeds, P points of a grid over paid compute, R resamples of the seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from analysis.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, scale
from analysis.report.vega_lite import Axis, Drawing, Series
from benchmarks.landscapes.emulator import Array
from benchmarks.landscapes.replay import Result, Run, group_results

REFERENCE = "ax"
"""The searcher whose loss at the end is the goal."""

POINTS = 20
"""Points of the grid per full trial."""

RESAMPLES = 2000
Choice = Literal["own", "lowest"]
"""Whose configuration counts: that of the searcher's choice, or that with the lowest loss so far."""


def losses_on_grid(results: Iterable[Result], trials: int, choice: Choice) -> Array:
    """Return true losses, [S, P], at every `1 / POINTS` of a full trial; infinity before the first result."""
    grid_P = np.arange(1, trials * POINTS + 1) / POINTS
    rows = []
    for result in results:
        curve = np.array(result["curve"]).reshape(-1, 3)
        paid = curve[:, 0] / result["full"]
        found = np.concatenate([[np.inf], curve[:, 1 if choice == "own" else 2]])
        rows.append(found[np.searchsorted(paid, grid_P + 1e-9, side="right")])
    return np.array(rows)


def arrival(medians: Array, goals: Array) -> Array:
    """Return the share of all compute, the last axis, at which losses meet a goal; infinity: never."""
    below = medians <= np.asarray(goals)[..., None]
    first = (np.argmax(below, axis=-1) + 1) / medians.shape[-1]
    return np.where(below.any(axis=-1), first, np.inf)


def table(results: Mapping[Run, Result], choice: Choice = "own") -> str:
    """Return a row for each searcher on each landscape, and a median over landscapes.

    Compute is in full trials.

    The ratio is the compute at which the median loss is that of the reference at its end, as a share of all
    compute. Intervals are of 95 %, from resamples of the seeds.
    """
    lines = [
        f"| landscape | workers | compute | noise | searcher | seeds | compute to {REFERENCE}'s loss (95 %) "
        "| loss at half the compute (95 %) | loss at its end (95 %) | trials | reused |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[tuple[Run, str], list[float]] = {}
    for group, by_searcher in group_results(results).items():
        known = {s: losses_on_grid(found, group.trials, choice) for s, found in by_searcher.items()}
        goals = known.get(REFERENCE)
        for searcher, losses_SP in known.items():
            share = "" if goals is None else _share(losses_SP, goals)
            if goals is not None:
                ratio = float(arrival(np.median(losses_SP, axis=0), np.median(goals[:, -1])))
                shared = Run(**{**group.__dict__, "landscape": ""})
                ratios.setdefault((shared, searcher), []).append(ratio)
            found = by_searcher[searcher]
            half = losses_SP[:, group.trials * POINTS // 2 - 1]
            lines.append(
                f"| `{group.landscape}` | {group.workers} | {group.trials} "
                f"| {'yes' if group.noise else 'no'} "
                f"| {searcher}{', defaults first' if group.defaults else ''} | {len(found)} | {share} "
                f"| {_median(half)} | {_median(losses_SP[:, -1])} "
                f"| {statistics.median(result['trials'] for result in found):.0f} "
                f"| {statistics.median(result['reused'] for result in found):.0f} |"
            )
    for (group, searcher), shares in ratios.items():
        lines.append(
            f"| median of {len(shares)} | {group.workers} | {group.trials} "
            f"| {'yes' if group.noise else 'no'} "
            f"| {searcher}{', defaults first' if group.defaults else ''} | "
            f"| {_ratio(float(np.median(shares)))} | | | | |"
        )
    return "\n".join(lines)


def _share(losses_SP: Array, goals_SP: Array) -> str:
    """Return the share of the compute at which the reference's loss is reached, with its interval."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(RESAMPLES):
        own, others = (each[rng.integers(len(each), size=len(each))] for each in (losses_SP, goals_SP))
        shares.append(float(arrival(np.median(own, axis=0), np.median(others[:, -1]))))
    low, high = np.quantile(shares, (0.025, 0.975), method="nearest")
    middle = float(arrival(np.median(losses_SP, axis=0), np.median(goals_SP[:, -1])))
    return f"{_ratio(middle)} ({_ratio(low)} to {_ratio(high)})"


def _ratio(share: float) -> str:
    return f"{share:.2f}" if np.isfinite(share) else "> 1"


def _median(losses_S: Array) -> str:
    drawn = np.random.default_rng(0).integers(len(losses_S), size=(RESAMPLES, len(losses_S)))
    low, high = np.quantile(np.median(losses_S[drawn], axis=1), (0.025, 0.975), method="nearest")
    return f"{np.median(losses_S):.4f} ({low:.4f} to {high:.4f})"


def figures(results: Mapping[Run, Result], folder: Path, choice: Choice = "own") -> list[Path]:
    """Draw a figure for each landscape: medians with quartiles. Return the paths of all SVG files."""
    paths = []
    for group, by_searcher in group_results(results).items():
        known = {s: losses_on_grid(found, group.trials, choice) for s, found in by_searcher.items()}
        words = [
            group.landscape,
            f"{group.workers}-workers",
            f"{group.trials}-trials",
            *["noise"] * group.noise,
        ]
        words += ["defaults"] * group.defaults
        paths.append(_draw(known, group, folder / "-".join(words)))
    return paths


def _draw(known: Mapping[str, Array], group: Run, path: Path) -> Path:
    grid_P = np.arange(1, group.trials * POINTS + 1) / POINTS
    ends = np.concatenate([losses[:, -1] for losses in known.values()])
    # The first trials are far above what tells searchers apart; with eight workers they end late.
    early = [np.median(losses, axis=0)[2 * POINTS :] for losses in known.values()]
    tops = [float(medians[np.isfinite(medians)][0]) for medians in early if np.isfinite(medians).any()]
    drawing = Drawing(
        x=Axis(title="paid compute, in full trials", scale=scale([0.0, float(group.trials)], linear=True)),
        y=Axis(
            title=f"true loss of the chosen configuration, {group.landscape}",
            scale=scale([float(ends.min()), *tops], linear=True),
        ),
    )
    looks = [(colour, dash) for dash in ((), (6, 3)) for colour in _COLOURS]
    for (searcher, losses_SP), (colour, dash) in zip(known.items(), looks, strict=False):
        low_P, middle_P, high_P = np.quantile(losses_SP, (0.25, 0.5, 0.75), axis=0, method="nearest")
        rows = _rows(grid_P, {"low": low_P, "high": high_P})
        if searcher in _WITH_BAND and rows:
            drawing.band(Series(name=f"{searcher}, quartiles", colour=colour, opacity=0.15), rows)
        if rows := _rows(grid_P, {"y": middle_P}):
            drawing.line(Series(name=searcher, colour=colour, dash=dash, width=2), rows, step="step-after")
    return drawing.figure().save(path)[1]


_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
_WITH_BAND = ("ours", REFERENCE)


def _rows(grid_P: Array, columns: Mapping[str, Array]) -> list[dict[str, float]]:
    is_known = np.all([np.isfinite(column) for column in columns.values()], axis=0)
    names: Sequence[str] = list(columns)
    return [
        {"x": float(x), **dict(zip(names, map(float, values), strict=True))}
        for x, *values in zip(
            grid_P[is_known], *(column[is_known] for column in columns.values()), strict=True
        )
    ]
