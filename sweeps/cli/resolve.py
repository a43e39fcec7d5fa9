"""Resolution of `--storage` and `--name` to the store of a sweep."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sweeps.errors import InputError, StoreConflict, SweepError, SweepNotFound
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.storage.base import NotFound, Store
from sweeps.storage.urls import is_remote, join, local_path, name_of, open_store, parent

log = logging.getLogger(__name__)

DEFAULT_STORAGE = "./sweep-store"
LATEST_KEY = ".latest"
"""File in a storage folder with the name of the latest sweep. No sweep's name begins with a dot."""

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
    url = _storage(storage)
    if name == "":
        raise InputError("--name is empty; say which sweep, or leave --name out for the last one made")
    if _is_sweep(url):
        if name is not None and name != name_of(url):
            raise InputError(f"{url}: this is the sweep {name_of(url)!r} already; leave out --name {name}")
        return Experiment.open(open_store(url))
    name = name or os.environ.get("SWEEP_NAME") or _latest(url)
    return Experiment.open(open_store(join(url, name)))


def new_store(storage: str | None, name: str) -> Store:
    """Return the store for a new sweep of this name. Raises `InputError`."""
    url = _storage(storage)
    if _is_sweep(url):
        raise InputError(f"{url}: this is a sweep itself; give the folder that sweeps are made in")
    return open_store(join(url, name))


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
        folder = open_store(parent(store.url))
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


def _storage(storage: str | None) -> str:
    if storage == "":
        raise InputError("--storage is empty; give a folder or a URL, or leave it out for ./sweep-store")
    url = storage or os.environ.get("SWEEP_STORAGE") or DEFAULT_STORAGE
    if not is_remote(url):
        path = Path(local_path(url))
        try:
            if path.exists() and not path.is_dir():
                raise InputError(f"{url}: this is a file; --storage takes a folder")
        except OSError as error:
            raise InputError(
                f"{url}: {(error.strerror or str(error)).lower()}; give another folder"
            ) from None
    return url


def _is_sweep(url: str) -> bool:
    return exists(open_store(url))


def _latest(url: str) -> str:
    try:
        latest = open_store(url).read(LATEST_KEY)[0].decode()
    except (SweepError, UnicodeDecodeError):
        latest = ""
    if is_remote(url):
        if not latest:
            raise SweepNotFound(f"{url}: no sweep was made here; say which one you mean with --name")
        return latest
    found = sorted(path.parent.name for path in Path(local_path(url)).glob(f"*/{SWEEP_KEY}"))
    if latest in found:
        return latest
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{url}: which of its sweeps? Say --name with one of {', '.join(found)}")
    raise SweepNotFound(
        f"{url}: no sweep here; make one with `sweep init SPACE.yaml`, try `sweep quickstart`, "
        "or point --storage at one"
    )
