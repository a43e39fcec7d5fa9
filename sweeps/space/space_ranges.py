"""Numeric ranges of a search space file: bounds, distributions, steps, and conditions on the value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sweeps.space.definition import Condition, Range
from sweeps.space.scale import is_level, level, levels, share_within
from sweeps.space.yaml_cursor import Cursor, Problems, nearest

MAX_STEPS = 10**6
MAX_BOUND = 1e100
"""Bounds are multiplied and squared on the way to the optimizer, and must stay finite there."""
DISTRIBUTIONS = {
    "uniform": ("float", False),
    "int_uniform": ("int", False),
    "log_uniform_values": ("float", True),
    "int_log_uniform": ("int", True),
    "normal": ("float", False),
    "int_normal": ("int", False),
    "log_normal": ("float", True),
    "int_log_normal": ("int", True),
}
_NORMAL = ("normal", "int_normal", "log_normal", "int_log_normal")
_LEAST_SHARE = 0.01
"""Of a normal distribution, that must lie between the bounds."""
_REFUSED = {
    "log_uniform": "in W&B its bounds are exponents; write log_uniform_values, with the bounds themselves",
    "loguniform": "unknown; write log_uniform_values",
    "log": "unknown; write log_uniform_values",
    "inv_log_uniform": "not supported; write log_uniform_values",
    "inv_log_uniform_values": "not supported; write log_uniform_values",
}
_RELATION = re.compile(r"(>=|<=|==|>|<) *([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)", re.ASCII)


def number_range(name: str, entries: Mapping[str, Cursor]) -> Range:
    """Return the range that a parameter's entries describe. Raises SpaceError."""
    low, high = entries["min"], entries["max"]
    problems = Problems()
    written = {
        key: problems.attempt(entries[key].number, 0.0)
        for key in ("min", "max", "step", "mu", "sigma")
        if key in entries
    }
    numbers = [written[key] for key in ("min", "max", "step") if key in written]
    if "distribution" in entries:
        problems.attempt(lambda: _distribution(entries["distribution"]), ("float", False))
    problems.check()
    kind, log = ("int" if all(isinstance(n, int) for n in numbers) else "float"), False
    if "distribution" in entries:
        kind, log = _distribution(entries["distribution"])
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
    parameter = replace(parameter, normal=_normal(entries, parameter))
    if "step" in entries:
        parameter = replace(parameter, step=_step(entries["step"], high, parameter))
    if "when" in entries:
        parameter = replace(parameter, when=_when_in_range(entries["when"], parameter))
    return parameter


def _normal(entries: Mapping[str, Cursor], parameter: Range) -> tuple[float, float] | None:
    """Return mean and standard deviation of a normal distribution, or None. Raises SpaceError."""
    normal = entries["distribution"].text() in _NORMAL if "distribution" in entries else False
    for key in ("mu", "sigma"):
        if key in entries and not normal:
            raise entries[key].refusal("goes with distribution: normal or log_normal")
        if normal and key not in entries:
            raise entries["distribution"].refusal(
                "needs mu: and sigma:, mean and standard deviation"
                + (" of the natural logarithm" if parameter.log else "")
            )
    if not normal:
        return None
    mean, sd = (float(entries[key].number()) for key in ("mu", "sigma"))
    if not 0 < sd <= MAX_BOUND:
        raise entries["sigma"].refusal(f"a standard deviation is above 0, and this is {sd:g}")
    share = share_within(replace(parameter, normal=(mean, sd))) if abs(mean) <= MAX_BOUND else 0.0
    if share < _LEAST_SHARE:
        hint = "; mu: is a natural logarithm, such as -6.9 for 0.001" if parameter.log else ""
        raise entries["mu"].refusal(
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


def _when_in_range(body: Cursor, parameter: Range) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the conditions on a number, each with its names. Raises SpaceError."""
    conditions: list[tuple[str, tuple[str, ...]]] = []
    for key, children in body.pairs():
        conditions.append((_relation(key, parameter), tuple(child.text() for child in children.items())))
    if not conditions:
        raise body.refusal('is empty; write {"> 0": [names of parameters]}')
    return tuple(conditions)


def _relation(key: Cursor, parameter: Range) -> str:
    """Return the relation as it is kept: `> 0`, `== 2`. Raises SpaceError if it never or always holds."""
    written = key.value()
    text = f"== {written!r}" if isinstance(written, int | float) else str(written)
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


def _distribution(cursor: Cursor) -> tuple[str, bool]:
    name = cursor.text()
    if name in DISTRIBUTIONS:
        return DISTRIBUTIONS[name]
    if name in _REFUSED:
        raise cursor.refusal(_REFUSED[name])
    if name.startswith("q_"):
        raise cursor.refusal(
            f"write {name.removeprefix('q_')}, with step: for q: and a min: from which the steps count"
        )
    if name in ("constant", "categorical"):
        raise cursor.refusal(
            f"{name} goes with value{'s' * (name == 'categorical')}:, not with min: and max:"
        )
    raise cursor.refusal(f"`{name}` is unknown; {nearest(name, DISTRIBUTIONS)}")
