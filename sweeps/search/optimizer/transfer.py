"""Best settings of an earlier sweep by a surrogate of its results, as a trial of a new one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from ax.api.utils.instantiation.from_string import optimization_config_from_string
from ax.core.data import Data, DataRow

from sweeps.search.determinism import seeded, stable_seed
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import ax_experiment
from sweeps.search.optimizer.optimum import Marginals, SpacePoints
from sweeps.search.optimizer.surrogate import fitted
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Source, Value

BEST_TRIALS = 8
"""Results of a source whose neighbourhood is searched for its optimum."""

NEAR_POINTS = 1024


def best_of_source(
    source: Source,
    encoding: Encoding,
    outcomes: Outcomes,
    others: Mapping[str, Value],
    seed: int,
    *,
    tried_only: bool = False,
) -> dict[str, Value] | None:
    """Return the parameters where the source's surrogate is best; None if its best lie outside of this space.

    Args:
        others: values of what the source does not have.
        tried_only: choose among the exact parameters of the best results, and not in their neighbourhood.

    Raises:
        one of SURROGATE_FAILURES: the fit failed.
    """
    (name, lower_is_better), *_ = outcomes.lower_is_better.items()
    sign = 1.0 if lower_is_better else -1.0
    axes = {parameter: axis for axis, parameter in encoding.names.items()}
    experiment = ax_experiment.new_experiment("source", encoding.axes, (), {name: lower_is_better})
    rows = []
    for index, result in enumerate(source.results):
        known = {axes[key]: encoding.encoded(key, value) for key, value in result.parameters.items()}
        # Spread over what the source has not searched, the surrogate learns that nothing depends on it.
        point = encoding.on_all_axes(known, stable_seed(seed, index, "inactive"))
        trial = ax_experiment.attach(experiment, point, {})
        ax_experiment.settle(trial, "completed")
        rows.append(DataRow(trial.index, trial.arm.name, name, name, result.value, math.nan))
    with seeded(seed):
        goal = optimization_config_from_string(outcomes.objective)
        model = Marginals(fitted(experiment, Data(data_rows=rows), goal), name, sign)
    matched, domain = {key for result in source.results for key in result.parameters}, encoding.domain

    def points(many: Iterable[Mapping[str, Value]]) -> list[dict[str, Value]]:
        found = []
        for values in many:
            kept = {key: domain.member(key, value) for key, value in values.items() if key in matched}
            parameters = domain.complete({**domain.middle(), **others, **source.filled, **kept})
            point = encoding.encode(parameters)
            if point is not None and domain.allows(parameters):
                found.append(encoding.on_all_axes(point, seed))
        return found

    ranked = sorted(source.results, key=lambda result: sign * result.value)[:BEST_TRIALS]
    tried = points(result.parameters for result in ranked)
    if not tried:
        return None
    if tried_only:
        best = int(np.argmin(model.at(tried)[0]))
        exact = [domain.complete({**domain.middle(), **others, **r.parameters}) for r in ranked]
        return next((p for p in exact if points([p]) == [tried[best]]), None)
    space = SpacePoints(encoding, np.random.default_rng(seed), seed)
    tried += points(map(encoding.values, space.near(tried, NEAR_POINTS)))
    return encoding.decode(tried[int(np.argmin(model.at(tried)[0]))])
