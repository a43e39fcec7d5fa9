"""Points of Ax's Sobol generator, as `sequence.SobolSequence` draws them. Called by `generation`."""

from __future__ import annotations

from ax.adapter.registry import Generators
from ax.core.data import Data
from ax.core.experiment import Experiment
from ax.exceptions.core import SearchSpaceExhausted
from botorch.exceptions.errors import InfeasibilityError

from sweeps.search.sequence import Point

EXHAUSTED = (SearchSpaceExhausted, InfeasibilityError)
"""What a draw raises where there are no further points."""


def draw(blank: Experiment, n: int, draws: int, seed: int, start: int) -> tuple[list[Point], int]:
    """Points from Ax's Sobol generator, and the position in the sequence after them.

    Args:
        blank: an experiment without trials: what is drawn depends on no record.
        draws: how many may be thrown away as they break constraints.
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
