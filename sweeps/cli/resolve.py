"""Resolution of `--storage` and `--name` to the store of a sweep."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sweeps.cli.output import notify
from sweeps.errors import InputError, StoreConflict, SweepError, SweepNotFound
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.storage.base import NotFound, Store
from sweeps.storage.urls import is_remote, join, local_path, name_of, open_store, parent, subfolders
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_trials

log = logging.getLogger(__name__)

DEFAULT_STORAGE = "./sweep-store"
LATEST_KEY = ".latest"
"""File in a storage folder with the name of the latest sweep. No sweep's name begins with a dot."""

DAMAGED = "sweeps.damaged"
"""Note in the context of a command that it has left something out."""

PREVIEW = "sweeps.preview"
"""Note in the context of a command that it shows something, and changes nothing anywhere."""

_A_PERSON_WAITS_S = 5.0
"""For the first answer of a bucket; what runs unattended waits until a network that is starting is there."""

_SHOWN = 12
"""Names of sweeps in a message; `sweep list` has them all."""

F = TypeVar("F", bound=Callable[..., Any])


def storage_options(function: F) -> F:
    """Add the options --storage and --name to a command."""
    function = click.option(
        "--name",
        metavar="NAME",
        help="Which sweep under --storage. Default: SWEEP_NAME, or the last one made.",
    )(function)
    return click.option(
        "--storage",
        metavar="URL",
        help="A folder of sweeps, or one sweep's full URL. Default: SWEEP_STORAGE, or ./sweep-store.",
    )(function)


def open_sweep(storage: str | None, name: str | None) -> Experiment:
    """Open the sweep that the options and the environment name. Raises `SweepNotFound` or `InputError`."""
    url = storage_url(storage)
    if name == "":
        raise InputError("--name is empty; say which sweep, or leave --name out for the last one made")
    if _is_sweep(url):
        if name is not None and name != name_of(url):
            raise InputError(f"{url}: this is the sweep {name_of(url)!r} already; leave out --name {name}")
        return Experiment.open(_open(url))
    if name := name or os.environ.get("SWEEP_NAME"):
        store = _open(join(url, name))
        try:
            return Experiment.open(store)
        except SweepNotFound:
            raise _no_such(url, name, store.url) from None
    return Experiment.open(_open(join(url, _latest(url))))


def _open(url: str) -> Store:
    """Return the store at the URL, which is not contacted yet. Raises `InputError`."""
    return open_store(url, first_answer_s=_patience_s())


def _patience_s() -> float | None:
    context = click.get_current_context(silent=True)
    preview = context is not None and PREVIEW in context.meta
    return _A_PERSON_WAITS_S if preview or sys.stderr.isatty() else None


def _no_such(url: str, name: str, missing: str) -> SweepNotFound:
    """Return the error about a sweep that is not there, with those that are."""
    if not (names := sweep_names(url)):
        return SweepNotFound(
            f"{missing}: no sweep here, and none in {url}; make one with `sweep init SPACE.yaml`"
        )
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return SweepNotFound(f"{missing}: no sweep here; {hint}{url} has {shown}")


def is_named(storage: str | None, name: str | None) -> bool:
    """Return whether the options say which sweep is meant: what cannot be undone takes no default."""
    return bool(name) or (bool(storage) and _is_sweep(storage_url(storage)))


def sweep_names(url: str) -> list[str]:
    """Return the names of the sweeps in a folder of sweeps. Raises `StoreUnavailable`."""
    names = subfolders(url, first_answer_s=_patience_s())
    found = _open(url).read_many([f"{name}/{SWEEP_KEY}" for name in names])
    return [name for name, content in zip(names, found, strict=True) if content is not None]


def readable(experiment: Experiment) -> list[Trial]:
    """Return the trials that can be read, without secrets.

    What cannot be read is said on stderr, and the command will exit with status 1.
    """
    records, damaged = experiment.readable_trials()
    for error in (*experiment.amendments.damaged, *damaged):
        notify(f"error: {error}; it is left out here")
        click.get_current_context().meta[DAMAGED] = True
    return redact_trials(records)


def new_store(storage: str | None, name: str) -> Store:
    """Return the store for a new sweep of this name. Raises `InputError`."""
    url = storage_url(storage)
    if _is_sweep(url):
        raise InputError(f"{url}: this is a sweep itself; give the folder that sweeps are made in")
    return _open(join(url, name))


def exists(store: Store) -> bool:
    """Return whether there is a sweep in the store."""
    try:
        store.read(SWEEP_KEY)
    except NotFound:
        return False
    return True


def remember(store: Store) -> None:
    """Make the sweep the default of its storage folder; a failure is only logged."""
    data = name_of(store.url).encode()
    try:
        folder = _open(parent(store.url))
        try:
            present, version = folder.read(LATEST_KEY)
            if present != data:
                folder.replace(LATEST_KEY, data, version)
        except NotFound:
            folder.create(LATEST_KEY, data)
    except StoreConflict:
        log.debug("another sweep was made at the same time; it is the default now")
    except SweepError as error:
        log.warning("%s is not the default sweep of its folder, say --name: %s", store.url, error)


def storage_url(storage: str | None) -> str:
    """Return the URL of --storage, or of the environment, or the default. Raises `InputError`."""
    if storage == "":
        raise InputError("--storage is empty; give a folder or a URL, or leave it out for ./sweep-store")
    url = storage or os.environ.get("SWEEP_STORAGE") or DEFAULT_STORAGE
    if not is_remote(url):
        path = Path(local_path(url))
        try:
            if b"\0" in os.fsencode(path):
                raise ValueError(path)
        except ValueError:  # NUL, or half a surrogate pair
            raise InputError(f"{url!a:.80}: no folder can be called so; give another one") from None
        try:
            if path.exists() and not path.is_dir():
                raise InputError(f"{url}: this is a file; --storage takes a folder")
        except OSError as error:
            raise InputError(
                f"{url}: {(error.strerror or str(error)).lower()}; give another folder"
            ) from None
    return url


def _is_sweep(url: str) -> bool:
    return exists(_open(url))


def latest_name(url: str) -> str:
    """Return the name of the sweep that was made last in a folder of sweeps; "" if it is not known."""
    try:
        return _open(url).read(LATEST_KEY)[0].decode()
    except (SweepError, UnicodeDecodeError):
        return ""


def _latest(url: str) -> str:
    latest = latest_name(url)
    if is_remote(url) and latest and exists(_open(join(url, latest))):
        return latest  # without a listing
    found = sweep_names(url)
    if latest in found:
        return latest
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise InputError(f"{url}: which of its sweeps? Say --name with one of {shown}")
    raise SweepNotFound(
        f"{url}: no sweep here; make one with `sweep init SPACE.yaml`, try `sweep quickstart`, "
        "or point --storage at one"
    )
