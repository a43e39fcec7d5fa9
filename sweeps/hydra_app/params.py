"""`hydra.sweeper.params` and the overrides of the command line, as `parameters:` of a search space file.

`sweeping` calls `read`; `space_file` then judges the result as it does a file's. Three ways of saying a
parameter are understood, because people know them: Hydra's overrides (as for the Optuna sweeper), Ax's
dictionaries (as for the Ax sweeper), and those of a search space file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from sweeps.errors import InputError
from sweeps.space.definition import Value
from sweeps.space.overrides import to_overrides

AX_KEYS = {"type", "bounds", "values", "value", "log_scale", "value_type", "is_ordered"}


def read(
    params: Mapping[str, Any], arguments: Sequence[str], config_loader: ConfigLoader | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What to search, by key, and the overrides that are the same in all trials.

    Args:
        params: `hydra.sweeper.params`.
        arguments: overrides of the command line; they go before `params` of the same key.
        config_loader: Hydra's, which knows what `glob` may find.

    Raises:
        InputError: a parameter cannot be searched.
    """
    searched: dict[str, dict[str, Any]] = {}
    fixed: dict[str, str] = {}
    for key, told in params.items():
        if isinstance(told, Mapping):
            searched[key] = _from_ax(key, told) if "type" in told else dict(told)
        elif isinstance(told, list):
            searched[key] = _choice(key, told)
        elif isinstance(told, str):
            _sort(_parse([f"{key}={told}"], config_loader)[0], searched, fixed)
        elif told is None:
            raise InputError(
                f"hydra.sweeper.params.{key}: says nothing; write interval(…), choice(…) or a value"
            )
        else:
            fixed[key] = to_overrides({key: told})[0]
    for override in _parse(arguments, config_loader):
        _sort(override, searched, fixed)
    return searched, list(fixed.values())


def _parse(lines: Sequence[str], config_loader: ConfigLoader | None) -> list[Override]:
    try:
        return list(OverridesParser.create(config_loader=config_loader).parse_overrides(list(lines)))
    except HydraException as error:
        raise InputError(" ".join(str(error).split())) from None


def _sort(override: Override, searched: dict[str, dict[str, Any]], fixed: dict[str, str]) -> None:
    """The override to its kind; a later one of the same key replaces an earlier one of either kind."""
    key = override.get_key_element()
    bare = key.lstrip("+~")
    if not override.is_sweep_override():
        searched.pop(bare, None)
        fixed[bare] = override.input_line or ""
        return
    if key != bare:
        raise InputError(
            f"{override.input_line}: only keys that the configuration has can be searched; give {bare} a "
            "value there"
        )
    fixed.pop(key, None)
    searched[key] = _searched(key, override)


def _searched(key: str, override: Override) -> dict[str, Any]:
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
    return _choice(key, [Override._convert_value(item) for item in override.sweep_iterator()])


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
    """Numbers in order are neighbours to the surrogate; anything else is not."""
    for value in values:
        if not isinstance(value, bool | int | float | str):
            told = "null" if value is None else "a list or a mapping"
            raise InputError(f"{key}: {told} cannot be a choice; write a config group, or name the cases")
    if len(values) == 1:
        return {"value": values[0]}
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return {"values": list(values)}
    if any(isinstance(value, float) for value in numbers):
        numbers = [float(value) for value in numbers]
    return {"values": numbers, "ordered": True} if numbers == sorted(numbers) else {"values": numbers}


def _from_ax(key: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Ax's own words for a parameter."""
    where = f"hydra.sweeper.params.{key}"
    if unknown := set(told) - AX_KEYS:
        raise InputError(f"{where}: unknown key {sorted(map(str, unknown))[0]!r} beside type:")
    match told["type"]:
        case "range":
            bounds = told.get("bounds")
            if not isinstance(bounds, list) or len(bounds) != 2:
                raise InputError(f"{where}: write bounds: [low, high]")
            low, high = bounds
            if told.get("value_type") == "float":
                low, high = float(low), float(high)
            return _range(key, low, high, log=bool(told.get("log_scale")))
        case "choice":
            values: list[Value] = list(told.get("values") or ())
            found = _choice(key, values)
            return found | ({"ordered": bool(told["is_ordered"])} if "is_ordered" in told else {})
        case "fixed":
            return {"value": told.get("value")}
    raise InputError(f"{where}: type is {told['type']!r}; write range, choice or fixed")
