"""`python -m benchmarks.plan --seeds 20`: do the intervals of `sweep plan` cover what they claim?

Sweeps of 30 random trials with noise, on losses whose best settings are known at every size: `drift` (they
follow a power law of the size), `none` (they stay) and `misleading` (they jump to and fro, which no line
follows). Planned is for 4 times the largest size, from two sizes and from three. Printed are the shares of
seeds in which the true optima, and the loss of one run there, lie in their intervals of 95 %, and how long
those of the optima are, in ranges; then how much the settings' true loss lies above the best there, beside
that of the largest sweep's best settings, as shares of what random settings lose.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import sweeps

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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one plan was worth.

    Args:
        covered: of each optimum, whether its interval holds it.
        lengths: of these intervals, in ranges.
        loss_covered: whether the interval of the loss holds that of a run at the optimum.
        regret: true loss of the settings above the best, as a share of what random settings lose.
        carried: the same of the largest sweep's best settings.
    """

    covered: list[bool]
    lengths: list[float]
    loss_covered: bool
    regret: float
    carried: float


def planned(kind: str, seed: int, sizes: tuple[int, ...]) -> Outcome:
    """Sweep these sizes, and compare the plan with the truth."""
    ladder, rng = Ladder(kind, seed), np.random.default_rng((seed, 7))
    with tempfile.TemporaryDirectory() as folder:
        opened = []
        for size in sizes:
            sweep = sweeps.create(space(size, seed), storage=folder)
            sweep.run(lambda p, at=size: ladder.loss(at, position(p)) + NOISE * rng.standard_normal())
            opened.append(sweep)
        found = sweeps.plan(opened, TARGET, measure="size")
    settings = {name: found.settings[name] for name in NAMES}
    ends = [each.interval or (0.0, 0.0) for each in settings.values()]
    low, high = (position(dict(zip(NAMES, end, strict=True))) for end in zip(*ends, strict=True))
    best = ladder.best(TARGET)
    lowest = ladder.loss(TARGET, best)
    lost = statistics.fmean(ladder.loss(TARGET, each) for each in rng.uniform(size=(500, 3))) - lowest
    largest = found.sources[-1].url
    values = {name: each.value for name, each in settings.items()}
    carried = {name: each.optima[largest]["value"] for name, each in settings.items()}
    return Outcome(
        covered=[a - 1e-3 <= at <= b + 1e-3 for a, at, b in zip(low, best, high, strict=True)],
        lengths=[b - a for a, b in zip(low, high, strict=True)],
        loss_covered=found.loss.low <= lowest + NOISE * rng.standard_normal() <= found.loss.high,
        regret=(ladder.loss(TARGET, position(values)) - lowest) / lost,
        carried=(ladder.loss(TARGET, position(carried)) - lowest) / lost,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--ladders", nargs="*", default=list(LADDERS), choices=LADDERS)
    arguments = parser.parse_args()
    print(
        "| ladder | sizes | seeds | optima covered | median length | losses covered | excess | carried over |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for kind in arguments.ladders:
        for sizes in SIZES:
            found = [planned(kind, seed, sizes) for seed in range(arguments.seeds)]
            covered = statistics.fmean(each for one in found for each in one.covered)
            length = statistics.median(each for one in found for each in one.lengths)
            losses = statistics.fmean(one.loss_covered for one in found)
            excess, carried = (
                f"{statistics.fmean(shares):.3f} ({statistics.stdev(shares) / len(shares) ** 0.5:.3f})"
                for shares in ([one.regret for one in found], [one.carried for one in found])
            )
            print(
                f"| {kind} | {', '.join(map(str, sizes))} | {len(found)} | {covered:.2f} | {length:.2f} "
                f"| {losses:.2f} | {excess} | {carried} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
