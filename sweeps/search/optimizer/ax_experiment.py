"""A sweep as Ax sees it: experiment, trials and data, points without results; and Ax's Sobol generator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ax.adapter.registry import Generators
from ax.adapter.transforms import int_to_float
from ax.adapter.transforms.rounding import randomized_round_parameters
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.utils.instantiation.from_string import optimization_config_from_string
from ax.api.utils.instantiation.from_struct import experiment_from_struct
from ax.api.utils.structs import ExperimentStruct
from ax.core.arm import Arm
from ax.core.data import Data, DataRow
from ax.core.experiment import Experiment
from ax.core.generator_run import GeneratorRun
from ax.core.map_metric import MapMetric
from ax.core.observation import ObservationFeatures
from ax.core.optimization_config import OptimizationConfig
from ax.exceptions.core import AxError, SearchSpaceExhausted
from ax.utils.common.constants import Keys
from botorch.exceptions.errors import InfeasibilityError

from sweeps.errors import SpaceError
from sweeps.search.determinism import silence
from sweeps.search.encoding import Axis, Encoding, Interval
from sweeps.search.outcomes import Goals, Outcomes
from sweeps.search.sequence import Point
from sweeps.space.definition import Value
from sweeps.trials.record import Trial

# Ax draws how each constrained integer is rounded in the order of a set of names, which differs between
# processes: the same records would give other candidates.
int_to_float.randomized_round_parameters = lambda parameters, names: randomized_round_parameters(
    parameters, sorted(names)
)

REFUSALS = (AxError, ValueError, TypeError)
"""Errors of Ax for a space that it cannot search."""

EXHAUSTED = (SearchSpaceExhausted, InfeasibilityError)
"""Errors of a draw when there are no further points."""

Metadata = Mapping[str, Any]
Waiting = Iterable[tuple[Mapping[str, Value], Metadata, Sequence[str]]]
"""Points with their metadata and the metrics that they lack."""


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


# ---- trials


def attach(experiment: Experiment, point: Mapping[str, Value], metadata: Metadata) -> Any:
    """Add a running Ax trial at the point, and return it."""
    arm = Arm(parameters=dict(point))
    trial = experiment.new_trial(
        GeneratorRun([arm], candidate_metadata_by_arm_signature={arm.signature: dict(metadata)})
    )
    trial.mark_running(no_runner_required=True)
    return trial


def settle(trial: Any, ending: str | None) -> None:
    """Mark an Ax trial as ended with this status; None leaves it running."""
    match ending:
        case "completed":
            trial.mark_completed()
        case "failed":
            trial.mark_failed()
        case "early_stopped":
            trial.mark_early_stopped(unsafe=True)  # "safe" wants data attached to the experiment
        case "abandoned":
            trial.mark_abandoned()


def results(
    outcomes: Outcomes,
    records: Sequence[Trial],
    trials: Mapping[int, Any],
    noise: Mapping[str, float] | None = None,
) -> Data:
    """Return all results in index order.

    Args:
        trials: Ax's trials, by the record's index.
        noise: None, or the inferred standard error of each metric: then predictions are among them.
    """
    rows = []
    for record, name, mean, sem in outcomes.table(records, noise):
        trial = trials[record.trial]
        rows.append(DataRow(trial.index, trial.arm.name, name, name, mean, sem))
    return Data(data_rows=rows)


def pending(experiment: Experiment, outcomes: Outcomes, waiting: Waiting) -> dict[str, list[Any]]:
    """Return the points without a result, by metric; points outside of the ranges are left out."""
    found: dict[str, list[ObservationFeatures]] = {name: [] for name in outcomes.names.values()}
    parameters = experiment.search_space.parameters
    for point, metadata, missing in waiting:
        # Not the constraints, which are a little tighter here: a user's own trial may lie exactly on one.
        if all(parameters[name].validate(value) for name, value in point.items()):
            for name in missing:
                found[name].append(ObservationFeatures(dict(point), metadata=dict(metadata)))
    return found


def metadata(point: Mapping[str, Value], filled: Mapping[str, Value]) -> dict[str, Any]:
    """Return metadata that gives Ax a full point (`filled`) in place of one that lacks inactive axes."""
    return {Keys.FULL_PARAMETERIZATION: dict(filled)} if len(filled) > len(point) else {}


# ---- Sobol


class SobolDraws:
    """Points from Ax's Sobol generator.

    Args:
        blank: an experiment without trials, so that the points depend on no record.
    """

    def __init__(self, blank: Experiment) -> None:
        self._blank = blank
        # The last adapter with its seed: draws that follow one another need no other, and making one takes
        # longer than a draw.
        self._last: tuple[int, Any] | None = None

    def __call__(self, n: int, draws: int, seed: int, start: int) -> tuple[list[Point], int]:
        """Draw points.

        Args:
            draws: how many points may be drawn and rejected because they break constraints.
            start: position in the sequence of the first draw.

        Returns:
            The points, and the position in the sequence after them.
        """
        if (last := self._last) is None or (last[0], last[1].generator.init_position) != (seed, start):
            last = seed, self._new_adapter(seed, start)
        run = last[1].gen(n=n, model_gen_options={"max_rs_draws": draws})
        self._last = last
        # Equal arms have become one with more weight.
        weighted = zip(run.arms, run.weights, strict=True)
        points = [arm.parameters for arm, weight in weighted for _ in range(round(weight))]
        return points, last[1].generator.init_position

    def _new_adapter(self, seed: int, start: int) -> Any:
        return Generators.SOBOL(
            experiment=self._blank,
            data=Data(),
            deduplicate=False,
            seed=seed,
            init_position=start,
            polytope_sampler_kwargs={"n_burnin": 1000, "n_thinning": 1},
        )
