"""Composition of Hydra overrides into a `Config`. Called by `api.check` and `__main__`.

Hydra is used through its compose API: nothing changes the working directory and no `outputs/` appears.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import re
import shlex
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, cast

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from sweeps.text.shorten import one_line
from trainer.config import Config, FieldError
from trainer.config.fields import FieldErrors
from trainer.config.run import is_below, leaves
from trainer.errors import ConfigError, joined

_MODULE = "trainer.conf"
_PRIMARY = "config"
_HYDRA = threading.Lock()  # its state is the process's, and the workers of one may be threads
_OPTIMIZER = "optimizer"  # the one group whose package is written behind an @
_VARIED = ("model", "data", "stage3/teacher")  # groups whose options have keys of their own
# pydantic names the union's member in an error's location; users do not
_UNIONS = {
    ("model",): ("tiny", "ladder", "hf"),
    ("data",): ("stdlib", "text", "parquet", "hub"),
    ("stage3", "teacher"): ("in_process", "http", "cached"),
}
# Hydra raises ValueError for a group that is set to a number.
_REFUSED = (HydraException, OmegaConfBaseException, ValueError)
_SECRET = "api_key_env"  # noqa: S105 - the key under which a person may have put a secret by mistake


def compose_tree(overrides: Sequence[str]) -> DictConfig:
    """Return the validated configuration as Hydra holds it. Raises ConfigError, with a line per fault."""
    return _compose(overrides)[0]


def compose_config(overrides: Sequence[str]) -> Config:
    """Return the validated configuration. Raises ConfigError, with a line per fault."""
    return _config(tuple(overrides))


@functools.lru_cache(maxsize=64)
def _config(overrides: tuple[str, ...]) -> Config:
    """Return the frozen configuration, cached: a run composes the same overrides several times."""
    try:
        values = _plain_values(parse_overrides(overrides))
        # What is missing, and interpolations of `++key=${other}`, which came in with the files' values.
        unresolved = [mark for mark in ("???", "${") if mark in repr(values)]
        if values is not None and not unresolved:
            return _read(values)
    except (ConfigError, ValidationError):
        pass  # worded below, with all else that is wrong
    return _compose(overrides)[1]


def _compose(overrides: Sequence[str]) -> tuple[DictConfig, Config]:
    """Return Hydra's tree and the configuration. Raises ConfigError for all that is wrong."""
    found: list[ConfigError] = []
    parsed = []
    for text in overrides:
        try:
            parsed.append(_parse_one(text))
        except ConfigError as error:
            found.append(error)
    try:
        tree = compose_cached(parsed)
    except _REFUSED:
        faults, rest = _diagnose(parsed)
        found += faults
        try:
            # Without a fault to leave out, Hydra's own error is the best there is.
            tree = compose_cached(rest) if faults else compose_files(tuple(map(_line, parsed)))
        except _REFUSED as error:
            raise joined([*found, ConfigError(one_line(error))]) from None
    # What an unknown key would have set may be suggested for it, and is then not asked for as well.
    missing = [key for key, value in leaves(OmegaConf.to_container(tree)) if value == "???"]
    suggested = " ".join(each.problem for each in found)
    found += [
        ConfigError(f"needs a value; write {key}=VALUE", key=key)
        for key in missing
        if repr(key) not in suggested
    ]
    try:
        values = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        problem = str(error).partition("\n")[0]  # key and type stand on lines after it
        if unset := re.search(r"Environment variable '(\w+)' not found", problem):
            problem = f"the environment variable {unset[1]} is not set"
        raise joined([*found, ConfigError(problem, key=error.full_key or "")]) from None
    try:
        config = _read(values)
    except ValidationError as error:
        # With a default in place of a value that was refused, fields may contradict each other for no reason.
        refused = _refusals(error, contradictions=not found)
        found += [each for each in refused if not is_below(each.key, missing)]
    if found:
        raise joined(found)
    return tree, config


def validate(document: Any) -> Config:
    """Return a `Config` from plain values, strictly: "3" is not a number, 3.0 not a count of steps.

    Raises:
        ConfigError: with a line for each value that is refused.
    """
    try:
        return _read(document)
    except ValidationError as error:
        raise joined(list(_refusals(error, contradictions=True))) from None


def _read(document: Any) -> Config:
    return TypeAdapter(Config).validate_json(json.dumps(document), strict=True)


def keys(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return every key of the composed configuration with its value, "???" where one is required."""
    parsed = parse_overrides(overrides)
    values = _plain_values(parsed)
    return dict(leaves(OmegaConf.to_container(compose_cached(parsed)) if values is None else values))


@functools.cache
def groups() -> dict[str, list[str]]:
    """Return every configuration group with its options."""
    with _HYDRA, initialize_config_module(_MODULE, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        names = [name for name in loader.list_groups("") if not name.startswith(("hydra", "_"))]
        names += [f"{name}/{inner}" for name in names for inner in loader.list_groups(name)]
        return {name: loader.get_group_options(name, ObjectType.CONFIG) for name in sorted(names)}


def compose_cached(overrides: Sequence[Override]) -> DictConfig:
    """Return the tree that Hydra composes, without reading its thirty files each time.

    `_plain_values` cannot write an interpolation, `data.path=${oc.env:TEXT}` for example, which all
    candidates of a sweep may have. Hydra takes 140 ms for each of them, and a copy of its tree 12 ms.
    """
    lines, values = _split(overrides)
    tree = copy.deepcopy(compose_files(lines))
    for override in values:
        OmegaConf.update(tree, override.key_or_group, override.value(), merge=True)
    return tree


def _plain_values(overrides: Sequence[Override]) -> dict[str, Any] | None:
    """Return the values that Hydra composes, or None where it takes Hydra to find them.

    A sweep composes every candidate, and most differ in numbers and words of keys that exist. The tree of a
    choice of groups is cached, and these are written into a copy of its values, which takes less than 1 ms.
    """
    lines, changes = _split(overrides)
    try:
        values = _copy_mappings(_values_of_files(lines))
    except _REFUSED:
        return None
    for override in changes:
        *parents, name = override.key_or_group.split(".")
        node: Any = values
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        value = override.value()
        plain = all(
            isinstance(each, int | float | str | None) and "${" not in str(each)
            for each in (value if isinstance(value, list) else [value])
        )
        if not (plain and isinstance(node, dict) and name in node and not isinstance(node[name], dict)):
            return None
        node[name] = value
    return values


def _copy_mappings(values: dict[str, Any]) -> dict[str, Any]:
    """Copy all mappings; leaves and lists are shared, as callers only replace them."""
    return {key: _copy_mappings(each) if isinstance(each, dict) else each for key, each in values.items()}


@functools.lru_cache(maxsize=64)
def _values_of_files(choices: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of `compose_files`. Cached: callers must not change them."""
    return cast(dict[str, Any], OmegaConf.to_container(compose_files(choices)))


def _split(overrides: Sequence[Override]) -> tuple[tuple[str, ...], list[Override]]:
    """Return the overrides that only Hydra can apply, as lines, and those that set values after them."""
    # Of two overrides of a key the later one holds (`seed=2 ++seed=1`: 1), so what stands before a key that
    # is added or removed goes to Hydra as well.
    first = max(
        (at for at, each in enumerate(overrides, 1) if each.type is not OverrideType.CHANGE), default=0
    )
    values = [each for each in overrides[first:] if _is_value(each)]
    lines = [*overrides[:first], *(each for each in overrides[first:] if not _is_value(each))]
    return tuple(map(_line, lines)), values


@functools.lru_cache(maxsize=64)
def compose_files(overrides: tuple[str, ...]) -> DictConfig:
    """Return what Hydra itself composes from its files. Cached: callers must not change it."""
    with _HYDRA, initialize_config_module(_MODULE, version_base="1.3"):
        return compose(_PRIMARY, overrides=list(overrides))


def _is_value(override: Override) -> bool:
    """Return whether the override changes an existing key and chooses no file."""
    name = override.key_or_group
    plain = override.type is OverrideType.CHANGE and override.package is None
    return plain and "/" not in name and name not in _group_names()


@functools.cache
def _group_names() -> frozenset[str]:
    """Return the groups of the first level; nested ones have a slash."""
    return frozenset(entry.name for entry in files(_MODULE).iterdir() if entry.is_dir())


def _line(override: Override) -> str:
    return cast(str, override.input_line)


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides as Hydra does. Raises ConfigError."""
    return [_parse_one(text) for text in overrides]


@functools.lru_cache(maxsize=1024)  # the candidates of a sweep share most of their overrides
def _parse_one(text: str) -> Override:
    try:
        override = _parser().parse_override(text)
    except HydraException as error:
        raise ConfigError(f"cannot read the override {text!r}: {one_line(error)}{_in_quotes(text)}") from None
    _refuse_misleading(override)
    if override.is_sweep_override():
        raise ConfigError(f"one run takes one value{_in_quotes(text)}", key=override.get_key_element())
    return override


def _in_quotes(text: str) -> str:
    """Return the end of a message: how to write the value so that a shell and Hydra read it as text."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[+~\w@./-]+", key) or "=" in value.partition(" ")[2]:
        return ""
    if value.startswith("[") and value.endswith("]"):
        if "[" in value[1:]:
            return ""
        texts = ",".join(_double(each.strip()) for each in value[1:-1].split(","))
        return f"; if these are texts, write {shlex.quote(f'{key}=[{texts}]')}"
    return f"; if that is text, write {shlex.quote(f'{key}={_double(value)}')}"


def _double(value: str) -> str:
    """Return a text in double quotes of Hydra's grammar."""
    bare = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    # Only backslashes before quotes, also before the closing one, are doubled.
    escaped = re.sub(r'(\\*)"', lambda found: found[1] * 2 + '\\"', bare)
    last = len(escaped) - len(escaped.rstrip("\\"))
    return '"' + escaped + "\\" * last + '"'


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def _refuse_misleading(override: Override) -> None:
    """Refuse what Hydra accepts and ignores, or refuses with misleading advice."""
    name = override.key_or_group
    if name.split("/")[0].split(".")[0] == "hydra":
        raise ConfigError("settings of Hydra itself have no effect here; leave it out", key=name)
    if override.package is not None or not isinstance(override.value(), str):
        return
    if name == _OPTIMIZER:
        choice = override.value()
        raise ConfigError(
            f"it is chosen per stage; write optimizer@stage2.optimizer={choice} "
            f"(or stage1_9 for stage2, or both)",
            key=name,
        )
    if name.endswith(f".{_OPTIMIZER}"):
        raise ConfigError(f"write optimizer@{name}={override.value()}", key=name)


def _diagnose(overrides: Sequence[Override]) -> tuple[list[ConfigError], list[Override]]:
    """Return helpful errors in place of Hydra's "Could not override", and the overrides without faults.

    What is below a group without a valid choice is left out of both: its keys depend on the choice.
    """
    options, homes = groups(), _homes()
    chosen = [
        _line(override)
        for override in overrides
        if override.type is OverrideType.CHANGE
        and override.package is None
        and override.value() in options.get(override.key_or_group, ())
    ]
    present = _nodes(keys(chosen))
    known = set.union(present, *homes.values())
    faults: list[ConfigError] = []
    undecided: set[str] = set()
    for override in overrides:
        name, choice = override.key_or_group, override.value()
        if name not in options or choice is None:
            continue
        if choice not in options[name]:
            problem = f"{choice!r} is no choice{nearest(str(choice), options[name])}"
        elif (override.is_add() or override.is_force_add()) and override.package is None:
            problem = f"there is one already; write {name}={choice}"
        else:
            continue
        faults.append(ConfigError(problem, key=name))
        undecided.add(_node(override))
    rest = []
    for override in overrides:
        name = override.key_or_group
        if is_below(_node(override), undecided):
            continue
        if name in options or override.is_add() or override.package is not None or name in present:
            rest.append(override)
            continue
        above = _nodes([name])
        if belongs := [home for home, own in homes.items() if above & (own - present)]:
            problem = f"there is no such key here; it belongs to {' or '.join(belongs)}"
        else:
            problem = f"there is no such key{nearest_key(name, [*known, *options])}"
        faults.append(ConfigError(problem, key=name))
    return faults, rest


def _node(override: Override) -> str:
    """Return the node that an override of a key or a group sets."""
    return (override.package or override.key_or_group).replace("/", ".")


@functools.cache
def _homes() -> dict[str, set[str]]:
    """Return the first-level keys of each choice of a group whose options have keys of their own."""
    options = groups()
    return {f"{group}={choice}": _own_keys(group, choice) for group in _VARIED for choice in options[group]}


def _own_keys(group: str, choice: str) -> set[str]:
    """Return the keys of one choice, read from its file: composing all choices takes seconds."""
    text = files(_MODULE).joinpath(group, f"{choice}.yaml").read_text(encoding="utf-8")
    tree = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(text)))
    builds_on = [name for name in tree.pop("defaults", []) if isinstance(name, str) and name != "_self_"]
    own = tree.get(group, {}) if "@package _global_" in text else tree
    package = group.replace("/", ".")
    return {f"{package}.{key}" for key in own}.union(*(_own_keys(group, name) for name in builds_on))


def _nodes(leaves: Iterable[str]) -> set[str]:
    """Return dotted keys with all nodes above them."""
    found: set[str] = set()
    for key in leaves:
        parts = key.split(".")
        found.update(".".join(parts[: depth + 1]) for depth in range(len(parts)))
    return found


def _refusals(error: ValidationError, *, contradictions: bool) -> Iterator[ConfigError]:
    """Yield an error for each refused value, and with `contradictions` for those between fields."""
    errors = error.errors()
    for each in errors:
        place = each["loc"]
        if any(other["loc"] != place == other["loc"][: len(place)] for other in errors):
            continue  # a list is too short without the items that are refused
        path = [str(part) for part in place]
        for union, members in _UNIONS.items():
            depth = len(union)
            if tuple(path[:depth]) == union and path[depth : depth + 1] and path[depth] in members:
                del path[depth]
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, FieldErrors):
            if contradictions:
                yield from (ConfigError(one.problem, key=".".join([*path, one.key])) for one in cause.errors)
        else:
            yield _refusal(each, path, cause)


def _refusal(refused: ErrorDetails, path: list[str], cause: object) -> ConfigError:
    """Return the error for one value, in the words of its validator or else of pydantic."""
    if isinstance(cause, FieldError):
        return ConfigError(cause.problem, key=".".join(path))
    silent = refused["type"] in ("missing", "unexpected_keyword_argument") or path[-1:] == [_SECRET]
    got = "" if silent else f" (got {refused['input']!r})"
    if refused["type"] == "union_tag_invalid":
        context = refused["ctx"]
        key = ".".join([*path, context["discriminator"].strip("'")])
        return ConfigError(f"{context['tag']!r} is unknown; there are: {context['expected_tags']}", key=key)
    if refused["type"] == "unexpected_keyword_argument":
        return ConfigError("there is no such key", key=".".join(path))
    if refused["type"] == "too_short":
        return ConfigError(f"needs at least {refused['ctx']['min_length']}{got}", key=".".join(path))
    return ConfigError(refused["msg"][0].lower() + refused["msg"][1:] + got, key=".".join(path))


def nearest(name: str, valid: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the most similar one, or where all of them stand."""
    few = len(valid) <= 9
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    # Three letters are alike by chance: who writes 'tpu' does not mean 'cpu', but 'txt' is 'text'.
    if close and not (few and len(name) <= 3 and close[0][0] != name[0]):
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(sorted(valid))}" if few else "; `python -m trainer --help` lists them"


_ENDS = 6


def nearest_key(name: str, valid: Sequence[str]) -> str:
    """Return the end of a message about an unknown key: those that end so, or see `nearest`."""
    last = name.rpartition(".")[2]
    ends = sorted(key for key in valid if key.endswith(f".{last}"))
    if not ends:
        return nearest(name, valid)
    above = name.rpartition(".")[0]
    within = [key for key in ends if above and key.startswith(f"{above}.")]
    if not within and (close := difflib.get_close_matches(name, ends, n=1, cutoff=0.85)):
        within = close
    shown = within or ends
    more = f" and {len(shown) - _ENDS} more" if len(shown) > _ENDS else ""
    if len(shown) == 1:
        return f"; did you mean {shown[0]!r}?"
    return f"; there are {', '.join(shown[:_ENDS])}{more}"
