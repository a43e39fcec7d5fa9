"""From `--storage` and `--name` to a store: which sweep does the user mean?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from sweeps.errors import AlreadyExists, Conflict, InputError, SweepNotFound
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.storage.base import NotFound
from sweeps.storage.local import LocalStore

DEFAULT_STORAGE = "./sweep-store"
_LATEST_KEY = "latest"

F = TypeVar("F", bound=Callable[..., Any])


def storage_options(function: F) -> F:
    """The options --storage and --name, as every command has them."""
    function = click.option(
        "--name",
        metavar="NAME",
        help="Which sweep under --storage. Default: SWEEP_NAME, or the last one made.",
    )(function)
    return click.option(
        "--storage",
        metavar="URL",
        help="A folder of sweeps, or one sweep's whole URL. Default: SWEEP_STORAGE, or ./sweep-store.",
    )(function)


def open_sweep(storage: str | None, name: str | None) -> Experiment:
    """The sweep that the options and the environment mean. Raises `SweepNotFound` or `InputError`."""
    return Experiment.open(_store(storage, name))


def new_store(storage: str | None, name: str) -> LocalStore:
    """The store for a new sweep of this name. Raises `InputError`."""
    given = storage or os.environ.get("SWEEP_STORAGE") or DEFAULT_STORAGE
    root = _folder(given)
    if (root / SWEEP_KEY).is_file():
        raise InputError(f"{given}: this is a sweep itself; give the folder that sweeps are made in")
    return LocalStore(_join(given, name))


def remember(store: LocalStore) -> None:
    """Make the sweep the default of its storage folder."""
    parent = LocalStore(Path(store.url).parent)
    data = Path(store.url).name.encode()
    while True:
        try:
            _, version = parent.read(_LATEST_KEY)
            parent.replace(_LATEST_KEY, data, version)
        except NotFound:
            try:
                parent.create(_LATEST_KEY, data)
            except AlreadyExists:
                continue
        except Conflict:
            continue
        return


def _store(storage: str | None, name: str | None) -> LocalStore:
    given = storage or os.environ.get("SWEEP_STORAGE") or DEFAULT_STORAGE
    root = _folder(given)
    if (root / SWEEP_KEY).is_file():
        if name is not None and name != root.resolve().name:
            raise InputError(
                f"{given}: this is the sweep {root.resolve().name!r} already; leave out --name {name}"
            )
        return LocalStore(_path_text(given))
    name = name or os.environ.get("SWEEP_NAME") or _latest(root, given)
    return LocalStore(_join(given, name))


def _latest(root: Path, given: str) -> str:
    found = sorted(path.parent.name for path in root.glob(f"*/{SWEEP_KEY}"))
    if not found:
        raise SweepNotFound(
            f"{given}: no sweep here; make one with `sweep init SPACE.yaml`, try `sweep quickstart`, "
            "or point --storage at one"
        )
    try:
        latest = LocalStore(root).read(_LATEST_KEY)[0].decode()
    except (NotFound, UnicodeDecodeError):
        latest = ""
    if latest in found:
        return latest
    if len(found) == 1:
        return found[0]
    raise InputError(f"{given}: which of its sweeps? Say --name with one of {', '.join(found)}")


def _folder(given: str) -> Path:
    path = Path(_path_text(given))
    if path.exists() and not path.is_dir():
        raise InputError(f"{given}: this is a file; --storage takes a folder")
    return path


def _path_text(given: str) -> str:
    """A local path as typed, or from a file:// URL. Raises `InputError` for every other scheme."""
    scheme, separator, _ = given.partition("://")
    if not separator:
        return given
    if scheme == "file":
        return unquote(urlsplit(given).path)
    if scheme == "gs":
        raise InputError(f"{given}: this version keeps sweeps in folders only; give a path or file:///…")
    raise InputError(f"{given}: unknown storage {scheme}://; give a path or file:///…")


def _join(given: str, name: str) -> str:
    if not name or "/" in name or name.startswith("."):
        raise InputError(f"--name {name!r}: a sweep's name is one folder's name")
    return os.path.join(_path_text(given), name)  # noqa: PTH118 - keeps the `./` as the user typed it
