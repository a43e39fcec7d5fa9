"""Every key of a configuration with other values that it may take, generated from the schema.

Keys of which none is expected to matter can be flipped together, in one run in place of many: `dealt` and
`together` say which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from trainer.api import check
from trainer.config import Config
from trainer.config.run import leaves

Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Flip:
    """A key, and the overrides that give it another value: one group for each such value.

    There is none where the schema does not say which texts or lists a key may be.
    """

    key: str
    overrides: tuple[Overrides, ...]


def flips(base: Sequence[str], by_hand: Mapping[str, Sequence[Overrides]]) -> Iterator[Flip]:
    """Yield a flip of each key of the configuration.

    Args:
        base: overrides of the configuration.
        by_hand: of keys whose values the schema does not say, or only with others.
    """
    config = check(base)
    for key, value in leaves(asdict(config)):
        if key in by_hand:
            yield Flip(key, tuple(by_hand[key]))
        else:
            # True is no 1 here.
            values = [each for each in _values(_hint(config, key), value) if repr(each) != repr(value)]
            yield Flip(key, tuple((f"{key}={_text(each)}",) for each in values))


def dealt(flips: Sequence[Flip], hands: int) -> list[list[Flip]]:
    """Return the flips in so many hands: those of one section in different ones, where there are enough."""
    ordered = sorted(flips, key=lambda flip: flip.key)
    return [ordered[hand::hands] for hand in range(hands)]


def together(chosen: Sequence[Overrides], accepted: Callable[[Overrides], bool]) -> Iterator[list[Overrides]]:
    """Yield the groups of overrides that can be tried in one run: as large as those `accepted`, of distinct keys."""
    joined = tuple(override for overrides in chosen for override in overrides)
    names = [override.partition("=")[0] for override in joined]
    if len(chosen) == 1 or (len(set(names)) == len(names) and accepted(joined)):
        yield list(chosen)
    elif chosen:
        half = len(chosen) // 2
        yield from together(chosen[:half], accepted)
        yield from together(chosen[half:], accepted)


def _hint(config: Config, key: str) -> Any:
    *parents, name = key.split(".")
    node: Any = config
    for parent in parents:
        node = getattr(node, parent)
    return get_type_hints(type(node))[name]


def _values(hint: Any, value: Any) -> list[Any]:
    """Return values of a type: all that it lists, or a number near the present one."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return [each for member in get_args(hint) for each in _values(member, value)]
    if hint is bool:
        return [True, False]
    if hint is int:
        return [2 if value is None else value + 1]
    if hint is float:
        return [value / 2 if value else 0.5]
    return []


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
