"""Configuration that a run's folder is pinned to: `config.json`, written when the run starts. Without torch.

Called by `run_folder`. A run must be resumed with the configuration that it began with, so another one is
refused where there is a checkpoint, with the keys that differ.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sweeps.text.atomic_file import atomic_write
from sweeps.text.regular_file import read_regular
from trainer.config import Config, decisive
from trainer.config.redaction import without_secrets
from trainer.config.run import leaves
from trainer.errors import ConfigError

CONFIG_FILE = "config.json"
SCHEMA = 1
_SHOWN = 6
_ABSENT = "(absent)"


def check(config: Config, folder: Path) -> None:
    """Raise ConfigError if the configuration differs from the folder's in anything decisive.

    The message names the keys that differ, with their old and their new values.
    """
    pinned = _read(folder / CONFIG_FILE)
    if pinned is None:
        return
    old, new = dict(leaves(pinned)), dict(leaves(decisive(_plain(config))))
    keys = sorted(old.keys() | new.keys())
    pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in keys}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    if not changed:
        return
    shown = [f"{key}: {_show(was)} → {_show(now)}" for key, (was, now) in list(changed.items())[:_SHOWN]]
    more = f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    another_version = any(_ABSENT in pair for pair in changed.values())
    remedy = "go on with that one" + another_version * " in the version of the program that began it"
    raise ConfigError(
        f"{str(folder)!r} holds an unfinished run of another configuration ({'; '.join(shown)}{more}); "
        f"{remedy}, write another run_dir, or delete the folder",
        key="run_dir",
    )


def is_pinned(config: Config, folder: Path) -> bool:
    """Return whether the folder is pinned to this configuration."""
    return bool(_read(folder / CONFIG_FILE) == decisive(_plain(config)))


def pin(config: Config, folder: Path) -> None:
    """Write the configuration into the folder, atomically. Raises OSError."""
    document = {"schema": SCHEMA, "config": _plain(config)}
    with atomic_write(folder / CONFIG_FILE) as draft:
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    """Return the pinned configuration; None if the file is damaged, as each checkpoint has its own digest."""
    try:
        document = from_json(read_regular(path))
        return decisive(document["config"]) if document["schema"] == SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _plain(config: Config) -> dict[str, Any]:
    """Return the configuration as JSON holds it, and without secrets: the folder may be copied anywhere."""
    document: dict[str, Any] = without_secrets(from_json(json.dumps(asdict(config))))
    return document


def _show(value: Any) -> str:
    return value if value == _ABSENT else json.dumps(value)
