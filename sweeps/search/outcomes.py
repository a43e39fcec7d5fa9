"""Metrics that the search uses, and the results and constraints derived from them, without Ax."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from sweeps.search.arrays import Floats, Mask
from sweeps.search.front import on_front
from sweeps.space.constraints import parse
from sweeps.space.definition import Space
from sweeps.space.stages import Stages
from sweeps.trials.record import Status, Trial, has_failed

SURVIVAL = "survival"
"""Name of the metric that is 1 for a trial with results and 0 for one that `has_failed`."""

EXACT = 1e-6
"""Relative difference up to which a result is the cost."""

FAR, FAR_ON_FRONT = 100.0, 1e6
"""Multiples of the better half beyond which a result is out of proportion: of one objective, of several."""

Goals = Mapping[str, bool | None]
"""For each metric, whether lower is better; None if it is no objective."""


class Outcomes:
    """Metrics that count: those of the objectives, then those of outcome constraints.

    Attributes:
        names: the search's name (`m0`, `m1`, …) of each metric.
        lower_is_better: whether lower is better, by each objective's name.
        goals: the same for every name; None for one that is no objective, such as survival.
        objective: all objectives in Ax's syntax.
        constraints: the outcome constraints in Ax's syntax.
    """

    def __init__(self, space: Space) -> None:
        constraints = [parse(text) for text in space.outcome_constraints]
        constrained = [name for constraint in constraints for name in constraint.coefficients]
        metrics = dict.fromkeys([*space.metrics(), *constrained])
        self.names: Mapping[str, str] = MappingProxyType({m: f"m{i}" for i, m in enumerate(metrics)})
        self.lower_is_better = {self.names[o.metric]: o.goal == "minimize" for o in space.objectives}
        tracked = (*self.names.values(), SURVIVAL)
        self.goals: Goals = {name: self.lower_is_better.get(name) for name in tracked}
        self.objective = ", ".join(f"-{name}" if low else name for name, low in self.lower_is_better.items())
        self.constraints = tuple(constraint.text(self.names) for constraint in constraints)
        self._noise = space.search.noise
        self._bounded = {
            self.names[n] for c in constraints if len(c.coefficients) == 1 for n in c.coefficients
        }

    def means(self, record: Trial) -> dict[str, float]:
        """Return the finite results of a completed or early-stopped trial, by the search's names."""
        if record.status not in ("completed", "early_stopped"):
            return {}
        found = ((name, record.metrics.get(metric)) for metric, name in self.names.items())
        return {name: float(mean) for name, mean in found if mean is not None and math.isfinite(mean)}

    def predictions(self, record: Trial) -> dict[str, tuple[float, float]]:
        """Return (mean, standard error) of what an early-stopped trial's results would have been, by name."""
        if record.status != "early_stopped":
            return {}
        measured, found = self.means(record), {}
        for metric, name in self.names.items():
            mean, error = record.predicted.get(metric), record.predicted.get(f"{metric}_sem")
            if mean is not None and error is not None and error > 0 and name not in measured:
                found[name] = (float(mean), float(error))
        return found

    def missing(self, record: Trial) -> list[str]:
        """Return the names of the metrics that the trial has no result for (yet)."""
        means = self.means(record)
        return [name for name in self.names.values() if name not in means]

    def final_status(self, record: Trial) -> Status | None:
        """Return the status that Ax is given for an ended trial; None while it has not ended."""
        if not record.finished:
            return None
        if record.status == "completed":
            return "completed"
        if has_failed(record):
            return "failed"
        return "early_stopped" if self.means(record) or self.predictions(record) else "abandoned"

    def table(
        self, records: Sequence[Trial], noise: Mapping[str, float] | None = None
    ) -> list[tuple[Trial, str, float, float]]:
        """Return every result as (record, name, mean, standard error), survival included.

        The standard error is NaN, which lets Ax infer it, unless the space says what it is (`search.noise`).
        Reported ones count for a metric whose every result has one: Ax cannot fit known and unknown noise of
        one metric together. For the same reason predictions need `noise`, by which a fit to the results alone
        has inferred the standard error of each name: then both are in the table, a prediction with its own.
        """
        rows = [(record, name, mean) for record in records for name, mean in self.means(record).items()]
        metrics = {name: metric for metric, name in self.names.items()}
        errors = [self._standard_error(record, name, metrics[name]) for record, name, _ in rows]
        predicted = [
            (record, name, mean, error)
            for record in (records if noise is not None else ())
            for name, (mean, error) in self.predictions(record).items()
        ]
        inferred = {name: (noise or {}).get(name, math.nan) for _, name, _, _ in predicted}
        errors = [
            inferred.get(name, error) if math.isnan(error) else error
            for (_, name, _), error in zip(rows, errors, strict=True)
        ]
        unknown = {name for (_, name, _), error in zip(rows, errors, strict=True) if math.isnan(error)}
        results = [
            (record, name, mean, math.nan if name in unknown else error)
            for (record, name, mean), error in zip(rows, errors, strict=True)
        ]
        results += [row for row in predicted if row[1] not in unknown]
        return [*results, *((record, SURVIVAL, mean, math.nan) for record, mean in self.survival(records))]

    def derived_constraints(self, records: Sequence[Trial]) -> list[str]:
        """Return the constraints that follow from the results: bounds of the front, and survival."""
        return [*self.thresholds(records), *([f"{SURVIVAL} >= 0.5"] if self.survival(records) else [])]

    def thresholds(self, records: Iterable[Trial]) -> list[str]:
        """Return bounds on the Pareto front of several objectives, where the user set none.

        The bound of an objective is its worst result that is no outlier or lies on the current front, plus a
        tenth of the range. Ax's own default is the worst on the front, and so hardly explores beyond its
        ends.
        """
        if len(self.lower_is_better) < 2:
            return []
        signs = {name: 1.0 if lower else -1.0 for name, lower in self.lower_is_better.items()}
        means = [found for found in map(self.means, records) if signs.keys() <= found.keys()]
        if not means:
            return []
        costs = np.array([[sign * found[name] for name, sign in signs.items()] for found in means])
        return [
            f"{name} {'<=' if sign > 0 else '>='} {sign * worst!r}"
            for (name, sign), worst in zip(signs.items(), _worst(costs), strict=True)
            if name not in self._bounded
        ]

    def survival(self, records: Sequence[Trial]) -> list[tuple[Trial, float]]:
        """Return each record with 1.0 if it has results or 0.0 if it failed; [] if none failed.

        A diverged or out-of-memory trial has no loss, but as a constraint it tells the search about its
        region.
        """
        ended = [(r, 0.0 if has_failed(r) else 1.0) for r in records if has_failed(r) or self.means(r)]
        return ended if any(not survived for _, survived in ended) else []

    def _standard_error(self, record: Trial, name: str, metric: str) -> float:
        if self._noise == "inferred":
            return math.nan
        if self._noise == "reported":
            error = record.metrics.get(f"{metric}_sem")
            return float(error) if error is not None and math.isfinite(error) and error >= 0 else math.nan
        return float(self._noise) if name in self.lower_is_better else math.nan


def _worst(costs: Floats) -> list[float]:
    """Return the largest cost that counts of each objective, plus a tenth of the range.

    Args:
        costs: [trials, objectives], lower is better.
    """
    leads, found = on_front(costs), []
    for column in costs.T:
        near = ~out_of_proportion(column, objectives=costs.shape[1])
        kept = column[near]
        first, third = np.quantile(kept, (0.25, 0.75))
        largest = kept[leads[near] | (kept <= third + 1.5 * (third - first))].max()  # Tukey's fence
        found.append(float(largest + 0.1 * (largest - kept.min())))
    return found


def out_of_proportion(costs: Floats, *, objectives: int) -> Mask:
    """Return which results of one objective are far worse than all of the better half, as of a diverged run.

    Quartiles do not tell where a quarter of the runs diverge, or one of the first four.

    Args:
        costs: [N], lower is better.
        objectives: how many there are; of several, a front may rightly have results 100 times as large.
    """
    size = np.abs(np.sort(costs)[: (len(costs) + 1) // 2]).max(initial=0.0)
    far: Mask = (costs / (FAR if objectives == 1 else FAR_ON_FRONT) > size) & (size > 0.0)
    return far


def cost_metric(stages: Stages, outcomes: Outcomes, records: Sequence[Trial]) -> str | None:
    """Return the search's name of the objective that equals the cost of all stages in every result.

    None until two results of different cost agree.
    """
    pairs = [
        (outcomes.means(record), math.fsum((stages.costs(record.parameters) or {}).values()))
        for record in records
    ]
    for name in outcomes.lower_is_better:
        results = [(means[name], cost) for means, cost in pairs if name in means]
        agree = all(math.isclose(result, cost, rel_tol=EXACT) for result, cost in results)
        if agree and len({cost for _, cost in results}) > 1:
            return name
    return None
