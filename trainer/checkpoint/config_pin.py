"""A run's folder pins its configuration: `config.json`, written when the run starts. Without torch.

Called by `run_folder`. A checkpoint must go on as it began, so a run with another configuration is refused
where there is one, with the keys that differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from trainer.config import Config, decisive
from trainer.config.redaction import without_secrets
from trainer.errors import ConfigError

CONFIG_FILE = "config.json"
SCHEMA = 1
_SHOWN = 6
_ABSENT = "(absent)"


def check(config: Config, folder: Path) -> None:
    """Refuses a configuration that differs from that of the folder in anything that is decisive.

    Raises:
        ConfigError: with the keys that differ, their old and their new values.
    """
    pinned = _read(folder / CONFIG_FILE)
    if pinned is None:
        return
    old, new = dict(_leaves(pinned)), dict(_leaves(decisive(_plain(config))))
    odd = [key for key in sorted(old.keys() | new.keys()) if old.get(key, _ABSENT) != new.get(key, _ABSENT)]
    if not odd:
        return
    told = [f"{key}: {_show(old.get(key, _ABSENT))} → {_show(new.get(key, _ABSENT))}" for key in odd[:_SHOWN]]
    more = f"; and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
    another_version = any(_ABSENT in (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in odd)
    way = "go on with that one" + another_version * " in the version of the program that began it"
    raise ConfigError(
        f"{str(folder)!r} holds an unfinished run of another configuration ({'; '.join(told)}{more}); "
        f"{way}, write another run_dir, or delete the folder",
        key="run_dir",
    )


def is_pinned(config: Config, folder: Path) -> bool:
    """Return whether the folder is that of this configuration."""
    return bool(_read(folder / CONFIG_FILE) == decisive(_plain(config)))


def pin(config: Config, folder: Path) -> None:
    """Writes the configuration into the folder, whole or not at all. Raises OSError."""
    document = {"schema": SCHEMA, "config": _plain(config)}
    draft = folder / f".{CONFIG_FILE}.{os.getpid()}.tmp"
    try:
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draft.replace(folder / CONFIG_FILE)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> Any:
    """What is pinned, or None. A damaged file pins nothing: each checkpoint has a digest of its own."""
    try:
        document = from_json(path.read_bytes())
        return decisive(document["config"]) if document["schema"] == SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _plain(config: Config) -> dict[str, Any]:
    """As JSON gives it back, lists for tuples; and without secrets: the folder may be copied anywhere."""
    document: dict[str, Any] = without_secrets(from_json(json.dumps(asdict(config))))
    return document


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, child in node.items():
            yield from _leaves(child, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def _show(value: Any) -> str:
    return value if value == _ABSENT else json.dumps(value)
