"""`python -m benchmarks.plan --seeds 20`: do the intervals of `sweep plan` cover what they claim?

Sweeps of 30 random trials with noise, on losses whose best settings are known at every size: `drift` (they
follow a power law of the size), `none` (they stay) and `misleading` (they jump to and fro, which no line
follows). Planned is for 4 times the largest size, from two sizes and from three. Printed are the shares of
seeds in which the true optima, and the loss of one run there, lie in their intervals of 95 %, and how long
those of the optima are, in ranges.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

import sweeps
from sweeps.errors import SweepError

LADDERS = ("drift", "none", "misleading")
SIZES = ((4, 16), (1, 4, 16))
TARGET = 64
NOISE = 0.02
DECAY = 0.07
NAMES = ("lr", "decay", "share")


class Ladder:
    """Losses over three parameters whose best values are known at each size.

    Positions are those in the ranges, 0 to 1; the loss is flat towards small values and steep towards large
    ones, as those of training are.
    """

    def __init__(self, kind: str, seed: int) -> None:
        rng = np.random.default_rng((seed, LADDERS.index(kind)))
        self.kind = kind
        self.start = rng.uniform(0.4, 0.6, 3)
        self.slope = rng.uniform(-0.08, 0.08, 3)
        self.weight = rng.uniform(0.5, 1.5, 3)

    def best(self, size: float) -> Any:
        """Return the positions of the optimum, [3]."""
        steps = math.log(size / 4, 4)
        if self.kind == "misleading":
            return self.start + 0.3 * np.sign(self.slope) * (-1.0) ** round(steps)
        return self.start + self.slope * steps * (self.kind == "drift")

    def loss(self, size: float, position: Any) -> float:
        away = 2.0 * (np.asarray(position) - self.best(size))
        return float(3.0 * size**-DECAY + (self.weight * (np.exp(away) - 1 - away)).sum())


def space(size: int, seed: int) -> dict[str, Any]:
    """Return the space of a sweep at a size."""
    return {
        "name": f"size-{size}",
        "objectives": [{"metric": "loss"}],
        "parameters": {
            "lr": {"min": 1e-4, "max": 1e-1, "distribution": "log_uniform_values"},
            "decay": {"min": 1e-3, "max": 1.0, "distribution": "log_uniform_values"},
            "share": {"min": 0.0, "max": 1.0},
            "size": {"value": size},
        },
        "search": {"method": "random", "seed": seed},
        "run_cap": 30,
    }


def position(parameters: Mapping[str, float]) -> list[float]:
    """Return the positions of values in their ranges."""
    return [
        math.log10(parameters["lr"] / 1e-4) / 3,
        math.log10(parameters["decay"] / 1e-3) / 3,
        parameters["share"],
    ]


def planned(kind: str, seed: int, sizes: tuple[int, ...]) -> tuple[list[bool], list[float], bool]:
    """Return which optima their intervals cover, how long these are, and whether that of the loss covers."""
    ladder, rng = Ladder(kind, seed), np.random.default_rng((seed, 7))
    with tempfile.TemporaryDirectory() as folder:
        opened = []
        for size in sizes:
            sweep = sweeps.create(space(size, seed), storage=folder)
            sweep.run(lambda p, at=size: ladder.loss(at, position(p)) + NOISE * rng.standard_normal())
            opened.append(sweep)
        found = sweeps.plan(opened, TARGET, measure="size")
    ends = [found.settings[name].interval or (0.0, 0.0) for name in NAMES]
    low, high = (position(dict(zip(NAMES, end, strict=True))) for end in zip(*ends, strict=True))
    best = ladder.best(TARGET)
    covered = [a - 1e-3 <= at <= b + 1e-3 for a, at, b in zip(low, best, high, strict=True)]
    run = ladder.loss(TARGET, best) + NOISE * rng.standard_normal()
    return covered, [b - a for a, b in zip(low, high, strict=True)], found.loss.low <= run <= found.loss.high


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--ladders", nargs="*", default=list(LADDERS), choices=LADDERS)
    arguments = parser.parse_args()
    print("| ladder | sizes | seeds | optima covered | median length | losses covered |")
    print("|---|---|---|---|---|---|")
    for kind in arguments.ladders:
        for sizes in SIZES:
            covered, lengths, losses = [], [], []
            for seed in range(arguments.seeds):
                try:
                    inside, long, loss = planned(kind, seed, sizes)
                except SweepError as error:
                    print(f"{kind} {sizes} seed {seed}: {error}", flush=True)
                    continue
                covered += inside
                lengths += long
                losses.append(loss)
            print(
                f"| {kind} | {', '.join(map(str, sizes))} | {len(losses)} | {statistics.fmean(covered):.2f} "
                f"| {statistics.median(lengths):.2f} | {statistics.fmean(losses):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
