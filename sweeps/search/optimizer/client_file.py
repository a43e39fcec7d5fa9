"""A sweep as a file that `Client.load_from_json_file` of Ax reads, for `ax_export`.

Parameters are in the user's units, under their names with `__` for each dot (Ax parses dots); parameters with
one value are left out. The sweep's own search uses no such file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ax.api.client import Client

from sweeps.errors import InputError
from sweeps.search.determinism import silence
from sweeps.search.encoding import Axis, Interval, Options, kind_of, option_of
from sweeps.search.optimizer.ax_experiment import REFUSALS, parameter
from sweeps.space.constraints import parse
from sweeps.space.definition import MAX_VALUES, Choice, Range, Space, Value, is_number
from sweeps.space.domain import Domain
from sweeps.space.fidelity import is_at_target
from sweeps.space.scale import level, levels
from sweeps.trials import costs
from sweeps.trials.record import Trial

_COSTS = ("cost_nominal", "cost_paid")
"""Metrics of the export's own, of trials with stages."""


def write_client(path: Path, space: Space, records: Sequence[Trial]) -> list[int]:
    """Write the experiment, of a sweep with fidelities what is at the target.

    Returns:
        Indices of the trials that Ax refused, because they lack a parameter.

    Raises:
        InputError: Ax refuses the space.
    """
    domain = Domain(space)
    bounds = [parse(text) for text in space.outcome_constraints]
    metrics = dict.fromkeys([*space.metrics(), *(name for bound in bounds for name in bound.coefficients)])
    axis_names, metric_names = identifiers(domain.searched), identifiers(metrics, taken=_COSTS)
    goals = ["-" * (o.goal == "minimize") + metric_names[o.metric] for o in space.objectives]
    left_out = []
    with silence("ax"):
        client = Client()
        try:
            client.configure_experiment(
                [parameter(_axis(each, domain, axis_names)) for each in domain.searched.values()],
                [constraint.text(axis_names) for constraint in domain.constraints],
                name=space.name,
            )
            client.configure_optimization(", ".join(goals), [bound.text(metric_names) for bound in bounds])
        except REFUSALS as error:
            why = " ".join(str(error).split())
            raise InputError(f"--ax: Ax refuses this space in the user's own units: {why}") from error
        arms: dict[frozenset[tuple[str, Value]], str] = {}
        for record in records:
            if not is_at_target(space, record.parameters):
                continue
            point, outcome = _point(record, domain, axis_names), _outcome(record, metric_names)
            # Ax takes one name for an arm, so repeats have that of the first.
            arm = arms.setdefault(frozenset(point.items()), f"trial-{record.trial}")
            try:
                index = client.attach_trial(point, arm_name=arm)
            except (*REFUSALS, RuntimeError):  # the last, of a conditional space
                left_out.append(record.trial)
                continue
            if record.status == "completed" and outcome:
                client.complete_trial(index, raw_data=outcome)
            elif record.status in ("completed", "failed"):
                client.mark_trial_failed(index)
            elif record.finished:
                client.mark_trial_abandoned(index)
        client.save_to_json_file(str(path))
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


def _outcome(record: Trial, names: Mapping[str, str]) -> dict[str, tuple[float, float | None]]:
    found: Mapping[str, float | None] = record.metrics if record.status == "completed" else {}
    outcome: dict[str, tuple[float, float | None]] = {}
    for metric, name in names.items():
        mean, sem = found.get(metric), found.get(f"{metric}_sem")
        if mean is not None and math.isfinite(mean):
            is_known = sem is not None and math.isfinite(sem) and sem >= 0
            outcome[name] = (mean, sem if is_known else None)
    known = dict(zip(_COSTS, (costs.nominal(record), costs.paid(record)), strict=True)) if outcome else {}
    return {name: (cost, 0.0) for name, cost in known.items() if cost is not None} | outcome
