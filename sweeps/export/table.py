"""Trials as tables: nested documents for JSON, flat rows for CSV and Parquet, and the best trial.

A flat row has the columns TRIAL_COLUMNS, then `param.<name>` per parameter, then one column per metric.
SWEEP_COLUMNS, of which a sweep may have some, stand behind TRIAL_COLUMNS; so do STAGE_COLUMNS where trials
have stages, and a trial without any has empty cells there.
`sweeps.text.columns` names the columns. `analysis/` reads the exported files.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeps.errors import InputError, StoreUnavailable
from sweeps.space.definition import Objective, Range, Space, cell_of
from sweeps.space.domain import Domain
from sweeps.space.fidelity import is_at_target
from sweeps.text import csv_format
from sweeps.text.atomic_file import atomic_write
from sweeps.text.columns import (
    HOSTS,
    INFEASIBLE,
    MACHINE_SECONDS,
    NOMINAL,
    PAID,
    PARAMETER,
    RESERVED,
    STAGE_COLUMNS,
    SWEEP_COLUMNS,
    TRIAL_COLUMNS,
    is_seed,
    metric_column,
)
from sweeps.text.fresh_runs import MIN_RUNS, failed_configurations
from sweeps.trials import costs, stage_run
from sweeps.trials.objectives import common_means, within_constraints
from sweeps.trials.objectives import costs as own_costs
from sweeps.trials.record import STATUSES, Trial, has_failed

SCHEMA = 1
CONFIRM = "confirm"
"""Generator of fresh runs (as in `analysis.table`)."""


def document(
    space: Space, url: str, trials: Sequence[Trial], held_out: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the sweep as one JSON object, as `sweep export TABLE.json` writes it.

    `held_out` has the losses of each sequence by trial (see `held_out.losses`); left out if there are none.
    """
    longer = {str(each.trial): took for each in trials if (took := machine_seconds(each)) is not None}
    hosts = {str(each.trial): each.nodes for each in trials if each.nodes != 1}
    stopped = _early_stopped_costs(trials)
    return {
        "schema": SCHEMA,
        "name": space.name,
        "url": url,
        "objectives": [{"metric": o.metric, "goal": o.goal} for o in space.objectives],
        "run_cap": space.run_cap,
        "log_parameters": log_parameters(space),
        "trials": [
            nested(marked)
            | stopped.get(marked.trial, {})
            | {"worker": _worker(marked), "seconds": seconds(marked)}
            for marked in marked_by_fidelity(space, trials)
        ],
        **({"infeasible": infeasible(space, trials)} if space.outcome_constraints else {}),
        **({"held_out": dict(held_out)} if held_out else {}),
        **({"machine_seconds": longer} if longer else {}),
        **({"hosts": hosts} if hosts else {}),
    }


def marked_by_fidelity(space: Space, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials, a user's own below the target of the sweep's fidelities with the generator of these.

    So whoever reads a table knows by one column which of its trials are no results.
    """
    return [
        each if is_at_target(space, each.parameters) else replace(each, generator="fidelity")
        for each in trials
    ]


def log_parameters(space: Space) -> list[str]:
    """Return the names of the parameters that are searched on a logarithmic scale."""
    return [each.name for each in space.parameters if isinstance(each, Range) and each.log]


def nested(record: Trial) -> dict[str, Any]:
    """Return one trial, without what its sweep's space says of it; STAGE_COLUMNS only where it has stages."""
    return {
        "trial": record.trial,
        "status": record.status,
        "attempt": record.attempt,
        "generator": record.generator,
        "parameters": dict(record.parameters),
        "metrics": dict(record.metrics),
        "error": record.error,
        "failure": record.failure,
        **stage_costs(record),
    }


def stage_costs(record: Trial) -> dict[str, Any]:
    """Return the STAGE_COLUMNS of a trial; those of stages, and of points, only if it has some."""
    columns: dict[str, Any] = {}
    if record.stages:
        columns |= {NOMINAL: costs.nominal(record), PAID: costs.paid(record)}
        columns["stages"] = stage_run.encode(record.stages)
    if record.points:
        columns["trunk_points"] = stage_run.encode(record.points)
    return columns


def _early_stopped_costs(trials: Sequence[Trial]) -> dict[int, dict[str, Any]]:
    """Return by trial, of those that were stopped early, the costs with what is known of unended stages."""
    found = costs.early_stopped_costs(trials)
    return {trial: {NOMINAL: nominal, PAID: paid} for trial, (nominal, paid) in found.items()}


def cost_rows(space: Space, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return what `analysis.summaries.costs` needs of the trials that the sweep has paid for.

    It is for whoever does not make the whole table.
    """
    own = [each for each in trials if not each.is_imported]
    stopped = _early_stopped_costs(own)
    return [
        {
            "trial": record.trial,
            "status": record.status,
            "generator": record.generator,
            "metrics": record.metrics,
            "seconds": seconds(record),
            **({} if (took := machine_seconds(record)) is None else {"machine_seconds": took}),
            **stage_costs(record),
            **stopped.get(record.trial, {}),
        }
        for record in marked_by_fidelity(space, own)
    ]


def flat_rows(space: Space, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as rows of the table, a cell for each of their values."""
    stopped = _early_stopped_costs(trials)
    rows = [
        flat(each) | stopped.get(each.trial, {}) | verdict for each, verdict in _with_verdicts(space, trials)
    ]
    if has_machine_seconds(trials):
        for row, each in zip(rows, trials, strict=True):
            row[MACHINE_SECONDS] = all_seconds(each)
    if any(each.nodes != 1 for each in trials):
        for row, each in zip(rows, trials, strict=True):
            row[HOSTS] = each.nodes
    return rows


def nested_rows(space: Space, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as `sweep trials --format json` shows them."""
    stopped = _early_stopped_costs(trials)
    return [
        nested(each) | stopped.get(each.trial, {}) | verdict
        for each, verdict in _with_verdicts(space, trials)
    ]


def _with_verdicts(space: Space, trials: Sequence[Trial]) -> list[tuple[Trial, dict[str, bool]]]:
    """Return the trials as `marked_by_fidelity` does, with column INFEASIBLE if there are constraints."""
    outside = set(infeasible(space, trials))
    return [
        (each, {INFEASIBLE: each.trial in outside} if space.outcome_constraints else {})
        for each in marked_by_fidelity(space, trials)
    ]


def flat(record: Trial) -> dict[str, Any]:
    """Return one trial as a row, without what its sweep's space says of it."""
    known = nested(record) | {"worker": _worker(record), "seconds": seconds(record)}
    row: dict[str, Any] = {name: known[name] for name in TRIAL_COLUMNS}
    row |= {
        name: json.dumps(value, allow_nan=False) if isinstance(value, list) else value
        for name, value in stage_costs(record).items()
    }
    row |= {PARAMETER + name: cell_of(value) for name, value in record.parameters.items()}
    row |= {metric_column(name): value for name, value in record.metrics.items()}
    return row


def flat_parameter(record: Trial, name: str) -> bool | int | float | str | None:
    """Return a parameter as `flat` has it; None if the trial has none of this name."""
    return cell_of(record.parameters[name]) if name in record.parameters else None


def seconds(record: Trial) -> float | None:
    """Return the seconds that the last attempt took, or has taken until its last heartbeat."""
    start, end = record.started, record.ended if record.ended is not None else record.heartbeat
    if record.finished and record.history:  # a trial may end days later: as lost, or abandoned while it waits
        start, end = record.history[-1].start, record.history[-1].end
    return None if start is None or end is None else max(0.0, end - start)


def attempts_seconds(record: Trial) -> float | None:
    """Return the seconds that all attempts took, of the one that runs until its last heartbeat."""
    known = [max(0.0, attempt.end - attempt.start) for attempt in record.history]
    last = seconds(record)
    if last is not None and (record.status == "running" or not known):
        known.append(last)
    return math.fsum(known) if known else None


def machine_seconds(record: Trial) -> float | None:
    """Return the seconds of all attempts, times the hosts of the trial; None if these are `seconds`."""
    last, attempts = seconds(record), attempts_seconds(record)
    if attempts is None or (record.nodes == 1 and last is not None and math.isclose(attempts, last)):
        return None
    return record.nodes * attempts


def has_machine_seconds(trials: Sequence[Trial]) -> bool:
    """Return whether any trial has had several attempts or hosts, so that the table says what all took."""
    return any(machine_seconds(record) is not None for record in trials)


def all_seconds(record: Trial) -> float | None:
    """Return the seconds of all attempts, times the hosts of the trial."""
    longer = machine_seconds(record)
    return seconds(record) if longer is None else longer


def counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Return the number of trials by status, zeros included."""
    found = Counter(record.status for record in trials)
    return {status: found[status] for status in STATUSES}


def best(space: Space, trials: Sequence[Trial]) -> Trial | None:
    """Return the best completed trial by the first objective, among those within the outcome constraints.

    The repeats of a confirmation do not count: the luckiest of them would win.
    """
    costs = _costs(space, trials, space.objectives[:1])
    return min(costs, key=lambda pair: pair[1], default=(None, ()))[0]


def front(space: Space, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that `best` chooses from and none of which another beats, in order of the first.

    One beats another if it is better in an objective and as good in all the others. Of a confirmed
    configuration the means of its fresh runs count, not what the search has observed.
    """
    observed = {record.trial: record for record in trials}
    costs = sorted(_costs(space, at_means(space, trials), space.objectives), key=lambda pair: pair[1])
    return [
        observed[record.trial]
        for record, mine in costs
        if not any(other != mine and all(map(operator.le, other, mine)) for _, other in costs)
    ]


def at_means(space: Space, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials, each confirmed configuration as one of them with the means of its fresh runs."""
    confirmed = _confirmed_configurations(space, trials)
    means = {each.stands.trial: each.means for each in confirmed}
    others = {record.trial for each in confirmed for record in each.searched} - means.keys()
    return [
        replace(record, metrics=means[record.trial]) if record.trial in means else record
        for record in trials
        if record.trial not in others
    ]


def fresh_runs(space: Space, trials: Sequence[Trial]) -> dict[int, tuple[Trial, ...]]:
    """Return the fresh runs of each confirmed configuration, by the index of the trial that stands for it."""
    return {each.stands.trial: each.runs for each in _confirmed_configurations(space, trials)}


def infeasible(space: Space, trials: Sequence[Trial]) -> list[int]:
    """Return the indices of the completed trials outside of the outcome constraints.

    Of a confirmed configuration the means of its fresh runs count, not what the search has observed.
    """
    if not space.outcome_constraints:
        return []
    is_within = within_constraints(space)
    means = {r.trial: each.means for each in _confirmed_configurations(space, trials) for r in each.searched}
    return [
        r.trial for r in trials if r.status == "completed" and not is_within(means.get(r.trial, r.metrics))
    ]


def _costs(
    space: Space, trials: Sequence[Trial], objectives: Sequence[Objective]
) -> list[tuple[Trial, tuple[float, ...]]]:
    """Return the completed trials within the outcome constraints with their objectives, lower is better."""
    outside = set(infeasible(space, trials))
    return [
        (record, own)
        for record in trials
        if record.status == "completed"
        and record.generator != CONFIRM
        and is_at_target(space, record.parameters)
        and (own := own_costs(objectives, record)) is not None
        and record.trial not in outside
    ]


def best_confirmed(space: Space, trials: Sequence[Trial]) -> Trial | None:
    """Return the trial whose configuration is best by its fresh runs' mean of the first objective.

    Args:
        space: of the sweep; the means must be within its outcome constraints.

    Returns:
        The record of the trial that was confirmed; None without two completed runs of any. One that failed
        with a fresh seed is not confirmed, unless it was confirmed anew since.
    """
    metric, sign, is_within = space.objectives[0].metric, space.objectives[0].sign, within_constraints(space)
    found = [
        (sign * each.means[metric], each.stands)
        for each in _confirmed_configurations(space, trials)
        if metric in each.means and is_within(each.means)
    ]
    return min(found, key=lambda pair: pair[0])[1] if found else None


@dataclass(frozen=True, kw_only=True)
class _ConfirmedConfiguration:
    """A confirmed configuration.

    Args:
        stands: the trial that stands for it: of those that differ in the seed alone the best observed one, as
            in a confirmation.
        searched: all of these.
        runs: fresh ones.
    """

    stands: Trial
    searched: tuple[Trial, ...]
    runs: tuple[Trial, ...]

    @cached_property
    def means(self) -> dict[str, float]:
        return common_means([record.metrics for record in self.runs])


def _confirmed_configurations(space: Space, trials: Sequence[Trial]) -> list[_ConfirmedConfiguration]:
    """Return the confirmed configurations, by the index of the trial that stands for each."""
    done = [r for r in trials if r.status == "completed" and is_at_target(space, r.parameters)]
    domain = Domain(space)
    runs: dict[Hashable, list[Trial]] = {}
    for record in done:
        if record.generator == CONFIRM:
            runs.setdefault(domain.identity(_without_seed(domain, record)), []).append(record)
    if not runs:
        return []
    failed = _failed_configurations(domain, trials)
    searched: dict[Hashable, list[Trial]] = {
        key: [] for key, own in runs.items() if len(own) >= MIN_RUNS and key not in failed
    }
    for record in done:
        if record.generator != CONFIRM:
            key = domain.identity(_without_seed(domain, record))
            if key in searched:
                searched[key].append(record)

    def rank(record: Trial) -> tuple[float, int]:
        return (own_costs(space.objectives[:1], record) or (math.inf,))[0], record.trial

    found = [
        _ConfirmedConfiguration(stands=min(own, key=rank), searched=tuple(own), runs=tuple(runs[key]))
        for key, own in searched.items()
        if own
    ]
    return sorted(found, key=lambda each: each.stands.trial)


def _failed_configurations(domain: Domain, trials: Sequence[Trial]) -> set[Hashable]:
    """Return the identities of the configurations that failed with a fresh seed (see `fresh_runs`)."""
    runs: list[tuple[Hashable, Hashable, bool | None]] = []
    for record in sorted(trials, key=lambda record: record.trial):
        if record.generator == CONFIRM:
            own = _without_seed(domain, record)
            seed = {name: value for name, value in record.parameters.items() if own.get(name) != value}
            result = True if record.status == "completed" else False if has_failed(record) else None
            runs.append((domain.identity(own), domain.identity(seed), result))
    return failed_configurations(runs)


def _without_seed(domain: Domain, record: Trial) -> dict[str, Any]:
    """Return the parameters that a fresh run has in common with the trial that it confirms."""
    parameters = domain.configuration(record.parameters, repeat=record.generator == CONFIRM)
    return {name: value for name, value in parameters.items() if not is_seed(name)}


def write(
    path: Path, space: Space, url: str, trials: Sequence[Trial], held_out: Mapping[str, Any] | None = None
) -> None:
    """Write the table to `path` atomically, in the format of its suffix; only JSON holds `held_out`.

    Raises:
        InputError: the suffix is none of .csv, .parquet, .json.
        StoreUnavailable: the file cannot be written.
    """

    def write_csv(draft: Path) -> None:
        rows = flat_rows(space, trials)
        with draft.open("w", newline="", encoding="utf-8") as file:
            csv_format.write(file, columns(rows), rows)

    def write_json(draft: Path) -> None:
        content = document(space, url, trials, held_out)
        text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
        draft.write_text(text + "\n", encoding="utf-8")

    def write_parquet(draft: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        rows = flat_rows(space, trials)
        table = pyarrow.table({name: _column([row.get(name) for row in rows]) for name in columns(rows)})
        parquet.write_table(table.replace_schema_metadata({"stagesweep.schema": str(SCHEMA)}), draft)

    writers: dict[str, Callable[[Path], None]] = {
        ".csv": write_csv,
        ".parquet": write_parquet,
        ".json": write_json,
    }
    if path.suffix.lower() not in writers:
        raise InputError(f"{path}: the name must end in {' or '.join(writers)}")
    replace_file(path, writers[path.suffix.lower()])


def replace_file(path: Path, write_draft: Callable[[Path], object]) -> None:
    """Replace the file at `path` atomically; `write_draft` writes the temporary file that it is given.

    Raises:
        InputError: see `require_place`.
        StoreUnavailable: the file cannot be written.
    """
    require_place(path)
    try:
        with atomic_write(path) as draft:
            write_draft(draft)
    except OSError as error:
        raise StoreUnavailable(f"{path}: cannot be written: {error.strerror or error}") from error


def write_new_file(path: Path, text: str) -> None:
    """Write a file for a person to edit; unlike a table, one that is there is never replaced.

    Raises:
        InputError: there is one, or none can be made.
    """
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise InputError(f"{path}: there is a file already; name a new one") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def require_place(path: Path) -> None:
    """Raise InputError unless a file can be made at `path`; a device would be replaced by it."""
    if not path.name or path.is_dir():
        raise InputError(f"{str(path)!r}: this is a folder; give a file's name")
    if path.exists() and (not path.is_file() or path.absolute().parent == Path("/dev")):
        raise InputError(f"{str(path)!r}: this is a device or a pipe; give a file's name")
    if not path.parent.is_dir():
        raise InputError(f"{str(path)!r}: there is no folder {str(path.parent)!r}; make it, or name another")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{str(path)!r}: its folder may not be written to; name another")


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return TRIAL_COLUMNS, those of some sweeps if any, the parameters and the metrics as they appear."""
    names = dict.fromkeys(key for row in rows for key in row)
    some = [name for name in (*SWEEP_COLUMNS, *STAGE_COLUMNS) if name in names]
    parameters = [name for name in names if name.startswith(PARAMETER)]
    metrics = [name for name in names if name not in RESERVED and not name.startswith(PARAMETER)]
    return [*TRIAL_COLUMNS, *some, *parameters, *metrics]


def _column(values: list[Any]) -> list[Any]:
    """Convert mixed values to one type for Parquet: integers and floats to floats, other mixtures to text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _worker(record: Trial) -> str | None:
    return record.worker or (record.history[-1].worker if record.history else None)
