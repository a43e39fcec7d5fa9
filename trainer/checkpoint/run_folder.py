"""A run's folder: what an earlier run has left in it, and what this one begins with. Used by `__main__`.

config.json      what this run was told to do
metrics.jsonl    what it says while it trains
heartbeat.json   what it is doing right now, or how it ended
memory.jsonl     what memory it takes, where `memory_log` asks for it
checkpoints/     while it is unfinished
model/           its student once it is finished, where `save_model` asks for it
result.json      once it is finished
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.checkpoint import config_pin, layout
from trainer.checkpoint.discover import Found, newest
from trainer.checkpoint.manifest import METRICS, UnusableError, verified
from trainer.config import Config, sha256
from trainer.errors import ConfigError, TrainerError
from trainer.layout import HEARTBEAT_FILE, MEMORY_FILE, METRICS_FILE, MODEL_FOLDER, RESULT_FILE

_ASIDE = (RESULT_FILE, METRICS_FILE, HEARTBEAT_FILE, MEMORY_FILE, config_pin.CONFIG_FILE)


def refuse_another(config: Config, folder: Path) -> None:
    """Raises ConfigError if the folder holds the unfinished run of another configuration."""
    if not (folder / RESULT_FILE).exists() and layout.listing(folder / layout.FOLDER):
        config_pin.check(config, folder)


@contextmanager
def opened(config: Config, folder: Path, warn: Callable[[str], None]) -> Iterator[Found | None]:
    """The folder, ready to be written to; yields the checkpoint to go on from, or None for a run that begins.

    Raises:
        TrainerError: the disk refuses it.
    """
    root = folder / layout.FOLDER
    with _refusals_of_the_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RESULT_FILE).exists() and not _student_is_owed(config, folder):
            layout.remove(root)  # of a run that was killed just after it had finished
        found = newest(root, sha256(config), warn)
        if found:
            config_pin.pin(config, folder)
            _take_back(found.path / METRICS, folder / METRICS_FILE)
    if found:
        yield found
    else:
        with _fresh(config, folder):
            yield None


def _student_is_owed(config: Config, folder: Path) -> bool:
    """Return whether a finished run could not save its student, which its checkpoints are kept for."""
    owed = config.save_model and not (folder / MODEL_FOLDER).is_dir()
    return owed and config_pin.is_pinned(config, folder)


def found(folder: Path, name: str) -> Found:
    """The checkpoint that another process of the run has found there.

    Raises:
        TrainerError: this one cannot read it.
    """
    path = folder / layout.FOLDER / name
    try:
        return Found(path=path, document=verified(path))
    except UnusableError as error:
        raise TrainerError(
            f"checkpoint {name} cannot be used here ({error}); all processes need to see one run_dir"
        ) from None


@contextmanager
def _fresh(config: Config, folder: Path) -> Iterator[None]:
    """With the files of an earlier run out of the way.

    A failure must not leave a success behind; but a configuration that is refused did nothing, and gives
    back what was there.
    """
    aside = {folder / name: folder / f".{name}.earlier" for name in _ASIDE}
    with _refusals_of_the_disk(folder):
        for path, earlier in aside.items():
            earlier.unlink(missing_ok=True)  # of a run that was killed
            if path.is_file():
                path.replace(earlier)
        (folder / METRICS_FILE).touch()
        config_pin.pin(config, folder)
    try:
        yield
    except ConfigError:
        for name in (config_pin.CONFIG_FILE, HEARTBEAT_FILE, MEMORY_FILE):
            (folder / name).unlink(missing_ok=True)
        for path, earlier in aside.items():
            if earlier.exists():
                earlier.replace(path)
        raise
    finally:
        for earlier in aside.values():
            earlier.unlink(missing_ok=True)


def _take_back(kept: Path, metrics: Path) -> None:
    """`metrics.jsonl` as it was at the checkpoint: the steps after it will be made, and told, again."""
    draft = metrics.with_name(f".{metrics.name}.tmp")
    try:
        shutil.copyfile(kept, draft)
        draft.replace(metrics)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _refusals_of_the_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainerError(f"cannot write to run_dir {str(folder)!r}: {error.strerror}") from error
