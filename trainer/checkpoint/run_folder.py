"""A run's folder: files of an earlier run, and those that this one begins with. Used by `__main__`.

A run must be resumed with the configuration that it began with (`config.json`), so another one is refused
where there is a checkpoint, with the keys that differ.

config.json      its configuration
metrics.jsonl    its metrics, step by step
heartbeat.json   its present phase, or its exit status
memory.jsonl     its memory, if `memory_log` asks for it
wandb_id.txt     the id of its wandb run, if it has one
checkpoints/     while it is unfinished
snapshots/       finished stages, to start from or to hand on
samples.json     continuations of prompts by its student
model/           its student once it is finished, if `save_model` asks for it
result.json      once it is finished
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sweeps.text.atomic_file import atomic_write
from sweeps.text.regular_file import read_regular
from trainer.checkpoint import layout
from trainer.checkpoint.layout import Found, newest
from trainer.checkpoint.manifest import METRICS, UnusableError, verified
from trainer.config import Config, decisive, sha256
from trainer.config.evaluation import hook_name
from trainer.config.run import leaves
from trainer.errors import ConfigError, TrainerError
from trainer.layout import (
    HEARTBEAT_FILE,
    HELD_OUT_FILE,
    MEMORY_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    RESULT_FILE,
    SAMPLES_FILE,
    WANDB_ID_FILE,
)
from trainer.text import without_secrets

CONFIG_FILE = "config.json"
SCHEMA = 1  # of that file
_SHOWN = 6  # differing keys in a message; the others are counted
_ABSENT = "(absent)"
_FILES = (
    RESULT_FILE,
    HELD_OUT_FILE,
    METRICS_FILE,
    HEARTBEAT_FILE,
    MEMORY_FILE,
    SAMPLES_FILE,
    WANDB_ID_FILE,
    CONFIG_FILE,
)


def refuse_another(config: Config, folder: Path) -> None:
    """Raise ConfigError if the folder holds the run of another configuration, or a finished run."""
    if not (folder / RESULT_FILE).exists():
        if layout.listing(folder / layout.FOLDER):
            check_pin(config, folder)
    elif not config.overwrite and (loss := _final_loss(folder)) and not _lacks_output(config, folder):
        raise ConfigError(
            f"{str(folder)!r} holds a finished run, with a final loss of {loss}; write another run_dir, or "
            "overwrite=true to lose that one",
            key="run_dir",
        )


def finished_message(config: Config, folder: Path) -> str | None:
    """Return what to say of a run of this configuration that is finished already; None if it is not."""
    if config.overwrite or not is_pinned(config, folder) or _lacks_output(config, folder):
        return None
    loss = _final_loss(folder)
    return loss and f"finished already, with a final loss of {loss}; overwrite=true begins anew"


def _final_loss(folder: Path) -> str | None:
    """Return the loss of a completed run, as text; None if the folder has no such result."""
    result = _result(folder)
    metrics = result.get("metrics") if result.get("status") == "completed" else None
    return str(metrics.get("final_loss")) if isinstance(metrics, dict) else None


def _result(folder: Path) -> Mapping[str, Any]:
    """Return what the folder's result says; {} if there is none that can be read."""
    try:
        result = from_json(read_regular(folder / RESULT_FILE))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


@contextmanager
def open_folder(config: Config, folder: Path, warn: Callable[[str], None]) -> Iterator[Found | None]:
    """Prepare the folder for writing, and yield the checkpoint to resume from, None for a new run.

    Raises:
        TrainerError: the disk refuses it.
    """
    root = folder / layout.FOLDER
    with _refusals_of_the_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RESULT_FILE).exists() and not _lacks_output(config, folder):
            layout.remove(root)  # of a run that was killed just after it finished
        found = newest(root, sha256(config), warn)
        if found:
            pin(config, folder)
            # The lines of later steps will be written again.
            with atomic_write(folder / METRICS_FILE) as draft:
                shutil.copyfile(found.path / METRICS, draft)
    if found:
        yield found
    else:
        with _hiding_earlier_files(config, folder):
            yield None


def _lacks_output(config: Config, folder: Path) -> bool:
    """Return whether a finished run lacks its student or scores, for which its checkpoints remain."""
    if not (layout.listing(folder / layout.FOLDER) and is_pinned(config, folder)):
        return False
    called = _result(folder).get("hooks")
    scored = set(called) if isinstance(called, dict) else set()
    no_student = config.save_model and not (folder / MODEL_FOLDER).is_dir()
    return no_student or not scored >= set(map(hook_name, config.hooks.names))


def open_checkpoint(folder: Path, name: str) -> Found:
    """Return the checkpoint of that name, which another process of the run has found.

    Raises:
        TrainerError: this one cannot read it.
    """
    path = folder / layout.FOLDER / name
    try:
        return Found(path=path, manifest=verified(path))
    except UnusableError as error:
        raise TrainerError(
            f"checkpoint {name} cannot be used here ({error}); all processes need to see one run_dir"
        ) from None


@contextmanager
def _hiding_earlier_files(config: Config, folder: Path) -> Iterator[None]:
    """Hide the files of an earlier run, so that a failure does not leave its success behind.

    A refused configuration did nothing, so its files are restored.
    """
    hidden = {folder / name: folder / f".{name}.earlier" for name in _FILES}
    with _refusals_of_the_disk(folder):
        for path, earlier in hidden.items():
            earlier.unlink(missing_ok=True)  # of a run that was killed
            if path.is_file():
                path.replace(earlier)
        (folder / METRICS_FILE).touch()
        pin(config, folder)
    try:
        yield
    except ConfigError:
        for name in (CONFIG_FILE, HEARTBEAT_FILE, MEMORY_FILE):
            (folder / name).unlink(missing_ok=True)
        for path, earlier in hidden.items():
            if earlier.exists():
                earlier.replace(path)
        raise
    finally:
        for earlier in hidden.values():
            earlier.unlink(missing_ok=True)


@contextmanager
def _refusals_of_the_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainerError(f"cannot write to run_dir {str(folder)!r}: {error.strerror}") from error


def check_pin(config: Config, folder: Path) -> None:
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
