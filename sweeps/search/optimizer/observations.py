"""Trial records as trials and data of an Ax experiment, and the points without results."""

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
"""Points with their metadata and the metrics that they lack."""


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
        outcomes: the metrics that count.
        records: in index order.
        trials: Ax's trials, by the record's index.
        noise: None, or the inferred standard error of each metric: then predictions are among them.
    """
    rows = []
    for record, name, mean, sem in outcomes.table(records, noise):
        trial = trials[record.trial]
        rows.append(DataRow(trial.index, trial.arm.name, name, name, mean, sem))
    return Data(data_rows=rows)


def pending(experiment: Experiment, outcomes: Outcomes, waiting: Waiting) -> dict[str, list[Any]]:
    """Return the points without a result, by metric; points outside the search space are left out."""
    found: dict[str, list[ObservationFeatures]] = {name: [] for name in outcomes.names.values()}
    for point, metadata, missing in waiting:
        if experiment.search_space.check_membership(point):
            for name in missing:
                found[name].append(ObservationFeatures(dict(point), metadata=dict(metadata)))
    return found


def metadata(point: Mapping[str, Value], filled: Mapping[str, Value]) -> dict[str, Any]:
    """Return metadata that gives Ax a full point (`filled`) in place of one that lacks inactive axes."""
    return {Keys.FULL_PARAMETERIZATION: dict(filled)} if len(filled) > len(point) else {}
