"""Search space of a `sweep.json`: written, read, compared, and checked, as a user may have edited it.

`space_file` checks search space files, with lines and hints; this only checks that numbers are finite and
types are right, so that nothing fails later in a worker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

from sweeps.space import typed
from sweeps.space.constraints import parse, parse_expression
from sweeps.space.definition import (
    Budget,
    Choice,
    EarlyTerminate,
    Fixed,
    Parameter,
    Program,
    Range,
    Result,
    Search,
    Source,
    Space,
    Stage,
    Trunk,
    conditions,
    is_number,
    same_value,
)
from sweeps.space.scale import share_within
from sweeps.text import json_reader

SCHEMA = 1

_WRITTEN_IF_SET: Mapping[type, tuple[str, ...]] = MappingProxyType(
    {
        Range: ("step", "normal", "when", "prior"),
        Choice: ("prior",),
        Program: ("processes", "nodes", "devices"),
        Search: ("sobol", "noise", "reuse", "prior", "stop"),
        Budget: ("until",),
        Stage: ("trunk",),
        Trunk: ("without",),
        Result: ("others",),
        Space: ("stages", "snapshots", "brake", "defaults", "transfer", "fidelity"),
    }
)
"""Fields that `sweep.json` has only where they are not the default."""


def to_json(space: Space) -> dict[str, Any]:
    """Return the space as a JSON object; `from_json` is the inverse."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        if isinstance(value, Mapping):
            return dict(value)
        if not is_dataclass(value):
            return value
        defaults = {
            field.name: field.default if field.default_factory is MISSING else field.default_factory()
            for field in fields(value)
        }
        written_if_set = list(_WRITTEN_IF_SET.get(type(value), ()))
        if isinstance(value, EarlyTerminate):  # the settings of other rules
            written_if_set = [
                key for rule, key in (("curve", "margin"), ("hyperband", "eta")) if value.type != rule
            ]
        left_out = [key for key in written_if_set if getattr(value, key) == defaults[key]]
        document = {key: plain(getattr(value, key)) for key in defaults if key not in left_out}
        return document | ({"type": type(value).__name__.lower()} if isinstance(value, Parameter) else {})

    document: dict[str, Any] = plain(space)
    return document


def digest(source: Source) -> str:
    """Return the SHA-256 of what a sweep keeps of a source."""
    results = [[dict(result.parameters), *result.values] for result in source.results]
    kept = json.dumps([dict(source.filled), results], sort_keys=True, allow_nan=False)
    return hashlib.sha256(kept.encode()).hexdigest()


def differences(there: Space, here: Space) -> str:
    """Return in which keys two spaces differ, with both values: `parameters.lr.max: 0.1 there, 0.2 here`."""
    apart = list(_differences("", to_json(there), to_json(here)))
    more = [f"{len(apart) - _SHOWN} more"] if len(apart) > _SHOWN else []
    return "; ".join([*apart[:_SHOWN], *more]) or "parameters or stages are in another order"


_SHOWN = 5
_ABSENT = object()


def _differences(key: str, there: object, here: object) -> Iterator[str]:
    there, here = _by_name(there), _by_name(here)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for part in {**there, **here}:
            inner = f"{key}.{part}" if key else str(part)
            yield from _differences(inner, there.get(part, _ABSENT), here.get(part, _ABSENT))
    elif there != here:
        if _ABSENT in (there, here) and isinstance(here if there is _ABSENT else there, Mapping):
            yield f"{key}: only {'here' if there is _ABSENT else 'there'}"
        else:
            yield f"{key}: {_value_text(there)} there, {_value_text(here)} here"


def _by_name(value: object) -> object:
    """Return a list of parameters, objectives or stages by their names; another value as it is."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, Mapping) for each in value):
        return value
    return {each.get("name", each.get("metric", at)): each for at, each in enumerate(value)}


def _value_text(value: object) -> str:
    text = "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def from_json(document: Mapping[str, Any]) -> Space:
    """Return the space in a document that `to_json` wrote; `problem` checks its values.

    Raises:
        KeyError, TypeError, ValueError: a field is missing, unknown or not of its type.
    """
    if missing := [name for name in ("search", "lease") if name not in document]:
        raise KeyError(missing[0])
    written = enumerate(document["parameters"])
    parameters = tuple(_parameter(each, f"parameters[{at}]") for at, each in written)
    return replace(typed.read(Space, {**document, "parameters": ()}), parameters=parameters)


def _parameter(document: Mapping[str, Any], where: str) -> Parameter:
    kinds: dict[str, Callable[..., Parameter]] = {"range": Range, "choice": Choice, "fixed": Fixed}
    fields = dict(document)
    if (kind := kinds.get(fields.pop("type"))) is None:
        raise ValueError(f"unknown type of parameter {document['type']!r}")
    return typed.read(kind, fields, where)


def read(data: bytes) -> Space:
    """Return the space in `sweep.json`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: it is none of this version's.
    """
    document = json_reader.parse(data)
    json_reader.require_schema(document, SCHEMA)
    space = from_json(document["space"])
    if (wrong := problem(space)) is not None:
        raise ValueError(wrong)
    for source in space.transfer:
        if (source.results or source.sha256) and source.sha256 != digest(source):
            raise ValueError(f"what is kept of the source {source.url} is not what its sha256 says")
    return space


def problem(space: Space) -> str | None:
    """Return what is wrong with the space, as one clause, or None."""
    if clause := _fidelity_problem(space):
        return clause
    if not space.objectives:
        return "it has no objectives"
    for parameter in space.parameters:
        if clause := _parameter_problem(parameter):
            return f"parameter {parameter.name!r}: {clause}"
    names = space.names()
    for text in (*space.parameter_constraints, *space.outcome_constraints):
        try:
            parse(text, names if text in space.parameter_constraints else ())
        except (ValueError, TypeError, AttributeError) as error:
            return f"constraint {text!r}: {error}"
    for stage in space.stages:
        if not stage.name:
            return "a stage has no name"
        try:
            parse_expression(stage.cost or "0", names)
        except ValueError as error:
            return f"stage {stage.name!r}: cost {stage.cost!r}: {error}"
        if (trunk := stage.trunk) is not None:
            is_share = trunk.decay in names if isinstance(trunk.decay, str) else 0 <= trunk.decay <= 1
            if trunk.length not in names or not is_share:
                return (
                    f"stage {stage.name!r}: its trunk is not a length, a decay of 0 to 1, a tail and a count"
                )
    return None


def _fidelity_problem(space: Space) -> str:
    choices = {p.name: len(p.values) for p in space.parameters if isinstance(p, Choice)}
    counts = [choices.get(each.parameter, 0) for each in space.fidelity]
    for fidelity, count in zip(space.fidelity, counts, strict=True):
        if count < 2 or count != counts[0] or len(fidelity.cost) not in (0, count):
            return f"fidelity {fidelity.parameter!r}: it is no choice, or has not a cost for each value"
    return ""


def _parameter_problem(parameter: Parameter) -> str:
    if not isinstance(parameter, Fixed) and (prior := parameter.prior) is not None:
        if prior.width <= 0:
            return f"the width of its prior, {prior.width!r}, is not above 0"
        if isinstance(parameter, Choice):
            if not any(same_value(prior.around, value) for value in parameter.values):
                return f"its prior is around {prior.around!r}, none of its values"
        elif not is_number(prior.around) or not parameter.min <= prior.around <= parameter.max:
            return f"its prior is around {prior.around!r}, outside of its range"
    match parameter:
        case Choice(values=()):
            return "it has no values"
        case Range(min=low, max=high) if low >= high or (parameter.log and low <= 0):
            scale = " on a logarithmic scale" if parameter.log else ""
            return f"there is nothing between {low!r} and {high!r}{scale}"
        case Range(step=float() | int() as step) if step <= 0:
            return f"its step {step!r} is not above 0"
        case Range(normal=(_, sd)) if not (sd > 0 and share_within(parameter) > 0):
            return f"no part of the normal distribution {parameter.normal!r} lies between its bounds"
        case Range():
            try:
                conditions(parameter)
            except (ValueError, TypeError, AttributeError) as error:
                return f"its conditions: {error}"
    return ""
