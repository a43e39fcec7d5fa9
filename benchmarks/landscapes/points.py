"""Draws the random trials of a landscape: those that a sweep with `method: random` asks for."""

from __future__ import annotations

import tempfile

import sweeps
from benchmarks.landscapes.tables import RANDOM, SEED, Row, load_space


def random_points(name: str, number: int) -> list[Row]:
    """Return kind, seed and parameters of a landscape's random trials, the defaults first.

    Args:
        name: of the landscape.
        number: of trials.
    """
    space = load_space(name)
    space["parameters"] |= {SEED: {"min": 0, "max": 2**31 - 1}}
    space |= {"search": {"method": "random", "seed": 0, "reuse": "none"}, "run_cap": number}
    with tempfile.TemporaryDirectory() as folder:
        sweep = sweeps.create(space, storage=folder)
        asked = (sweep.ask() for _ in range(number))
        return [{"kind": RANDOM, **trial.parameters} for trial in asked]
