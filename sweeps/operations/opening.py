"""The sweep that a storage and a name mean: of the options, of the environment, or the one made last."""

from __future__ import annotations

import difflib
import logging
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from sweeps.errors import InputError, StoreConflict, SweepError, SweepNotFound
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.storage.base import NotFound, Store
from sweeps.storage.urls import is_remote, join, local_path, name_of, open_store, parent, subfolders

log = logging.getLogger(__name__)

DEFAULT_STORAGE = "./sweep-store"
LATEST_KEY = ".latest"
"""File in a storage folder with the name of the latest sweep. No sweep's name begins with a dot."""

A_PERSON_WAITS_S = 5.0
"""For the first answer of a bucket; what runs unattended waits until a network that is starting is there."""

_SHOWN = 12
"""Names of sweeps in a message; `sweep list` has them all."""


def open_sweep(storage: str | None, name: str | None, *, patience_s: float | None = None) -> Experiment:
    """Open the sweep that the arguments and the environment name.

    Args:
        patience_s: seconds for a bucket's first answer; None: less where a person waits.

    Raises:
        SweepNotFound: there is none.
        InputError: it is not clear which one is meant.
    """
    url = storage_url(storage)
    if name == "":
        raise InputError("--name is empty; say which sweep, or leave --name out for the last one made")
    if exists(_open(url, patience_s)):
        if name is not None and name != name_of(url):
            raise InputError(f"{url}: this is the sweep {name_of(url)!r} already; leave out --name {name}")
        return Experiment.open(_open(url, patience_s))
    if name := name or os.environ.get("SWEEP_NAME"):
        store = _open(join(url, name), patience_s)
        try:
            return Experiment.open(store)
        except SweepNotFound:
            raise _no_such(url, name, store.url, patience_s) from None
    return Experiment.open(_open(join(url, _latest(url, patience_s)), patience_s))


def _open(url: str, patience_s: float | None = None) -> Store:
    """Return the store at the URL, which is not contacted yet. Raises `InputError`."""
    if patience_s is None and sys.stderr.isatty():
        patience_s = A_PERSON_WAITS_S
    return open_store(url, first_answer_s=patience_s)


def _no_such(url: str, name: str, missing: str, patience_s: float | None) -> SweepNotFound:
    """Return the error about a sweep that is not there, with those that are."""
    if not (names := sweep_names(url, patience_s)):
        return SweepNotFound(
            f"{missing}: no sweep here, and none in {url}; make one with `sweep init SPACE.yaml`"
        )
    return SweepNotFound(f"{missing}: no sweep here; {_those_in(url, names, name)}")


def _those_in(url: str, names: list[str], name: str) -> str:
    """Return which sweeps a folder has, and which of them was probably meant by a name."""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    close = difflib.get_close_matches(name, names, n=1)
    return (f"did you mean {close[0]}? " if close else "") + f"{url} has {shown}"


def sweeps_near(url: str, patience_s: float | None = None) -> str:
    """Return which sweeps to give in place of a URL that has none: those within, or beside it; "": none."""
    if names := sweep_names(url, patience_s):
        return f"give one of its sweeps, such as {join(url, names[0])}"
    with suppress(SweepError):  # a whole bucket, or a folder that may not be listed
        folder = parent(url)
        if exists(_open(folder, patience_s)):  # a person stands in a sweep's own folder
            return f"give --storage {folder}, which is a sweep itself"
        if is_remote(folder) and not name_of(folder):
            return ""  # a bucket's root: thousands of folders may lie there that are no sweeps
        if names := sweep_names(folder, patience_s):
            return _those_in(folder, names, name_of(url))
    return ""


def is_named(storage: str | None, name: str | None) -> bool:
    """Return whether the options say which sweep is meant: what cannot be undone takes no default."""
    return bool(name) or (bool(storage) and exists(_open(storage_url(storage))))


def sweep_names(url: str, patience_s: float | None = None) -> list[str]:
    """Return the names of the sweeps in a folder of sweeps. Raises `StoreUnavailable`."""
    if patience_s is None and sys.stderr.isatty():
        patience_s = A_PERSON_WAITS_S
    names = subfolders(url, first_answer_s=patience_s)
    found = open_store(url, first_answer_s=patience_s).read_many([f"{name}/{SWEEP_KEY}" for name in names])
    return [name for name, content in zip(names, found, strict=True) if content is not None]


def new_store(storage: str | None, name: str) -> Store:
    """Return the store for a new sweep of this name. Raises `InputError`."""
    url = storage_url(storage)
    if exists(_open(url)):
        raise InputError(f"{url}: this is a sweep itself; give the folder that sweeps are made in")
    return _open(join(url, name))


def exists(store: Store) -> bool:
    """Return whether there is a sweep in the store."""
    try:
        store.read(SWEEP_KEY)
    except NotFound:
        return False
    return True


def make_default(store: Store) -> None:
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
        if path.name in ("", ".."):  # such as `.`, which has no parent to rename it in and cannot be removed
            url = os.path.abspath(path)  # noqa: PTH100 - `..` is taken out, too
        try:
            if b"\0" in os.fsencode(path):
                raise ValueError(path)
        except ValueError:  # NUL, or half a surrogate pair
            raise InputError(f"{url!a:.80}: no folder can be called so; give another one") from None
        try:  # Path.exists() hides other errors from Python 3.14 on
            if not stat.S_ISDIR(path.stat().st_mode):
                raise InputError(f"{url}: this is a file; --storage takes a folder")
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise InputError(
                f"{url}: {(error.strerror or str(error)).lower()}; give another folder"
            ) from None
    return url


def latest_name(url: str, patience_s: float | None = None) -> str:
    """Return the name of the sweep that was made last in a folder of sweeps; "" if it is not known."""
    try:
        return _open(url, patience_s).read(LATEST_KEY)[0].decode()
    except (SweepError, UnicodeDecodeError):
        return ""


def _latest(url: str, patience_s: float | None) -> str:
    latest = latest_name(url, patience_s)
    if is_remote(url) and latest and exists(_open(join(url, latest), patience_s)):
        return latest  # without a listing
    found = sweep_names(url, patience_s)
    if latest in found:
        return latest
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise InputError(f"{url}: which of its sweeps? Say --name with one of {shown}")
    advice = "make one with `sweep init SPACE.yaml`, try `sweep quickstart`, or point --storage at one"
    near = sweeps_near(url, patience_s)
    raise SweepNotFound(f"{url}: no sweep here; {near and f'{near}; or '}{advice}")
