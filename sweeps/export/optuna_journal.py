"""Export of the sweep as an Optuna journal for optuna-dashboard: `sweep export --optuna journal.log`.

It is a snapshot, written by Optuna itself, which is an optional dependency.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeps.errors import InputError
from sweeps.export.table import CONFIRM, replace_file
from sweeps.space.constraints import parse
from sweeps.space.definition import Choice, Fixed, Range, Space, Value, cell_of
from sweeps.space.fidelity import is_at_target
from sweeps.text.columns import metric_column
from sweeps.trials import costs
from sweeps.trials.objectives import numbers
from sweeps.trials.record import Trial

STATES = {
    "completed": "COMPLETE",
    "failed": "FAIL",
    "abandoned": "FAIL",
    "early_stopped": "PRUNED",
    "running": "RUNNING",
    "pending": "WAITING",
}


_OUTSIDE = "outside."
_OWN_PREFIXES = (_OUTSIDE, "reused.", "branched.", "branched_at.")
"""Of attributes that are no metrics: parameters outside of the space, and where stages come from."""


def write(path: Path, space: Space, records: Sequence[Trial]) -> None:
    """Write the journal to `path` atomically; an existing file is replaced.

    Raises:
        InputError: Optuna is not installed, or an older one than 4.1, or `path` is a folder.
        StoreUnavailable: the file cannot be written.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise InputError("--optuna needs Optuna from 4.1 on: pip install 'optuna>=4.1'") from None

    def write_draft(draft: Path) -> None:
        storage = JournalStorage(JournalFileBackend(str(draft)))
        study = optuna.create_study(
            storage=storage,
            study_name=space.name,
            directions=[objective.goal for objective in space.objectives],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # naming the metrics is "experimental" since 3.2
            study.set_metric_names([objective.metric for objective in space.objectives])
        distributions = _distributions(optuna, space)
        # Optuna numbers the trials itself, so that one stands for each record that is missing.
        # Optuna's steps are integers; cut off, points within one step would be one.
        is_whole = all(float(step).is_integer() for record in records for step, _ in record.curve)
        stopped = costs.early_stopped_costs(records)
        trials = {
            record.trial: _frozen_trial(
                *(optuna, space, record, distributions, stopped.get(record.trial)), is_whole=is_whole
            )
            for record in records
        }
        missing = optuna.trial.create_trial(
            state=optuna.trial.TrialState.FAIL,
            user_attrs={"error": "its record is lost or damaged: see `sweep doctor`"},
        )
        study.add_trials([trials.get(number, missing) for number in range(max(trials, default=-1) + 1)])

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would greet the new study on stderr
    try:
        replace_file(path, write_draft)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _distributions(optuna: Any, space: Space) -> dict[str, Any]:
    kinds = optuna.distributions
    found = {}
    for parameter in space.parameters:
        match parameter:
            case Range(kind="int"):
                found[parameter.name] = kinds.IntDistribution(
                    int(parameter.min), int(parameter.max), log=parameter.log, step=int(parameter.step or 1)
                )
            case Range():
                found[parameter.name] = kinds.FloatDistribution(
                    parameter.min, parameter.max, log=parameter.log, step=parameter.step
                )
            case Choice():
                found[parameter.name] = kinds.CategoricalDistribution(tuple(map(_choice, parameter.values)))
            case Fixed():
                found[parameter.name] = kinds.CategoricalDistribution((_choice(parameter.value),))
    return found


def _frozen_trial(
    optuna: Any,
    space: Space,
    record: Trial,
    distributions: dict[str, Any],
    stopped: tuple[float, float] | None,
    *,
    is_whole: bool,
) -> Any:
    """Return the record as Optuna's; unless all steps are whole, its points are numbered from 0.

    `stopped` has the nominal and the paid cost of one that was stopped early (`costs.early_stopped_costs`).
    """
    state = optuna.trial.TrialState[STATES[record.status]]
    values = [record.metrics.get(objective.metric) for objective in space.objectives]
    if record.status == "completed" and None in values:
        state = optuna.trial.TrialState.FAIL  # a complete trial of Optuna needs all values
    elif record.status == "completed" and (
        record.generator == CONFIRM or not is_at_target(space, record.parameters)
    ):
        state = optuna.trial.TrialState.PRUNED  # a complete one could be the study's best
    complete = state == optuna.trial.TrialState.COMPLETE
    parameters = {name: _choice(value) for name, value in record.parameters.items()}
    inside = {
        name: value
        for name, value in parameters.items()
        if name in distributions and _contains(distributions[name], value)
    }
    attributes = {
        "status": record.status,
        "generator": record.generator,
        "attempt": record.attempt,
        **({"error": record.error.partition("\n")[0]} if record.error else {}),
        **{
            metric_column(name, prefixes=_OWN_PREFIXES): value
            for name, value in record.metrics.items()
            if value is not None
        },
        **{f"{_OUTSIDE}{name}": value for name, value in parameters.items() if name not in inside},
        **_costs(record, stopped),
    }
    # Optuna 4 has no public name for them, and later versions read its list, too.
    constraints = {"constraints": _excesses(space, record)} if complete and space.outcome_constraints else {}
    started = None if record.status == "pending" else _time(record.started or record.created)
    return optuna.trial.FrozenTrial(
        number=record.trial,
        trial_id=record.trial,
        state=state,
        value=None,
        values=values if complete else None,
        datetime_start=started,
        datetime_complete=_time(record.ended or record.created) if state.is_finished() else None,
        params=inside,
        distributions={name: distributions[name] for name in inside},
        user_attrs=attributes,
        system_attrs=constraints,
        intermediate_values={
            int(step) if is_whole else position: loss for position, (step, loss) in enumerate(record.curve)
        },
    )


def _excesses(space: Space, record: Trial) -> list[float]:
    """Return by how much a trial is beyond each outcome constraint; for Optuna it is within at 0 or below."""
    metrics = numbers(record.metrics)
    found: list[float] = []
    for bound in map(parse, space.outcome_constraints):
        if not bound.coefficients.keys() <= metrics.keys():
            found.append(1.0)  # without the metric it is outside, nobody knows by how much
        else:
            excess = bound.sum(metrics) - bound.bound
            found.append(min(excess, 0.0) if bound.holds(metrics) else excess)  # rounding is no excess
    return found


def _choice(value: Value) -> Any:
    """Return the value as Optuna stores a choice: null as it is, a list as JSON's text."""
    return cell_of(value) if isinstance(value, tuple) else value


def _costs(record: Trial, stopped: tuple[float, float] | None) -> dict[str, Any]:
    """Return the costs of a trial's stages and, of each that it took over or branched off, whose it is."""
    nominal, paid = stopped or (costs.nominal(record), costs.paid(record))
    if nominal is None:
        return {}
    sources = {f"reused.{stage.name}": stage.reused_from for stage in costs.reused(record)}
    for stage in costs.branched(record):
        sources[f"branched.{stage.name}"] = stage.branched_from
        sources[f"branched_at.{stage.name}"] = stage.branched_at
    return {"cost_nominal": nominal, "cost_paid": paid, **sources}


def _contains(distribution: Any, value: Any) -> bool:
    """Return whether Optuna accepts the value; imported trials may lie outside the space."""
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, TypeError):
        return False


def _time(seconds: float) -> datetime:
    """Return the store's time as a datetime in UTC without a time zone, as Optuna wants it."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
