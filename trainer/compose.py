"""Hydra overrides → `Config`, with every refusal told in one line. Called by `api.check` and `__main__`.

Hydra is used through its compose API: nothing changes the working directory and no `outputs/` appears.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from trainer.config import Config, FieldError
from trainer.errors import ConfigError

_MODULE = "trainer.conf"
_PRIMARY = "config"
_OPTIMIZER = "optimizer"  # the one group whose place in the tree is said behind an @
_KINDS = ("tiny", "hf")  # pydantic names the union's member in an error's location; users do not


def compose_tree(overrides: Sequence[str]) -> DictConfig:
    """The composed configuration as Hydra holds it, before validation. Raises ConfigError."""
    parsed = _parse(overrides)
    try:
        with initialize_config_module(_MODULE, version_base="1.3"):
            tree = compose(_PRIMARY, overrides=list(overrides))
        OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise _diagnose(parsed, error) from None
    return tree


def compose_config(overrides: Sequence[str]) -> Config:
    """The validated configuration. Raises ConfigError with one line."""
    return validate(OmegaConf.to_container(compose_tree(overrides), resolve=True))


def validate(document: Any) -> Config:
    """A `Config` from plain values, strictly: "3" is no number, 3.0 no count of steps. Raises ConfigError."""
    try:
        return TypeAdapter(Config).validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        raise _first_refusal(error) from None


def keys() -> dict[str, Any]:
    """Every key of the default configuration and its value, for `--help` and for suggestions."""
    return dict(_leaves(OmegaConf.to_container(compose_tree([]))))


def groups() -> dict[str, list[str]]:
    """Every configuration group and its options."""
    with initialize_config_module(_MODULE, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        names = [name for name in loader.list_groups("") if not name.startswith(("hydra", "_"))]
        return {name: loader.get_group_options(name, ObjectType.CONFIG) for name in sorted(names)}


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, parsed = OverridesParser.create(), []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            raise ConfigError(f"cannot read the override {text!r}: {_one_line(error)}") from None
        _refuse_misleading(override)
        if override.is_sweep_override():
            raise ConfigError(
                "one run takes one value; quote it if it is text", key=override.get_key_element()
            )
        parsed.append(override)
    return parsed


def _refuse_misleading(override: Override) -> None:
    """What Hydra takes and drops, or refuses with advice that leads nowhere."""
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
    """What a person would say where Hydra says "Could not override"."""
    options, known = groups(), _keys_of_all_models()
    for override in overrides:
        name = override.key_or_group
        if name in options and isinstance(override.value(), str):
            choice = str(override.value())
            if choice not in options[name]:
                return ConfigError(f"{choice!r} is no choice{_nearest(choice, options[name])}", key=name)
        elif not override.is_add() and override.package is None and name not in known:
            return ConfigError(f"there is no such key{_nearest(name, [*known, *options])}", key=name)
    missing = getattr(error, "full_key", None)
    if missing and "issing" in str(error):
        return ConfigError(f"needs a value; write {missing}=VALUE", key=missing)
    return ConfigError(_one_line(error))


def _keys_of_all_models() -> set[str]:
    """Keys and inner nodes that an override may name under some choice of groups."""
    found: set[str] = {"model.name", "model.dtype"}
    for key in keys():
        parts = key.split(".")
        found.update(".".join(parts[: depth + 1]) for depth in range(len(parts)))
    return found


def _first_refusal(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if path[:1] == ["model"] and path[1:2] and path[1] in _KINDS:
        del path[1]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return ConfigError(cause.problem, key=".".join([*path, cause.key] if cause.key else path))
    given = (
        "" if first["type"] in ("missing", "unexpected_keyword_argument") else f" (got {first['input']!r})"
    )
    if first["type"] == "unexpected_keyword_argument":
        return ConfigError("there is no such key", key=".".join(path))
    return ConfigError(first["msg"][0].lower() + first["msg"][1:] + given, key=".".join(path))


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, child in node.items():
            yield from _leaves(child, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def _nearest(name: str, valid: Sequence[str]) -> str:
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
