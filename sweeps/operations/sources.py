"""Sources of `transfer:`: earlier sweeps, of which a new one keeps the results that it begins from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sweeps.errors import DamagedObject, InputError, SweepNotFound
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.export import table
from sweeps.operations.limits import most_trials
from sweeps.operations.opening import sweeps_near
from sweeps.space import space_json
from sweeps.space.definition import (
    Choice,
    Fixed,
    Range,
    Result,
    Source,
    Space,
    Value,
    is_number,
    same_value,
)
from sweeps.space.domain import Domain
from sweeps.space.fidelity import is_at_target
from sweeps.space.scale import to_unit
from sweeps.storage.urls import is_remote, local_path, open_store
from sweeps.text.counted import counted
from sweeps.trials import budget
from sweeps.trials.record import Trial
from sweeps.upkeep.removal import living

FEWEST_RESULTS = 3
"""Results that say something of where an optimum lies."""

MAX_RESULTS = 200
"""Results that are kept of a source: a fit to more takes longer than a trial's candidate."""

FAR = 1.0
"""How far outside of this sweep's range a value may lie, in ranges: what is farther says nothing within."""


def read_sources(space: Space, on_notice: Callable[[str], None]) -> Space:
    """Return the space with what its search needs of each source; say in a line what was matched.

    Raises:
        InputError: a source cannot be used.
    """
    found = list[Source]()
    for named in space.transfer:
        source = _read(named.url, space, on_notice)
        for other in found:
            if (other.sweep, other.results) == (source.sweep, source.results):
                raise InputError(
                    f"transfer: {other.url} and {source.url} are the same sweep; take one of them out"
                )
        found.append(source)
    return replace(space, transfer=tuple(found))


def _read(url: str, space: Space, on_notice: Callable[[str], None]) -> Source:
    where = f"transfer: {url}"
    if not is_remote(url) and Path(local_path(url)).is_file():
        raise InputError(f"{where}: this is a file; give the folder or the bucket's URL of a sweep")
    store = open_store(url)
    try:
        experiment = Experiment.open(store)
        digest = hashlib.sha256(store.read(SWEEP_KEY)[0]).hexdigest()
    except SweepNotFound:
        raise InputError(f"{where}: no sweep here; {sweeps_near(url) or 'see `sweep list`'}") from None
    except DamagedObject as error:
        raise InputError(f"{where}: {error}") from None
    records = trials_at_rest(experiment, where)
    if not set(space.objectives) <= set(experiment.written.objectives):
        there, here = (
            ", ".join(f"{each.goal} {each.metric}" for each in objectives)
            for objectives in (experiment.written.objectives, space.objectives)
        )
        raise InputError(f"{where}: it is to {there}, and this sweep to {here}; take it out")
    filled, results = _usable_results(space, experiment.written, records)
    parameters = list(dict.fromkeys(name for result in results for name in result.parameters))
    completed = sum(record.status == "completed" for record in records)
    if not completed:
        raise InputError(f"{where}: no trial of it has completed; take it out")
    if len(table.infeasible(experiment.written, records)) == completed:
        raise InputError(
            f"{where}: none of its {counted(completed, 'result')} is within its own outcome_constraints; "
            "take it out"
        )
    if not parameters:
        raise InputError(
            f"{where}: it has searched none of this sweep's parameters in these ranges; take it out"
        )
    by_objective = zip(*(result.values for result in results), strict=True)
    if len(results) < FEWEST_RESULTS or any(len(set(values)) == 1 for values in by_objective):
        raise InputError(
            f"{where}: {counted(len(results), 'result')} of it {'is' if len(results) == 1 else 'are'} of use "
            f"here; at least {FEWEST_RESULTS} that differ are needed; take it out"
        )
    source = Source(url=url, sweep=digest, filled=filled, results=results)
    others = [name for name in Domain(space).searched if name not in parameters and name not in filled]
    unknown = [
        p.name for p in experiment.written.parameters if not isinstance(p, Fixed) and p.name not in parameters
    ]
    elsewhere = [name for name in unknown if name in Domain(space).searched]
    shown = [
        f"{len(results)} of {completed} results",
        *progress(experiment, records),
        f"matched {', '.join(parameters)}",
        *([f"filled {', '.join(f'{n} = {json.dumps(v)}' for n, v in filled.items())}"] if filled else []),
        *([f"{', '.join(others)} as in the first trial"] if others else []),
        *([f"left out {', '.join(unknown)}"] if unknown else []),
        *([f"no value of {' or '.join(elsewhere)} there lies in this sweep's range"] if elsewhere else []),
    ]
    on_notice(f"transfer from {url}: {'; '.join(shown)}")
    return replace(source, sha256=space_json.digest(source))


def progress(experiment: Experiment, records: list[Trial]) -> list[str]:
    """Return how many trials of a sweep have ended, in a line; none if all of its run cap or grid have."""
    space, most = experiment.space, most_trials(experiment.space, records, ended=False)
    ended = budget.run_cap_count(space, [record for record in records if record.finished])
    return [f"{ended} of its {most} trials have ended"] if most is not None and ended < most else []


def trials_at_rest(experiment: Experiment, where: str) -> list[Trial]:
    """Return the trials of a sweep. Raises InputError: one is damaged, or a worker is at work."""
    try:
        records = experiment.trials()
    except DamagedObject as error:
        raise InputError(f"{where}: {error}") from None
    if workers := living(experiment):
        raise InputError(
            f"{where}: {counted(len(workers), 'worker')} still at work ({', '.join(workers[:3])}); wait for "
            "its end, `sweep stop` it, or give a copy of it as it is now (`sweep copy --live`)"
        )
    return records


def _usable_results(
    space: Space, there: Space, records: list[Trial]
) -> tuple[dict[str, Value], tuple[Result, ...]]:
    """Return the source's fixed values of parameters that are searched here, and its results that fit.

    Those outside of its own outcome constraints are left out: the best of them is nobody's best.
    """
    domain, metrics = Domain(space), [objective.metric for objective in space.objectives]
    fixed = {p.name: p.value for p in there.parameters if isinstance(p, Fixed)}
    filled = {name: v for name, v in fixed.items() if name in domain.searched and domain.has(name, v)}
    names = [p.name for p in there.parameters if not isinstance(p, Fixed) and p.name in domain.searched]
    infeasible = set(table.infeasible(there, records))
    measured = {
        record.trial: [float(value) for value in values if value is not None]
        for record in records
        if record.status == "completed"
        and record.trial not in infeasible
        and None not in (values := [record.metrics.get(metric) for metric in metrics])
        and is_at_target(there, record.parameters)
    }
    positions = {
        record.trial: {
            name: _position(domain.searched[name], record.parameters[name])
            for name in names
            if name in record.parameters
        }
        for record in records
        if record.trial in measured and all(map(math.isfinite, measured[record.trial]))
    }
    # Where no value lies in this sweep's range, ranges or units are others.
    common = {name for each in positions.values() for name, at in each.items() if 0 <= at <= 1}
    found = []
    for record in records:
        here = {name: at for name, at in positions.get(record.trial, {}).items() if name in common}
        if here and all(-FAR <= at <= 1 + FAR for at in here.values()):
            kept = {name: record.parameters[name] for name in here}
            value, *others = measured[record.trial]
            found.append(Result(parameters=kept, value=value, others=tuple(others)))
    return filled, _spread(found)


def _position(parameter: Range | Choice, value: Value) -> float:
    """Return a value's position in ranges of the parameter, 0 to 1 within; infinity where it has none."""
    if isinstance(parameter, Choice):
        return 0.0 if any(same_value(value, member) for member in parameter.values) else math.inf
    if not is_number(value) or (parameter.log and value <= 0):
        return math.inf
    return to_unit(parameter, value)


def _spread(results: list[Result]) -> tuple[Result, ...]:
    """Return the results, or so many as are kept: the best, the worst, and evenly by rank between them.

    The rank is that in the first objective.
    """
    if len(results) <= MAX_RESULTS:
        return tuple(results)
    ranked = sorted(range(len(results)), key=lambda at: results[at].value)
    kept = {ranked[round(i * (len(results) - 1) / (MAX_RESULTS - 1))] for i in range(MAX_RESULTS)}
    return tuple(result for at, result in enumerate(results) if at in kept)
