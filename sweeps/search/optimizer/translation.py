"""Axes and goals of a space as Ax objects."""

from __future__ import annotations

from collections.abc import Iterable

from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.utils.instantiation.from_string import optimization_config_from_string
from ax.api.utils.instantiation.from_struct import experiment_from_struct
from ax.api.utils.structs import ExperimentStruct
from ax.core.experiment import Experiment
from ax.core.map_metric import MapMetric
from ax.core.optimization_config import OptimizationConfig
from ax.exceptions.core import AxError

from sweeps.errors import SpaceError
from sweeps.search.determinism import silence
from sweeps.search.encoding import Axis, Encoding, Interval
from sweeps.search.outcomes import Goals, Outcomes

REFUSALS = (AxError, ValueError, TypeError)
"""Errors of Ax for a space that it cannot search."""


def blank_experiment(name: str, encoding: Encoding, outcomes: Outcomes) -> Experiment:
    """Return a sweep's experiment without trials. Raises SpaceError if Ax refuses the space."""
    try:
        with silence("ax"):
            experiment = new_experiment(name, encoding.axes, encoding.constraints, outcomes.goals)
            experiment.optimization_config = goal(outcomes)
            return experiment
    except REFUSALS as error:
        raise SpaceError(" ".join(str(error).split()), file=name) from error


def new_experiment(name: str, axes: Iterable[Axis], constraints: Iterable[str], goals: Goals) -> Experiment:
    """Return an Ax experiment without trials, with a tracking metric for each of the goals."""
    struct = ExperimentStruct([parameter(axis) for axis in axes], list(constraints), name, None, None, None)
    experiment = experiment_from_struct(struct)
    for metric, lower_is_better in goals.items():
        experiment.add_tracking_metric(MapMetric(name=metric, lower_is_better=lower_is_better))
    return experiment


def goal(outcomes: Outcomes, *derived: str) -> OptimizationConfig:
    """Return the objectives with the user's constraints and those `derived` from the results."""
    return optimization_config_from_string(outcomes.objective, [*outcomes.constraints, *derived])


def parameter(axis: Axis) -> RangeParameterConfig | ChoiceParameterConfig:
    """Return an axis as a parameter of Ax."""
    if isinstance(axis, Interval):
        scaling = "log" if axis.log else "linear"
        return RangeParameterConfig(axis.name, axis.bounds, axis.kind, scaling=scaling)
    return ChoiceParameterConfig(
        axis.name,
        list(axis.values),
        axis.kind,
        is_ordered=axis.ordered,
        dependent_parameters=axis.dependents or None,
    )
