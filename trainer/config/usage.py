"""Output of `python -m trainer --help` and `--cfg job`. Used by `__main__`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf

from trainer.config.compose import compose_tree, groups, keys, nearest
from trainer.config.run import Config
from trainer.errors import ConfigError

_HEAD = """\
usage: python -m trainer [OVERRIDE …] run_dir=DIR
       python -m trainer [OVERRIDE …] --cfg job     print the composed configuration, compute nothing
       python -m trainer [OVERRIDE …] --preflight   print what the run would take, compute nothing
       python -m trainer --help KEY                 all that is known of a key, or of those below it
       python -m trainer --help all                 every key in a line

Trains a ternary student in two stages and writes DIR/result.json and DIR/metrics.jsonl.
An override is key=value, or group=option. Exit status: 0 finished; 2 configuration refused before any
compute; 70 diverged; 75 stopped by SIGTERM or SIGINT; 1 anything else.
"""
CFG = "--cfg"
_DAILY = (
    "run_dir", "seed", "device.type", "data.sequence_length",
    "stage1_9.max_steps", "stage1_9.batch_size", "stage1_9.optimizer.lr", "stage1_9.lm_loss_weight",
    "stage2.max_steps", "stage2.batch_size", "stage2.optimizer.lr", "stage2.optimizer.weight_decay",
    "stage2.schedule.warmup_steps", "stage2.schedule.decay_fraction", "stage2.lambda_warmup.warmup_steps",
    "stage3.max_steps", "recovery.max_steps", "quant.group_size", "eval.batches", "checkpoint.every_seconds",
)  # fmt: skip
"""What `--help` shows: the keys that are set in most runs."""

ALL = "all"
_PER_STAGE = "the optimizer is chosen per stage: optimizer@stage2.optimizer=adamw"
_WIDTH = 110
_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.+)")  # of `Args:` in a docstring
_COLUMN = 46
"""Where meanings begin, unless key and default are longer."""

_GROUPS = {"data": "data", "model": "model", "stage3.teacher": "stage3/teacher"}
"""Sections whose keys depend on a group's option."""


def usage(name: str | None = None) -> str:
    """Return the help: usage, groups with their options, and keys with their defaults and meanings.

    Args:
        name: a key, or the beginning or the end of several: then these alone, with all that is known of them;
            `all`: every key in a line; None: those that are set in most runs.

    Raises:
        ConfigError: there is no such key.
    """
    if name not in (None, ALL):
        return _details(name)
    options = "".join(f"  {name}: {', '.join(choices)}\n" for name, choices in groups().items())
    every = keys()
    sections = groupby(every.items(), key=lambda item: item[0].partition(".")[0])
    lines = "\n".join("".join(_line(key, value) for key, value in each) for _, each in sections)
    daily = "".join(_line(key, every[key]) for key in _DAILY)
    if name == ALL:
        return f"{_HEAD}\ngroups ({_PER_STAGE})\n{options}\nkeys\n{lines}"
    rest = f"{len(every) - len(_DAILY)} more: --help all; of a stage or a group: --help stage2, --help data\n"
    return f"{_HEAD}\ngroups ({_PER_STAGE})\n{options}\nkeys that are set in most runs\n{daily}\n{rest}"


def _line(key: str, value: object) -> str:
    written = f"  {key}={_value(value)}"
    found = meanings(key)
    text = found[0][1] if found else ""
    room = max(20, _WIDTH - max(_COLUMN, len(written) + 2))
    return f"{written:<{_COLUMN - 2}}  {textwrap.shorten(text, room, placeholder=' …')}".rstrip() + "\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyHelp:
    """What is known of a key.

    Args:
        name: dotted.
        default: as it is written in an override.
        group: whose option decides which keys there are beside it, or None.
        options: of that group, the ones that have this key, as they are written: `data=text`.
        values: that it takes, in words; "" where nothing says it.
        meanings: what each dataclass with the key says of it.
    """

    name: str
    default: str
    group: str | None
    options: tuple[str, ...]
    values: str
    meanings: tuple[str, ...]


def key_help() -> list[KeyHelp]:
    """Return what is known of every key, those that only some options of a group have included."""
    every: dict[str, Any] = {}
    options: dict[str, list[str]] = {}
    alternatives = [f"{group}={option}" for group in _GROUPS.values() for option in groups()[group]]
    for override in (None, *alternatives):
        for key, value in keys([] if override is None else [override]).items():
            every.setdefault(key, value)
            group = _GROUPS.get(key.rpartition(".")[0])
            if override is not None and group == override.partition("=")[0]:
                options.setdefault(key, []).append(override)
    found = []
    for key, value in every.items():
        section, _, last = key.rpartition(".")
        owners = meanings(key)
        found.append(
            KeyHelp(
                name=key,
                default=_value(value),
                group=_GROUPS.get(section),
                options=tuple(options.get(key, ())),
                values=_describe_type(annotation(owners[0][0], last)) if owners else "",
                meanings=tuple(dict.fromkeys(text for _, text in owners)),
            )
        )
    return found


def _details(name: str) -> str:
    every = key_help()
    name = name.replace("/", ".")  # as Hydra writes groups
    found = [key for key in every if key.name == name or key.name.startswith(f"{name}.")]
    found = found or [key for key in every if key.name.endswith(f".{name}")]
    found = found or [key for key in every if f".{name}." in key.name]
    if not found:
        raise ConfigError(f"there is no such key{nearest(name, [key.name for key in every])}", key=name)
    lines = []
    group = None
    for key in sorted(
        found, key=lambda key: (key.group or "", len(key.options) < _count(key.group), key.options)
    ):
        if key.group is not None and (key.group, key.options) != group:
            group = (key.group, key.options)
            is_common = len(key.options) == _count(key.group)
            lines += [f"with {f'any {key.group}' if is_common else ' or '.join(key.options)}:", ""]
        lines.append(f"{key.name}={key.default}")
        if key.meanings:
            lines.append(f"  {key.values}")
        lines += [
            textwrap.fill(text, _WIDTH - 10, initial_indent="  ", subsequent_indent="  ")
            for text in key.meanings
        ]
        lines.append("")
    return "\n".join(lines)


def _count(group: str | None) -> int:
    return 0 if group is None else len(groups()[group])


def _describe_type(kind: Any) -> str:
    """Return which values a field takes, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is NoneType:
        return "null"
    if origin is Annotated:
        signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
        bounds = [
            f"{sign} {getattr(each, name):g}"
            for info in inner[1:]
            for each in (info, *getattr(info, "metadata", ()))
            for name, sign in signs.items()
            if hasattr(each, name)
        ]
        return f"{_describe_type(inner[0])}{' ' if bounds else ''}{', '.join(bounds)}"
    if origin is Literal:
        return " | ".join(map(_value, inner))
    if origin in (Union, UnionType):
        return " | ".join(map(_describe_type, inner))
    if origin is tuple:
        return f"a list of: {_describe_type(inner[0])}"
    return {bool: "true | false", int: "an integer", float: "a number", str: "text"}.get(kind, "")


def composed_yaml(arguments: Sequence[str]) -> str:
    """Return the configuration that the overrides around `--cfg job` compose, as YAML. Raises ConfigError."""
    # `--cfg=job` is read as `--cfg job`.
    pairs = [each.split("=", 1) if each.startswith(f"{CFG}=") else [each] for each in arguments]
    words = [word for pair in pairs for word in pair]
    position = words.index(CFG)
    if words[position + 1 : position + 2] != ["job"]:
        raise ConfigError("--cfg takes one word here: --cfg job")
    return OmegaConf.to_yaml(compose_tree([*words[:position], *words[position + 2 :]]))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else "(required)" if value == "???" else str(value)


def meanings(key: str) -> list[tuple[type, str]]:
    """Return the dataclasses that have the key, each with what its docstring says of it; [] if none has it.

    Args:
        key: dotted, such as `stage2.optimizer.lr`.
    """
    classes: list[type] = [Config]
    *parents, name = key.split(".")
    for part in parents:
        classes = list(dict.fromkeys(inner for each in classes for inner in _inside(each, part)))
    return [(each, _arguments(each)[name]) for each in classes if name in _arguments(each)]


def annotation(owner: type, name: str) -> Any:
    """Return the type of a field, with its bounds."""
    return _hints(owner)[name]


def _inside(owner: type, name: str) -> Iterator[type]:
    """Yield the dataclasses that a field may hold."""
    waiting = [_hints(owner).get(name)]
    while waiting:
        each = waiting.pop(0)
        if dataclasses.is_dataclass(each) and isinstance(each, type):
            yield each
        waiting = [*get_args(each), *waiting]


@cache
def _hints(owner: type) -> dict[str, Any]:
    return get_type_hints(owner, include_extras=True)


@cache
def _arguments(owner: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass and of its bases say of its fields."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        _, _, section = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("\nArgs:\n")
        names: list[str] = []
        for line in section.splitlines():
            if (entry := _ENTRY.fullmatch(line)) is not None:
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, entry[2])
            elif line.startswith("     "):
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            else:
                names = []
    return found
