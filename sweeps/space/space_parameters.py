"""`parameters:` section of a search space file: ranges, choices, fixed values and conditions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from sweeps.space.definition import (
    MAX_VALUES,
    Choice,
    Condition,
    Fixed,
    Parameter,
    Range,
    Value,
    is_number,
    same_value,
)
from sweeps.space.scale import is_level, level, levels, share_within
from sweeps.space.sections import ParameterSection, read
from sweeps.space.yaml_cursor import Cursor, Problems, nearest, yaml_text
from sweeps.text.counted import counted

MAX_STEPS = 10**6
MAX_BOUND = 1e100
"""Bounds are multiplied and squared on the way to the optimizer, and must stay finite there."""

DISTRIBUTIONS = MappingProxyType(
    {
        "uniform": ("float", False),
        "int_uniform": ("int", False),
        "log_uniform_values": ("float", True),
        "int_log_uniform": ("int", True),
        "normal": ("float", False),
        "int_normal": ("int", False),
        "log_normal": ("float", True),
        "int_log_normal": ("int", True),
    }
)
"""Kind of the numbers, and whether the logarithm is searched."""
_KINDS = "write either min: and max:, or values:, or value:"
_NORMAL = ("normal", "int_normal", "log_normal", "int_log_normal")
_LEAST_SHARE = 0.01
"""Least share of a normal distribution that must lie between the bounds."""
_OTHER_DISTRIBUTIONS = {
    "log_uniform": "in W&B its bounds are exponents; write log_uniform_values, with the bounds themselves",
    "loguniform": "unknown; write log_uniform_values",
    "log": "unknown; write log_uniform_values",
    "inv_log_uniform": "not supported; write log_uniform_values",
    "inv_log_uniform_values": "not supported; write log_uniform_values",
    "constant": "constant goes with value:, not with min: and max:",
    "categorical": "categorical goes with values:, not with min: and max:",
}

_ID = r"[A-Za-z_][A-Za-z0-9_-]*"
_PATH = rf"{_ID}(?:\.(?:{_ID}|0|[1-9][0-9]*))*"
# `a.b.0.c`, and the groups `a/b` and `a@b.c`: https://hydra.cc/docs/advanced/override_grammar/basic/
_KEY = re.compile(rf"(?:{_PATH}|{_ID}(?:/{_ID})+)(?:@{_PATH})?", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_RELATION = re.compile(rf"(>=|<=|==|>|<) *({_NUMBER.pattern})", re.ASCII)


def parameters(
    section: Cursor, problems: Problems
) -> tuple[tuple[Parameter, ...], frozenset[str], dict[str, ParameterSection]]:
    """Return all parameters, in the file's order, names of those that are wrong, and sections of the others.

    A wrong one is in the place of its name as a fixed null, so that others can refer to it.

    Args:
        problems: takes what is wrong, of parameters alone and together.

    Raises:
        SpaceError: it is no mapping of names.
    """
    bodies: dict[str, Cursor] = {}
    found: dict[str, Parameter] = {}
    sections: dict[str, ParameterSection] = {}
    wrong: set[str] = set()
    for key, body in section.pairs():
        name = key.text()
        bodies[name] = body
        before = len(problems.found)
        if name == "run_dir":
            problems.found.append(
                key.refusal("run_dir is set by the worker, a folder for each trial; take it out")
            )
        elif not _KEY.fullmatch(name):
            problems.found.append(
                key.refusal(
                    "not a Hydra key; write letters, digits, `_` and dots, such as stage2.optimizer.lr"
                )
            )
        missing = Fixed(name=name, value=None)
        found[name] = problems.attempt(partial(_parameter, name, body, sections), missing)
        if len(problems.found) > before:
            wrong.add(name)
    if not wrong and all(isinstance(parameter, Fixed) for parameter in found.values()):
        raise section.refusal(
            "there is nothing to search: give at least one parameter min: and max:, or values:"
        )
    problems.attempt(lambda: _check_conditions(bodies, wrong), None)
    return tuple(found.values()), frozenset(wrong), sections


def _parameter(name: str, body: Cursor, sections: dict[str, ParameterSection]) -> Parameter:
    """Return the parameter, and put its section among the others. Raises SpaceError."""
    match body.kind():
        case "a mapping":
            pass
        case "nothing":
            raise body.refusal(f"has neither bounds nor values; {_KINDS}")
        case "a list":
            raise body.refusal("expected a mapping, found a list; write {values: [...]}")
        case scalar:
            raise body.refusal(f"write {{value: {scalar.strip('`')}}} for a fixed value")
    if nested := _nested_names(name, body):
        others = f", and the {counted(len(nested) - 1, 'other')} likewise" if len(nested) > 1 else ""
        first = next(key for key, inner in body.pairs() if inner.kind() == "a mapping")
        raise first.refusal(f"parameters are not nested; write the dotted Hydra key `{nested[0]}`{others}")
    section = read(body, ParameterSection)
    written = section.model_fields_set
    keys = [key for key in ("value", "values", "min", "max") if key in written]
    if keys not in (["value"], ["values"], ["min", "max"]):
        has = (
            f"has {' and '.join(f'{key}:' for key in keys)}; " if keys else "has neither bounds nor values; "
        )
        raise body.refusal(f"{has}write either min: and max:, or values:, or value:")
    for key, needed in (("ordered", "values"), ("step", "min"), ("mu", "min"), ("sigma", "min")):
        if key in written and needed not in written:
            bounds = "values:" if needed == "values" else "min: and max:"
            raise body.at(key).refusal(f"goes only with {bounds}")
    for key in ("when", "default", "prior"):
        if key in written and "value" in written:
            raise body.at(key).refusal("goes only with values:, or with min: and max:")
    sections[name] = section
    if "min" in written:
        return _range(name, section, body)
    # W&B has redundant names for what value: and values: say already.
    if section.distribution not in (None, "constant" if "value" in written else "categorical"):
        raise body.at("distribution").refusal(f"{keys[0]}: has no distribution; take it out")
    if "value" in written:
        return Fixed(name=name, value=section.value)
    return _choice(name, section, body)


def _nested_names(name: str, body: Cursor) -> list[str]:
    """Return the dotted names of the parameters that are written inside of another; none in what is one."""
    found: list[str] = []
    for key, inner in body.pairs():
        part = key.text()
        if (
            inner.kind() != "a mapping"
            or part in ("when", "prior")
            or not re.fullmatch(_PATH, part, re.ASCII)
        ):
            continue
        # W&B writes `parameters` between the names of nested parameters.
        path = name if part in ("parameters", "params") else f"{name}.{part}"
        is_one = any(entry.text() in ParameterSection.model_fields for entry, _ in inner.pairs())
        found += [path] if is_one else _nested_names(path, inner)
    return found


def _choice(name: str, section: ParameterSection, body: Cursor) -> Choice:
    listed, values = body.at("values"), list(section.values)
    if len(values) == 1:
        raise listed.refusal(f"one value is no choice; write value: {yaml_text(values[0])}")
    if len(values) > MAX_VALUES:
        raise listed.refusal(
            f"{len(values)} values; the optimizer takes {MAX_VALUES} at most, write min: and max:"
        )
    names = {bool: "booleans", tuple: "lists", str: "text"}
    kinds = {names.get(type(value), "numbers") for value in values if value is not None}
    if len(kinds) > 1:
        raise listed.refusal(
            f"mixes {' and '.join(sorted(kinds))}; give all values one type, quotes make text"
        )
    if None in values and "null" in values:
        raise listed.refusal("null and the text 'null' are the same in a table; give the text another name")
    if any(isinstance(value, float) for value in values):
        values = [float(value) if is_number(value) else value for value in values]
    for position, value in enumerate(values):
        if any(same_value(value, earlier) for earlier in values[:position]):
            raise listed.items()[position].refusal(f"`{yaml_text(value)}` is listed twice")
    ordered = section.ordered
    numbers = [value for value in values if is_number(value)]
    if ordered and numbers != sorted(numbers):
        raise listed.refusal("ordered: true needs ascending numbers; sort them")
    when: list[tuple[Value, tuple[str, ...]]] = []
    for key, children in section.when or ():
        written = key.value_or_list()
        # JSON's keys are texts, and YAML's are no lists: "null", "true" and "[1, 2]" stand for the values,
        # and "1" for that of [1, 2.5], where it is 1.0.
        equal = (
            [v for v in values if same_value(v, written)]
            or [v for v in values if yaml_text(v) == written]
            or [v for v in values if is_number(v) and v == _quoted_number(written)]
        )
        if not equal:
            shown = ", ".join(yaml_text(value) for value in values)
            raise key.refusal(f"`{yaml_text(written)}` is not one of the values ({shown})")
        if any(same_value(equal[0], earlier) for earlier, _ in when):
            raise key.refusal("written twice; put all names in one list")
        when.append((equal[0], children))
    if section.when == []:
        raise body.at("when").refusal("is empty; write {value: [names of parameters]}")
    return Choice(name=name, values=tuple(values), ordered=ordered, when=tuple(when))


def _range(name: str, section: ParameterSection, body: Cursor) -> Range:
    low, high, distribution = body.at("min"), body.at("max"), section.distribution
    floats = (isinstance(number, float) for number in (section.min, section.max, section.step))
    kind, log = ("float" if any(floats) else "int"), False
    if distribution is not None:
        if distribution not in DISTRIBUTIONS:
            problem = _OTHER_DISTRIBUTIONS.get(distribution)
            if distribution.startswith("q_"):
                shorter = distribution.removeprefix("q_")
                problem = f"write {shorter}, with step: for q: and a min: from which the steps count"
            raise body.at("distribution").refusal(
                problem or f"`{distribution}` is unknown; {nearest(distribution, DISTRIBUTIONS)}"
            )
        kind, log = DISTRIBUTIONS[distribution]
    if kind == "int":
        lower: float = low.integer(least=-(2**53))
        upper: float = high.integer(least=-(2**53))
    else:
        lower, upper = float(low.number()), float(high.number())
    for bound, at in ((lower, low), (upper, high)):
        if abs(bound) > MAX_BOUND:
            raise at.refusal(f"{at.kind()} is beyond {MAX_BOUND:g}; search its logarithm, or another unit")
    if lower == upper:
        raise high.refusal(f"max equals min; write {{value: {low.kind().strip('`')}}} for a fixed value")
    if lower > upper:
        raise high.refusal(f"max is below min; swap {low.kind()} and {high.kind()}")
    if log and lower <= 0:
        raise low.refusal(f"a logarithmic range must stay above zero, and min is {low.kind()}")
    parameter = Range(name=name, min=lower, max=upper, kind="int" if kind == "int" else "float", log=log)
    parameter = replace(parameter, normal=_normal(section, body, parameter))
    if section.step is not None:
        parameter = replace(parameter, step=_step(body.at("step"), high, parameter))
    when = tuple((_relation(key, parameter), children) for key, children in section.when or ())
    if section.when == []:
        raise body.at("when").refusal('is empty; write {"> 0": [names of parameters]}')
    return replace(parameter, when=when)


def _normal(section: ParameterSection, body: Cursor, parameter: Range) -> tuple[float, float] | None:
    """Return mean and standard deviation of a normal distribution, or None. Raises SpaceError."""
    is_normal = section.distribution in _NORMAL
    for key in ("mu", "sigma"):
        if key in section.model_fields_set and not is_normal:
            raise body.at(key).refusal("goes with distribution: normal or log_normal")
        if is_normal and key not in section.model_fields_set:
            raise body.at("distribution").refusal(
                "needs mu: and sigma:, mean and standard deviation"
                + (" of the natural logarithm" if parameter.log else "")
            )
    if not is_normal:
        return None
    mean, sd = float(body.at("mu").number()), float(body.at("sigma").number())
    if not 0 < sd <= MAX_BOUND:
        raise body.at("sigma").refusal(f"a standard deviation is above 0, and this is {sd:g}")
    share = share_within(replace(parameter, normal=(mean, sd))) if abs(mean) <= MAX_BOUND else 0.0
    if share < _LEAST_SHARE:
        hint = "; mu: is a natural logarithm, such as -6.9 for 0.001" if parameter.log else ""
        raise body.at("mu").refusal(
            f"{share:.1%} of this distribution lies between min: and max:; move them, or mu:{hint}"
        )
    return mean, sd


def _step(cursor: Cursor, high: Cursor, parameter: Range) -> float | None:
    """Return the step, or None for integers one by one. Raises SpaceError."""
    size: float = cursor.integer(least=1) if parameter.kind == "int" else float(cursor.number())
    if not 0 < size <= parameter.max - parameter.min:
        raise cursor.refusal(
            f"{cursor.kind()} is no step from min to max; write one above 0 that fits between"
        )
    if parameter.log:
        raise cursor.refusal(
            "goes with linear ranges only; list the values under values:, with ordered: true"
        )
    parameter = replace(parameter, step=size)
    count = levels(parameter) or 0
    if count > MAX_STEPS:
        raise cursor.refusal(f"{count} steps; write none at all, or at most {MAX_STEPS}")
    if not is_level(parameter, parameter.max):
        raise high.refusal(
            f"no step of {size:g} from {parameter.min:g} ends there; write {level(parameter, count - 1)} or "
            f"{level(parameter, count)}"
        )
    return None if parameter.kind == "int" and size == 1 else size


def _quoted_number(written: Value) -> float | None:
    """Return the number that a text is."""
    return float(written) if isinstance(written, str) and _NUMBER.fullmatch(written) else None


def _relation(key: Cursor, parameter: Range) -> str:
    """Return the relation as it is kept: `> 0`, `== 2`. Raises SpaceError if it never or always holds."""
    written = key.value()
    alone = isinstance(written, int | float) or _quoted_number(written) is not None  # JSON quotes its keys
    text = f"== {written}" if alone else str(written)
    match = _RELATION.fullmatch(text.strip())
    if match is None or isinstance(written, bool):
        raise key.refusal('is no condition on a number; write such as {"> 0": [names of parameters]}')
    relation, number = match.groups()
    condition = Condition.on_number(parameter.name, f"{relation} {number}")
    if relation == "==":
        inside = parameter.min <= float(number) <= parameter.max and is_level(parameter, float(number))
        if levels(parameter) is None:
            raise key.refusal("a range of floats hardly ever meets one number; write >, >=, < or <=")
        if not inside:
            raise key.refusal(f"{number} is none of its values, {parameter.min} to {parameter.max}")
        return f"== {number}"
    holds = [condition.holds({parameter.name: end}) for end in (parameter.min, parameter.max)]
    if holds[0] == holds[1]:
        never = "always holds; take when: out" if holds[0] else "never holds"
        raise key.refusal(f"{never}: the values are {parameter.min} to {parameter.max}")
    return f"{relation} {number}"


def _check_conditions(bodies: Mapping[str, Cursor], wrong: Collection[str]) -> None:
    """Refuse children that do not exist, have two parents, or depend on themselves."""
    parent_of: dict[str, str] = {}
    for parent, body in bodies.items():
        when = body.at("when") if parent not in wrong else body
        if when is body:
            continue
        for child in (child for _, children in when.pairs() for child in children.items()):
            name = child.text()
            if name not in bodies:
                raise child.refusal(f"`{name}` is not among the parameters; {nearest(name, bodies)}")
            if name in parent_of:
                raise child.refusal(
                    f"`{name}` depends on `{parent_of[name]}` already, and a parameter has one condition; "
                    "write one of another name, or none in `when`"
                )
            parent_of[name] = parent
            path = [name]
            while path[-1] in parent_of:
                path.append(parent_of[path[-1]])
                if path[-1] == name:
                    raise child.refusal(f"`{name}` would depend on itself: {' -> '.join(path)}")
