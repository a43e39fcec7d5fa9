"""Export of the sweep as an Ax experiment: `sweep export --ax ax.json`.

`Client.load_from_json_file` of Ax reads it. Parameters are in the user's units, under their names with `__`
for each dot (Ax parses dots); parameters with one value are left out. The sweep's own search uses no such
file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from sweeps.errors import InputError, SpaceError
from sweeps.export.table import replace_file
from sweeps.search.encoding import Axis, Interval, Options, kind_of, option_of
from sweeps.space.constraints import Linear, parse
from sweeps.space.definition import MAX_VALUES, Choice, Range, Space, Value, is_number
from sweeps.space.domain import Domain
from sweeps.space.fidelity import is_at_target
from sweeps.space.scale import level, levels
from sweeps.trials import costs
from sweeps.trials.record import Trial

_COSTS = ("cost_nominal", "cost_paid")
"""Metrics of the export's own, of trials with stages."""

Outcome = dict[str, tuple[float, float | None]]
"""Mean and standard error of each metric."""


def write(path: Path, space: Space, records: Sequence[Trial]) -> list[int]:
    """Write the experiment to `path` atomically, of a sweep with fidelities what is at the target.

    Returns:
        Indices of the trials that Ax refused, because they lack a parameter.

    Raises:
        InputError: Ax refuses the space, or `path` is a folder.
        StoreUnavailable: the file cannot be written.
    """
    from sweeps.search.optimizer import write_client

    domain = Domain(space)
    bounds = [parse(text) for text in space.outcome_constraints]
    metrics = list(
        dict.fromkeys([*space.metrics(), *(name for bound in bounds for name in bound.coefficients)])
    )
    axis_names, metric_names = identifiers(domain.searched), identifiers(metrics, taken=_COSTS)
    axes = [_axis(parameter, domain, axis_names) for parameter in domain.searched.values()]
    goals = ["-" * (o.goal == "minimize") + metric_names[o.metric] for o in space.objectives]
    trials = [
        (record, _point(record, domain, axis_names), _outcome(record, metric_names))
        for record in records
        if is_at_target(space, record.parameters)
    ]
    left_out: list[int] = []
    try:
        replace_file(
            path,
            lambda draft: left_out.extend(
                write_client(
                    draft,
                    name=space.name,
                    axes=axes,
                    constraints=[_text(constraint, axis_names) for constraint in domain.constraints],
                    objective=", ".join(goals),
                    outcome_constraints=[_text(bound, metric_names) for bound in bounds],
                    trials=trials,
                )
            ),
        )
    except SpaceError as error:
        raise InputError(f"--ax: Ax refuses this space in the user's own units: {error}") from None
    return left_out


def identifiers(names: Iterable[str], *, taken: Collection[str] = ()) -> dict[str, str]:
    """Return an identifier for Ax's expressions for each name, no two alike and none of those `taken`."""
    found: dict[str, str] = {}
    for name in names:
        identifier = re.sub(r"\W", "__", name)
        while identifier in taken or identifier in found.values():
            identifier += "_"
        found[name] = identifier
    return found


def _axis(parameter: Range | Choice, domain: Domain, names: Mapping[str, str]) -> Axis:
    name = names[parameter.name]
    if isinstance(parameter, Range):
        if parameter.step is not None and (count := levels(parameter) or 0) <= MAX_VALUES:
            steps = tuple(level(parameter, at) for at in range(count))
            return Options(name=name, values=steps, kind=parameter.kind, ordered=True, dependents={})
        bounds = (parameter.min, parameter.max)
        if parameter.kind == "int":
            bounds = (int(parameter.min), int(parameter.max))
        return Interval(name=name, bounds=bounds, kind=parameter.kind, log=parameter.log)
    values = tuple(option_of(parameter, value) for value in parameter.values)
    switched = {
        option_of(parameter, value): [names[c] for c in children if c in domain.searched]
        for value, children in parameter.when
    }
    return Options(
        name=name,
        values=values,
        kind=kind_of(parameter),
        ordered=parameter.ordered or len(values) == 2,
        dependents={value: children for value, children in switched.items() if children},
    )


def _point(record: Trial, domain: Domain, names: Mapping[str, str]) -> dict[str, Value]:
    point: dict[str, Value] = {}
    for name, value in record.parameters.items():
        parameter = domain.searched.get(name)
        if parameter is None:
            continue
        if isinstance(parameter, Choice):
            point[names[name]] = option_of(parameter, value)
        else:
            point[names[name]] = float(value) if parameter.kind == "float" and is_number(value) else value
    return point


def _outcome(record: Trial, names: Mapping[str, str]) -> Outcome:
    found: Mapping[str, float | None] = record.metrics if record.status == "completed" else {}
    outcome: Outcome = {}
    for metric, name in names.items():
        mean, sem = found.get(metric), found.get(f"{metric}_sem")
        if mean is not None and math.isfinite(mean):
            is_known = sem is not None and math.isfinite(sem) and sem >= 0
            outcome[name] = (mean, sem if is_known else None)
    known = dict(zip(_COSTS, (costs.nominal(record), costs.paid(record)), strict=True)) if outcome else {}
    return {name: (cost, 0.0) for name, cost in known.items() if cost is not None} | outcome


def _text(constraint: Linear, names: Mapping[str, str]) -> str:
    terms = [f"{factor!r}*{names[name]}" for name, factor in constraint.coefficients.items()]
    return f"{' + '.join(terms)} <= {constraint.bound!r}"
