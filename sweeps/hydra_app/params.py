"""Conversion of `hydra.sweeper.params` and command-line overrides to `parameters:` of a search space file.

`space_file` then validates the result. A parameter may be given by a Hydra override (as for the Optuna
sweeper), by one of Ax's dictionaries (as for the Ax sweeper), or as in a search space file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from sweeps.errors import InputError
from sweeps.space.definition import from_plain, is_number
from sweeps.space.overrides import to_overrides
from sweeps.text.shorten import one_line

AX_KEYS = {"type", "bounds", "values", "value", "log_scale", "value_type", "is_ordered"}


def read(
    params: Mapping[str, Any], arguments: Sequence[str], config_loader: ConfigLoader | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the searched parameters by key, and the overrides that are the same in all trials.

    Args:
        params: `hydra.sweeper.params`.
        arguments: overrides of the command line; they take precedence over `params`.
        config_loader: Hydra's, which resolves `glob`.

    Raises:
        InputError: a parameter cannot be searched.
    """
    searched: dict[str, dict[str, Any]] = {}
    fixed: dict[str, str] = {}
    for key, param in params.items():
        if isinstance(param, Mapping):
            searched[key] = _from_ax(key, param) if "type" in param else dict(param)
        elif isinstance(param, list):
            searched[key] = _choice(key, param)
        elif isinstance(param, str):
            _add(_parse([f"{key}={param}"], config_loader)[0], searched, fixed)
        elif param is None:
            raise InputError(f"hydra.sweeper.params.{key}: is empty; write interval(…), choice(…) or a value")
        else:
            fixed[key] = to_overrides({key: from_plain(param)})[0]
    for override in _parse(arguments, config_loader):
        _add(override, searched, fixed)
    return searched, list(fixed.values())


def _parse(lines: Sequence[str], config_loader: ConfigLoader | None) -> list[Override]:
    try:
        return list(OverridesParser.create(config_loader=config_loader).parse_overrides(list(lines)))
    except HydraException as error:
        raise InputError(one_line(error)) from None


def _add(override: Override, searched: dict[str, dict[str, Any]], fixed: dict[str, str]) -> None:
    """Add the override to the searched or the fixed ones, in place of an earlier one with the same key."""
    key = override.get_key_element()
    bare = key.lstrip("+~")
    if not override.is_sweep_override():
        searched.pop(bare, None)
        fixed[bare] = override.input_line or ""
        return
    if key.startswith("~"):
        raise InputError(f"{override.input_line}: what is taken out cannot be searched; write {bare}=…")
    fixed.pop(bare, None)
    parameter = _parameter(bare, override)
    if key != bare:  # all trials add it, with any of its values, which each then overrides with its own
        value = next(iter(parameter.get("values", ())), parameter.get("min", parameter.get("value")))
        fixed[bare] = key.removesuffix(bare) + to_overrides({bare: from_plain(value)})[0]
    searched[bare] = parameter


def _parameter(key: str, override: Override) -> dict[str, Any]:
    value = override.value()
    tags = set(getattr(value, "tags", ()))
    if unknown := tags - {"log"}:
        raise InputError(f"{key}: the tag {sorted(unknown)[0]!r} has no meaning here; log is the only one")
    if isinstance(value, IntervalSweep):
        return _range(key, value.start, value.end, log="log" in tags)
    if tags:
        raise InputError(f"{key}: the tag 'log' goes with interval(…)")
    if isinstance(value, RangeSweep) and value.step == 1:
        start, stop = value.start, value.stop
        if isinstance(start, int) and isinstance(stop, int) and stop > start + 1:
            return _range(key, start, stop - 1, log=False)
    if isinstance(value, ChoiceSweep | RangeSweep):
        value.shuffle = False  # another order at each start would be another search space
    values = [Override._convert_value(item) for item in override.sweep_iterator()]
    if found := [value for value in values if "${" in str(value)]:  # a trial's value is quoted, and so a text
        raise InputError(f"{key}: {found[0]!r}: an interpolation cannot be a choice; write its value")
    return _choice(key, values)


def _range(key: str, low: Any, high: Any, *, log: bool) -> dict[str, Any]:
    integers = isinstance(low, int) and isinstance(high, int)
    if log:
        return {
            "min": low,
            "max": high,
            "distribution": "int_log_uniform" if integers else "log_uniform_values",
        }
    return {"min": low, "max": high} if integers else {"min": float(low), "max": float(high)}


def _choice(key: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return a choice, ordered (so that neighbours are similar for the surrogate) if its values ascend."""
    if any(isinstance(value, Mapping) for value in values):
        raise InputError(f"{key}: a mapping cannot be a choice; write a config group, or name the cases")
    if len(values) == 1:
        return {"value": values[0]}
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return {"values": list(values)}
    if any(isinstance(value, float) for value in numbers):
        numbers = [float(value) for value in numbers]
    return {"values": numbers, "ordered": True} if numbers == sorted(numbers) else {"values": numbers}


def _from_ax(key: str, param: Mapping[str, Any]) -> dict[str, Any]:
    """Convert one of Ax's dictionaries."""
    where = f"hydra.sweeper.params.{key}"
    if unknown := set(param) - AX_KEYS:
        raise InputError(f"{where}: unknown key {sorted(map(str, unknown))[0]!r} next to type:")
    match param["type"]:
        case "range":
            bounds, kind = param.get("bounds"), param.get("value_type")
            if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(is_number, bounds)):
                raise InputError(f"{where}: write bounds: [low, high], two numbers")
            if kind not in (None, "int", "float"):
                raise InputError(f"{where}: value_type is {kind!r}; of a range it is int or float")
            if kind == "int" and not all(float(bound).is_integer() for bound in bounds):
                raise InputError(f"{where}: value_type is int, and the bounds are {bounds}; write integers")
            low, high = bounds if kind is None else map(int if kind == "int" else float, bounds)
            return _range(key, low, high, log=_flag(where, param, "log_scale"))
        case "choice":
            values = param.get("values")
            if not isinstance(values, list) or not values:
                raise InputError(f"{where}: write values: [a, b]")
            found = _choice(key, values)
            return found | ({"ordered": _flag(where, param, "is_ordered")} if "is_ordered" in param else {})
        case "fixed":
            return {"value": param.get("value")}
    raise InputError(f"{where}: type is {param['type']!r}; write range, choice or fixed")


def _flag(where: str, param: Mapping[str, Any], name: str) -> bool:
    """Return a switch of Ax's, off where it is left out; the text `false` would count as true."""
    value = param.get(name) or False
    if not isinstance(value, bool):
        raise InputError(f"{where}: {name} is {value!r}; write true or false")
    return value
