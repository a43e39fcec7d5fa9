"""Ax's transforms, with those of results mended for values of an extreme size and for outcome constraints.

`surrogate.fitted` uses them. Ax takes a spread below 1e-8 for none and cannot square one above 1e154; and it
cuts off bad results by their quartiles, which are themselves out of proportion where a quarter of the trials,
or one of the first four, reports 1e30 for a run that diverged. It also takes every outcome constraint for the
only bound of a single metric, and changed results by it that others bound too, or a sum. Elsewhere they
change nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from ax.adapter.registry import MBM_X_trans, Y_trans
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.bilog_y import BilogY
from ax.adapter.transforms.standardize_y import StandardizeY
from ax.adapter.transforms.winsorize import Winsorize

from sweeps.search.outcomes import out_of_proportion

ROUNDING = 1e-12
"""Spread, as a share of the largest value, up to which results differ by rounding alone."""

AX_LEAST = 1e-8
"""Spread below which Ax does not standardise."""


class CutDiverged(Winsorize):  # type: ignore[misc]  # Ax ships no types
    """Cut of an objective's results that are `out_of_proportion`: a range beyond the worst of the others."""

    def __init__(self, *, experiment_data: Any, adapter: Any, **options: Any) -> None:
        Transform.__init__(self, experiment_data=experiment_data, adapter=adapter, **options)
        means, self.cutoffs = experiment_data.observation_data["mean"], {}
        weights = adapter._optimization_config.objective.metric_weights
        for name, weight in weights:
            costs = -weight * means[name].dropna().to_numpy()
            if (far := out_of_proportion(costs, objectives=len(weights))).any():
                low, high = costs[~far].min(), costs[~far].max()
                limit = float(high + ((high - low) or abs(high)))
                self.cutoffs[name] = (-np.inf, limit) if weight < 0 else (-limit, np.inf)


class CutOutliers(Winsorize):  # type: ignore[misc]  # likewise
    """Ax's, but not by the bound of a sum, beyond which a single term may lie in a result that holds it."""

    def __init__(self, *, adapter: Any, **options: Any) -> None:
        super().__init__(adapter=adapter, **options)
        goal = adapter._optimization_config
        for constraint in goal.outcome_constraints:
            if len(constraint.metric_signatures) > 1:
                for name in set(constraint.metric_signatures) - set(goal.objective.metric_signatures):
                    self.cutoffs.pop(name, None)


class Bilog(BilogY):  # type: ignore[misc]  # likewise
    """Ax's, but only of metrics that a single constraint bounds, and bounds alone.

    It bends results around the bound, which stays where it is; any other bound would have to be moved.
    """

    def __init__(self, *, adapter: Any, **options: Any) -> None:
        super().__init__(adapter=adapter, **options)
        constraints = adapter._optimization_config.outcome_constraints
        uses = Counter(name for constraint in constraints for name in constraint.metric_signatures)
        self.metric_to_bound = {
            constraint.metric_signatures[0]: constraint.bound
            for constraint in constraints
            if [uses[name] for name in constraint.metric_signatures] == [1]
        }


class Standardize(StandardizeY):  # type: ignore[misc]  # likewise
    """Ax's, also of a metric whose spread it takes for none or cannot square."""

    def __init__(self, *, experiment_data: Any, **options: Any) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            super().__init__(experiment_data=experiment_data, **options)
        for name, column in experiment_data.observation_data["mean"].items():
            values = column.dropna().to_numpy()
            if len(values) < 2:
                continue
            unit = np.ldexp(1.0, np.frexp(np.abs(values).max())[1] - 1)  # a power of two divides exactly
            scaled = values / unit
            spread = scaled.std(ddof=1)
            is_finite = np.isfinite([self.Ymean[name], self.Ystd[name]]).all()
            if not is_finite or (spread > ROUNDING and unit * spread < AX_LEAST):
                self.Ymean[name], self.Ystd[name] = float(unit * scaled.mean()), float(unit * spread)


_MENDED: dict[Any, list[Any]] = {
    Winsorize: [CutDiverged, CutOutliers],
    BilogY: [Bilog],
    StandardizeY: [Standardize],
}
TRANSFORMS = [mended for each in MBM_X_trans + Y_trans for mended in _MENDED.get(each, [each])]

UNCUT = [transform for transform in TRANSFORMS if transform is not CutOutliers]
"""The same but for one: a source foresees high losses, which Ax cuts off."""

FOR_ANALYSES = [transform for transform in TRANSFORMS if transform is not Bilog]
"""The same without bends: of a metric with a bound they state means and noise in its own unit, too."""
