"""Trial records into an Ax experiment, and the points that have no result yet. Called by `generation`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ax.core.arm import Arm
from ax.core.data import Data, DataRow
from ax.core.experiment import Experiment
from ax.core.generator_run import GeneratorRun
from ax.core.observation import ObservationFeatures
from ax.utils.common.constants import Keys

from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import Value
from sweeps.trials.record import Trial

Metadata = Mapping[str, Any]
Waiting = Iterable[tuple[Mapping[str, Value], Metadata, Sequence[str]]]
"""Points, with their metadata and the metrics that they lack."""


def attach(experiment: Experiment, point: Mapping[str, Value], metadata: Metadata) -> Any:
    """A running trial of Ax's at the point."""
    arm = Arm(parameters=dict(point))
    trial = experiment.new_trial(
        GeneratorRun([arm], candidate_metadata_by_arm_signature={arm.signature: dict(metadata)})
    )
    trial.mark_running(no_runner_required=True)
    return trial


def settle(trial: Any, ending: str | None) -> None:
    """Tell Ax how a trial ended, if it did."""
    match ending:
        case "completed":
            trial.mark_completed()
        case "failed":
            trial.mark_failed()
        case "early_stopped":
            trial.mark_early_stopped(unsafe=True)  # "safe" wants data on the experiment; ours is apart
        case "abandoned":
            trial.mark_abandoned()


def results(outcomes: Outcomes, told: Sequence[Trial], trials: Mapping[int, Any]) -> Data:
    """All results in index order, whatever the order they came in.

    Args:
        trials: Ax's, by the record's index.
    """
    rows = []
    for record, name, mean, sem in outcomes.table(told):
        trial = trials[record.trial]
        rows.append(DataRow(trial.index, trial.arm.name, name, name, mean, sem))
    return Data(data_rows=rows)


def pending(experiment: Experiment, outcomes: Outcomes, waiting: Waiting) -> dict[str, list[Any]]:
    """Points without a result, by metric, of those that the space has."""
    found: dict[str, list[ObservationFeatures]] = {name: [] for name in outcomes.names.values()}
    for point, metadata, missing in waiting:
        if experiment.search_space.check_membership(point):
            for name in missing:
                found[name].append(ObservationFeatures(dict(point), metadata=dict(metadata)))
    return found


def metadata(point: Mapping[str, Value], filled: Mapping[str, Value]) -> dict[str, Any]:
    """Where Ax's model of all axes sees a point that lacks some: at `filled`, which has them all."""
    return {Keys.FULL_PARAMETERIZATION: dict(filled)} if len(filled) > len(point) else {}
