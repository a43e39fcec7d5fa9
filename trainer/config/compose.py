"""Composition of Hydra overrides into a `Config`. Called by `api.check` and `__main__`.

Hydra is used through its compose API: nothing changes the working directory and no `outputs/` appears.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
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

from trainer.config import Config, FieldError
from trainer.config.run import leaves
from trainer.errors import ConfigError

_MODULE = "trainer.conf"
_PRIMARY = "config"
_OPTIMIZER = "optimizer"  # the one group whose package is written behind an @
_VARIED = ("model", "data", "stage3/teacher")  # groups whose options have keys of their own
# pydantic names the union's member in an error's location; users do not
_UNIONS = {
    ("model",): ("tiny", "hf"),
    ("data",): ("stdlib", "text", "parquet", "hub"),
    ("stage3", "teacher"): ("in_process", "http", "cached"),
}
_SECRET = "api_key_env"  # noqa: S105 - the key under which a person may have put a secret by mistake


def compose_tree(overrides: Sequence[str]) -> DictConfig:
    """Return the composed configuration as Hydra holds it, before validation. Raises ConfigError."""
    return _composed(overrides)[0]


def compose_config(overrides: Sequence[str]) -> Config:
    """Return the validated configuration. Raises ConfigError, in one line."""
    return _config(tuple(overrides))


@functools.lru_cache(maxsize=64)
def _config(overrides: tuple[str, ...]) -> Config:
    """Return the frozen configuration, cached: a run composes the same overrides several times."""
    return validate(_composed(overrides)[1])


def _composed(overrides: Sequence[str]) -> tuple[DictConfig, Any]:
    """Return Hydra's tree and its plain values."""
    parsed = parse_overrides(overrides)
    try:
        tree = compose_cached(parsed)
        return tree, OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise _diagnose(parsed, error) from None


def validate(document: Any) -> Config:
    """Return a `Config` from plain values, strictly: "3" is not a number, 3.0 not a count of steps.

    Raises:
        ConfigError: for the first value that is refused.
    """
    try:
        return TypeAdapter(Config).validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        raise _first_refusal(error) from None


def keys(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return every key of the composed configuration with its value, "???" where one is required."""
    return dict(leaves(OmegaConf.to_container(compose_cached(parse_overrides(overrides)))))


def groups() -> dict[str, list[str]]:
    """Return every configuration group with its options."""
    with initialize_config_module(_MODULE, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        names = [name for name in loader.list_groups("") if not name.startswith(("hydra", "_"))]
        names += [f"{name}/{inner}" for name in names for inner in loader.list_groups(name)]
        return {name: loader.get_group_options(name, ObjectType.CONFIG) for name in sorted(names)}


def compose_cached(overrides: Sequence[Override]) -> DictConfig:
    """Return the tree that Hydra composes, without reading its thirty files each time.

    A sweep composes every candidate, and they differ in values alone: the tree of a choice of groups is
    cached, and values are written into a copy.
    """
    choices = tuple(_line(override) for override in overrides if not _is_value(override))
    tree = copy.deepcopy(compose_files(choices))
    try:
        for override in overrides:
            if _is_value(override):
                OmegaConf.update(tree, override.key_or_group, override.value(), merge=True)
    except OmegaConfBaseException:
        return compose_files(tuple(map(_line, overrides)))  # raises Hydra's own error
    return tree


@functools.lru_cache(maxsize=64)
def compose_files(overrides: tuple[str, ...]) -> DictConfig:
    """Return what Hydra itself composes from its files. Cached: callers must not change it."""
    with initialize_config_module(_MODULE, version_base="1.3"):
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
        raise ConfigError(f"cannot read the override {text!r}: {_one_line(error)}") from None
    _refuse_misleading(override)
    if override.is_sweep_override():
        raise ConfigError("one run takes one value; quote it if it is text", key=override.get_key_element())
    return override


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


def _diagnose(overrides: Sequence[Override], error: Exception) -> ConfigError:
    """Return a helpful error in place of Hydra's "Could not override"."""
    options, homes = groups(), _homes()
    present = _known_with(overrides, options)
    known = set.union(present, *homes.values())
    for override in overrides:
        name = override.key_or_group
        if name in options and isinstance(override.value(), str):
            choice = str(override.value())
            if choice not in options[name]:
                return ConfigError(f"{choice!r} is no choice{nearest(choice, options[name])}", key=name)
            continue
        if override.is_add() or override.package is not None or name in present:
            continue
        above = _nodes([name])
        if belongs := [home for home, own in homes.items() if above & (own - present)]:
            return ConfigError(f"there is no such key here; it belongs to {' or '.join(belongs)}", key=name)
        return ConfigError(f"there is no such key{nearest(name, [*known, *options])}", key=name)
    missing = getattr(error, "full_key", None)
    if missing and "issing" in str(error):
        return ConfigError(f"needs a value; write {missing}=VALUE", key=missing)
    return ConfigError(_one_line(error))


def _homes() -> dict[str, set[str]]:
    """Return the first-level keys of each choice of a group whose options have keys of their own."""
    options = groups()
    return {f"{group}={choice}": _own(group, choice) for group in _VARIED for choice in options[group]}


def _own(group: str, choice: str) -> set[str]:
    """Return the keys of one choice, read from its file: composing all choices takes seconds."""
    text = files(_MODULE).joinpath(group, f"{choice}.yaml").read_text(encoding="utf-8")
    tree = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(text)))
    builds_on = [name for name in tree.pop("defaults", []) if isinstance(name, str) and name != "_self_"]
    own = tree.get(group, {}) if "@package _global_" in text else tree
    package = group.replace("/", ".")
    return {f"{package}.{key}" for key in own}.union(*(_own(group, name) for name in builds_on))


def _known_with(overrides: Sequence[Override], options: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the keys and inner nodes under the valid group choices among the overrides."""
    chosen = [
        override.input_line
        for override in overrides
        if override.package is None and override.value() in options.get(override.key_or_group, ())
    ]
    return _nodes(keys([line for line in chosen if line is not None]))


def _nodes(leaves: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for key in leaves:
        parts = key.split(".")
        found.update(".".join(parts[: depth + 1]) for depth in range(len(parts)))
    return found


def _first_refusal(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    for union, members in _UNIONS.items():
        depth = len(union)
        if tuple(path[:depth]) == union and path[depth : depth + 1] and path[depth] in members:
            del path[depth]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return ConfigError(cause.problem, key=".".join([*path, cause.key] if cause.key else path))
    silent = first["type"] in ("missing", "unexpected_keyword_argument") or path[-1:] == [_SECRET]
    got = "" if silent else f" (got {first['input']!r})"
    if first["type"] == "union_tag_invalid":
        context = first["ctx"]
        key = ".".join([*path, context["discriminator"].strip("'")])
        return ConfigError(f"{context['tag']!r} is unknown; there are: {context['expected_tags']}", key=key)
    if first["type"] == "unexpected_keyword_argument":
        return ConfigError("there is no such key", key=".".join(path))
    return ConfigError(first["msg"][0].lower() + first["msg"][1:] + got, key=".".join(path))


def nearest(name: str, valid: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the most similar one, or where all of them stand."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return (
        f"; there are: {', '.join(sorted(valid))}"
        if len(valid) <= 9
        else "; `python -m trainer --help` lists them"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
