"""Points of Ax's Sobol generator, for `sequence.SobolSequence`."""

from __future__ import annotations

from ax.adapter.registry import Generators
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.exceptions.core import SearchSpaceExhausted
from botorch.exceptions.errors import InfeasibilityError

from sweeps.search.sequence import Point

EXHAUSTED = (SearchSpaceExhausted, InfeasibilityError)
"""Errors of a draw when there are no further points."""


def draw(blank: Experiment, n: int, draws: int, seed: int, start: int) -> tuple[list[Point], int]:
    """Draw points from Ax's Sobol generator.

    Args:
        blank: an experiment without trials, so that the points depend on no record.
        n: how many points to return.
        draws: how many points may be drawn and rejected because they break constraints.
        seed: of the scrambling.
        start: position in the sequence of the first draw.

    Returns:
        The points, and the position in the sequence after them.
    """
    adapter = Generators.SOBOL(
        experiment=blank,
        data=Data(),
        deduplicate=False,
        seed=seed,
        init_position=start,
        polytope_sampler_kwargs={"n_burnin": 1000, "n_thinning": 1},
    )
    run = adapter.gen(n=n, model_gen_options={"max_rs_draws": draws})
    # Equal arms have become one with more weight.
    weighted = zip(run.arms, run.weights, strict=True)
    points = [arm.parameters for arm, weight in weighted for _ in range(round(weight))]
    return points, adapter.generator.init_position
