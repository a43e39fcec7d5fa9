"""The sweep as an Ax experiment for those who go on with Ax itself: `sweep export --ax ax.json`.

`Client.load_from_json_file` of Ax reads it. Parameters stand in the user's units, under their names with `__`
for each dot (Ax takes a dot for arithmetic); parameters with one value are left out. `optimizer` does the
talking to Ax; the sweep's own search goes through no such file, because Ax is a function of the records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeps.errors import InputError, SpaceError
from sweeps.export.table import replace_file
from sweeps.search.encoding import Axis, Interval, Options
from sweeps.space.constraints import Linear, parse
from sweeps.space.definition import Choice, Range, Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

Outcome = dict[str, tuple[float, float | None]]


def write(path: Path, space: Space, records: Sequence[Trial]) -> list[int]:
    """Write the experiment to `path`, whole or not at all.

    Returns:
        The indices of the trials that Ax did not take, because they lack a parameter.

    Raises:
        InputError: Ax refuses the space as it is, or `path` is a folder.
        StoreUnavailable: the file cannot be written.
    """
    from sweeps.search.optimizer import write_client

    domain = Domain(space)
    axes = [_axis(parameter, domain) for parameter in domain.searched.values()]
    goals = [f"-{safe(o.metric)}" if o.goal == "minimize" else safe(o.metric) for o in space.objectives]
    bounds = [parse(text) for text in space.outcome_constraints]
    metrics = list(
        dict.fromkeys([*space.metrics(), *(name for bound in bounds for name in bound.coefficients)])
    )
    trials = [(record, _point(record, domain), _outcome(record, metrics)) for record in records]
    left_out: list[int] = []
    try:
        replace_file(
            path,
            lambda draft: left_out.extend(
                write_client(
                    draft,
                    name=space.name,
                    axes=axes,
                    constraints=[_text(constraint) for constraint in domain.constraints],
                    objective=", ".join(goals),
                    outcome_constraints=[_text(bound) for bound in bounds],
                    trials=trials,
                )
            ),
        )
    except SpaceError as error:
        raise InputError(f"--ax: Ax refuses this space in the user's own units: {error}") from None
    return left_out


def safe(name: str) -> str:
    """A name that Ax's expressions take for one."""
    return re.sub(r"\W", "__", name)


def _axis(parameter: Range | Choice, domain: Domain) -> Axis:
    name = safe(parameter.name)
    if isinstance(parameter, Range):
        bounds = (parameter.min, parameter.max)
        if parameter.kind == "int":
            bounds = (int(parameter.min), int(parameter.max))
        return Interval(name=name, bounds=bounds, kind=parameter.kind, log=parameter.log)
    kinds = {type(value) for value in parameter.values}
    kind = next(iter(kinds)).__name__ if len(kinds) == 1 else "float"
    values = tuple(float(v) if kind == "float" and not isinstance(v, str) else v for v in parameter.values)
    switched = {
        value: [safe(c) for c in children if c in domain.searched] for value, children in parameter.when
    }
    return Options(
        name=name,
        values=values,
        kind=kind,
        ordered=parameter.ordered or len(values) == 2,
        dependents={value: names for value, names in switched.items() if names},
    )


def _point(record: Trial, domain: Domain) -> dict[str, Value]:
    point: dict[str, Value] = {}
    for name, value in record.parameters.items():
        parameter = domain.searched.get(name)
        if parameter is None:
            continue
        is_float = isinstance(parameter, Range) and parameter.kind == "float"
        is_float |= isinstance(parameter, Choice) and any(isinstance(v, float) for v in parameter.values)
        point[safe(name)] = float(value) if is_float else value
    return point


def _outcome(record: Trial, metrics: Sequence[str]) -> Outcome:
    """(mean, standard error or None) of every metric that counts, under its safe name."""
    found: Mapping[str, float | None] = record.metrics if record.status == "completed" else {}
    told: Outcome = {}
    for metric in metrics:
        mean, sem = found.get(metric), found.get(f"{metric}_sem")
        if mean is not None and math.isfinite(mean):
            told[safe(metric)] = (mean, sem if sem is not None and math.isfinite(sem) and sem >= 0 else None)
    return told


def _text(constraint: Linear) -> str:
    terms = [f"{factor!r}*{safe(name)}" for name, factor in constraint.coefficients.items()]
    return f"{' + '.join(terms)} <= {constraint.bound!r}"
