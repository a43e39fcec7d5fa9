"""Check of a dataclass that was made from JSON against its own annotations, nested ones included.

pydantic does the same, but to import it and to build the schemas of the records takes 0.14 s, a third of what
all imports of `sweep status` do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from itertools import chain
from math import isfinite
from operator import itemgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Check = Callable[[Sequence[Any]], bool]

_WORDS = {str: "a text", bool: "true or false", int: "an integer", float: "a finite number", NoneType: "null"}
_NUMBERS = frozenset((int, float))
_TYPES: Mapping[Any, Iterable[type]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: _NUMBERS,
    NoneType: (NoneType,),
}
"""Types of JSON's values in Python by annotation: an integer is a `float`, too, and a boolean no number."""
_MAX = sys.float_info.max


def problem(record: Any) -> str:
    """Return the first field of the dataclass that is not of its type, as one clause, or "".

    Lists have been made tuples. Numbers are finite, and none is beyond what a float can hold.
    """
    kind: Any = type(record)
    return "" if _check(kind)([record]) else _explain(record, kind, "")


def fits(records: Sequence[Any], kind: Any) -> bool:
    """Return whether `problem` finds nothing in any of many dataclasses of one kind."""
    return _check(kind)(records)


def objects(kind: Callable[..., T], document: Any) -> tuple[T, ...]:
    """Return what `kind` makes of each object of a list. Raises TypeError."""
    if not isinstance(document, list | tuple):
        raise TypeError(f"{document!r:.80} is not a list")  # a text would be taken apart
    return tuple([make(kind, entry) for entry in document])


def make(kind: Callable[..., T], values: Any) -> T:
    """Return `kind(**values)`; a frozen dataclass takes a seventh of the time that its own `__init__` does.

    Args:
        values: fields of the dataclass, or arguments of the function, by name.

    Raises:
        TypeError: as `kind` does.
    """
    absent = _absent(kind, tuple(values)) if type(values) is dict else None
    if absent is None:
        return kind(**values)
    made: T = object.__new__(kind)  # type: ignore[arg-type]  # a class, as `_absent` has seen
    own = vars(made)
    own.update(values)
    own.update(absent)
    return made


@lru_cache(maxsize=256)
def _absent(kind: Any, names: tuple[str, ...]) -> Mapping[str, Any] | None:
    """Return the defaults of a dataclass's fields that are not among `names`.

    None if `__init__` does more than to set fields, or refuses these.
    """
    if not _is_dataclass(kind) or hasattr(kind, "__post_init__"):
        return None
    defaults: dict[str, Any] = {
        each.name: MappingProxyType({}) if each.default_factory is dict else each.default
        for each in fields(kind)
    }
    absent = {name: value for name, value in defaults.items() if name not in names}
    return None if MISSING in absent.values() or not defaults.keys() >= set(names) else absent


def frozen(document: Any) -> Any:
    """Return a JSON value with tuples for all lists and read-only mappings for all objects in it."""
    if isinstance(document, list | tuple):
        return tuple(map(frozen, document))
    if isinstance(document, dict):
        return MappingProxyType({name: frozen(value) for name, value in document.items()})
    return document


@cache
def _check(kind: Any) -> _Check:
    """Return whether all of some values are of the annotation, as a function.

    It takes many values at once, the losses of a curve for example, because a sweep has 10,000 records.
    """
    arguments = get_args(kind)
    origin = get_origin(kind)
    if (types := _types(kind)) is not None:
        return _of_types(types)
    if origin is Literal:
        choices = frozenset(arguments)
        return lambda values: {str}.issuperset(map(type, values)) and choices.issuperset(values)
    if origin in (Union, UnionType):
        of_simple = _of_types(frozenset(t for each in arguments for t in _TYPES.get(each, ())))
        options = [_check(each) for each in arguments if each not in _TYPES and not _is_recursive(each)]
        if any(map(_is_recursive, arguments)):
            options.append(lambda values: all(type(value) is tuple and of_union(value) for value in values))

        def of_union(values: Sequence[Any]) -> bool:
            if of_simple(values):
                return True
            return all(of_simple([v]) or any(option([v]) for option in options) for v in values)

        return of_union
    if origin is tuple:
        is_list = arguments[-1] is Ellipsis
        of_each = _check(arguments[0])
        columns = tuple(map(_check, () if is_list else arguments))

        def of_tuples(values: Sequence[Any]) -> bool:
            if not {tuple}.issuperset(map(type, values)):
                return False
            if is_list:
                return of_each(list(chain.from_iterable(values)))
            if not {len(columns)}.issuperset(map(len, values)):
                return False
            return all(
                check(column) for check, column in zip(columns, zip(*values, strict=True), strict=False)
            )

        return of_tuples
    if _is_dataclass(kind):
        annotations = _annotations(kind)
        simple = tuple((name, types) for name, each in annotations.items() if (types := _types(each)))
        others = tuple((name, _check(each)) for name, each in annotations.items() if not _types(each))

        def of_dataclass(values: Sequence[Any]) -> bool:
            if len(values) > 1:  # by columns, which costs a third for many
                if not all(isinstance(record, kind) for record in values):
                    return False
                rows = list(map(vars, values))
                checks = {name: _check(each) for name, each in annotations.items()}
                return all(check(list(map(itemgetter(name), rows))) for name, check in checks.items())
            for record in values:
                if not isinstance(record, kind):
                    return False
                row = vars(record)
                for name, types in simple:  # as `_of_types` does, for a single value
                    value = row[name]
                    if type(value) not in types or (type(value) in _NUMBERS and not -_MAX <= value <= _MAX):
                        return False
                for name, check in others:
                    if not check((row[name],)):
                        return False
            return True

        return of_dataclass
    if origin is Mapping:
        of_value = _check(arguments[1])
        return lambda values: (
            {dict, MappingProxyType}.issuperset(map(type, values))
            and of_value([inner for value in values for inner in value.values()])
        )
    raise TypeError(f"no check for {kind}")


def _is_recursive(kind: Any) -> bool:
    """Return whether it is a list of the union that it stands in: `Value = … | tuple["Value", ...]`."""
    return get_origin(kind) is tuple and isinstance(get_args(kind)[0], ForwardRef | str)


@cache
def _types(kind: Any) -> frozenset[type] | None:
    """Return the types of Python that values of an annotation have; None if types do not decide."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if not all(option in _TYPES for option in options):
        return None
    return frozenset(each for option in options for each in _TYPES[option])


def _of_types(types: frozenset[type]) -> _Check:
    if not types & _NUMBERS:
        return lambda values: types.issuperset(map(type, values))

    def check(values: Sequence[Any]) -> bool:
        if not types.issuperset(map(type, values)):
            return False
        if types - _NUMBERS:
            values = [value for value in values if type(value) in _NUMBERS]
        try:
            return all(map(isfinite, values))
        except OverflowError:  # an integer that no float can hold
            return False

    return check


def _is_dataclass(kind: Any) -> bool:
    return is_dataclass(kind)  # which narrows Any to what mypy takes for no type


@cache
def _annotations(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _explain(value: Any, kind: Any, where: str) -> str:
    """Return what of a value that is not of its annotation is wrong: `history[0].worker is 1, not a text`."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    parts: list[tuple[str, Any, Any]] = []
    for option in options:
        if _is_dataclass(option) and isinstance(value, option):
            kinds = _annotations(option).items()
            parts += ((f"{where}.{name}", getattr(value, name), each) for name, each in kinds)
        elif isinstance(value, dict | MappingProxyType) and get_origin(option) is Mapping:
            parts += ((f"{where}.{name}", each, get_args(option)[1]) for name, each in value.items())
        elif isinstance(value, tuple) and get_origin(option) is tuple:
            each_kind = (kind, ...) if _is_recursive(option) else get_args(option)
            each_kind = each_kind[:1] * len(value) if each_kind[-1] is Ellipsis else each_kind
            if len(each_kind) == len(value):
                numbered = enumerate(zip(value, each_kind, strict=True))
                parts += ((f"{where}[{number}]", each, of) for number, (each, of) in numbered)
    for place, part, of in parts:
        if not _check(of)([part]):
            return _explain(part, of, place)
    return f"{where.removeprefix('.')} is {value!r:.80}, not {_type_words(kind)}"


def _type_words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        shown = (each for each in arguments if not (each is int and float in arguments))
        return " or ".join(dict.fromkeys(map(_type_words, shown)))
    if origin is tuple:
        return "a list" if arguments[-1] is Ellipsis else f"a list of {len(arguments)}"
    return "an object"
