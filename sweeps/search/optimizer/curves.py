"""Ax's rule for running trials that fall behind the others, for `early_stopping`."""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Mapping, Sequence

from ax.api.utils.instantiation.from_string import optimization_config_from_string
from ax.core.arm import Arm
from ax.core.data import Data, DataRow
from ax.early_stopping.strategies.percentile import PercentileEarlyStoppingStrategy

from sweeps.search.determinism import silence
from sweeps.search.encoding import Interval
from sweeps.search.optimizer.ax_experiment import new_experiment
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
from sweeps.space.definition import EarlyTerminate

__all__ = ["PercentileEarlyStoppingStrategy", "falls_behind"]

log = logging.getLogger(__name__)


def falls_behind(
    early: EarlyTerminate,
    trial: int,
    curves: Mapping[int, Sequence[tuple[float, float]]],
    done: Container[int],
) -> bool:
    """Return whether Ax would stop the trial: its last loss is among the worst of those at the same step.

    Args:
        early: the percentile, the first step that counts, and how many completed trials there must be.
        trial: index of the trial to judge by its last point.
        curves: (step, loss) points of all trials by index; Ax interpolates between the steps.

    Returns:
        False also where Ax fails, with a warning: a heartbeat must not die of it.
    """
    axis = Interval(name="trial", bounds=(0.0, 2.0**53))
    with silence("ax"):
        experiment = new_experiment("curves", [axis], [], {"loss": True})
        experiment.optimization_config = optimization_config_from_string("-loss")
        rows, ax_trials = [], {}
        for index, curve in curves.items():
            ax_trials[index] = experiment.new_trial().add_arm(Arm(parameters={"trial": float(index)}))
            ax_trials[index].mark_running(no_runner_required=True)
            if index in done:
                ax_trials[index].mark_completed()
            at, arm = ax_trials[index].index, ax_trials[index].arm.name
            rows += [DataRow(at, arm, "loss", "loss", loss, math.nan, step=step) for step, loss in curve]
        experiment.attach_data(Data(data_rows=rows))
        strategy = PercentileEarlyStoppingStrategy(
            percentile_threshold=early.percentile, min_progression=early.min_step, min_curves=early.min_trials
        )
        at = ax_trials[trial].index
        try:
            return at in strategy.should_stop_trials_early({at}, experiment)
        except SURROGATE_FAILURES as error:
            log.warning("trial %d continues: early stopping failed to judge it: %s", trial, error)
            return False
