"""Export of a sweep to a file that Ax's own client loads, for `ax_export`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ax.api.client import Client

from sweeps.errors import SpaceError
from sweeps.search.determinism import silence
from sweeps.search.encoding import Axis
from sweeps.search.optimizer.ax_experiment import REFUSALS, parameter
from sweeps.space.definition import Value
from sweeps.trials.record import Trial


def write_client(
    path: Path,
    *,
    name: str,
    axes: Iterable[Axis],
    constraints: Sequence[str],
    objective: str,
    outcome_constraints: Sequence[str],
    trials: Iterable[tuple[Trial, Mapping[str, Value], Mapping[str, tuple[float, float | None]]]],
) -> list[int]:
    """Write an experiment for `Client.load_from_json_file`.

    Args:
        constraints: parameter constraints in Ax's syntax.
        objective: all objectives in Ax's syntax.
        outcome_constraints: in Ax's syntax.
        trials: of each, its record, its point on the axes, and (mean, standard error) of each metric.

    Returns:
        Indices of the trials that Ax refused.

    Raises:
        SpaceError: Ax refuses the space.
    """
    left_out = []
    with silence("ax"):
        client = Client()
        try:
            client.configure_experiment([parameter(axis) for axis in axes], constraints, name=name)
            client.configure_optimization(objective, outcome_constraints)
        except REFUSALS as error:
            raise SpaceError(" ".join(str(error).split()), file=name) from error
        arms: dict[frozenset[tuple[str, Value]], str] = {}
        for record, point, outcome in trials:
            # Ax takes one name for an arm, so repeats have that of the first.
            arm = arms.setdefault(frozenset(point.items()), f"trial-{record.trial}")
            try:
                index = client.attach_trial(dict(point), arm_name=arm)
            except (*REFUSALS, RuntimeError):  # the last, of a conditional space
                left_out.append(record.trial)
                continue
            if record.status == "completed" and outcome:
                client.complete_trial(index, raw_data=dict(outcome))
            elif record.status in ("completed", "failed"):
                client.mark_trial_failed(index)
            elif record.finished:
                client.mark_trial_abandoned(index)
        client.save_to_json_file(str(path))
    return left_out
