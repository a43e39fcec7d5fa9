"""Files on this machine, in `gs://`, `hf://` and whatever else fsspec opens.

Used by `files` for training text, and for tokenizers, models and caches that are named by a URL.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from trainer.cache import artifact
from trainer.errors import ConfigError, DataError, MissingError, UnreachableError
from trainer.models import gguf, network

TRIES = 5
NETWORK_TRIES = 9  # after faults of the network: over four minutes
FIRST_WAIT_S = 1.0  # between two tries; it doubles
# Names of checksums in the metadata of stores, the best first.
_CHECKSUMS = ("sha256", "md5Hash", "crc32c", "etag", "ETag", "blob_id", "checksum")
# Errors that a retry does not resolve. pyarrow raises ValueError for a file of another format.
_PERMANENT = (PermissionError, IsADirectoryError, NotADirectoryError, ValueError, KeyError, MemoryError)

T = TypeVar("T")
_log = logging.getLogger(__name__)


def is_url(name: str) -> bool:
    """Return whether a name is a URL (`gs://…`) and not a path or hub name."""
    return "://" in name


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it.

    Raises:
        MissingError: no installed package opens such URLs.
    """
    import fsspec

    if url.startswith(("gs://", "gcs://")):
        from gcsfs.core import GCSFileSystem

        # The listing cache would hide what others write. The class that fsspec would choose tries gRPC first,
        # which takes over a minute where that is not answered.
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "default")
        plaintext = emulator != "default" and not emulator.startswith("https://")
        filesystem = GCSFileSystem(use_listings_cache=False, token="anon" if plaintext else None)
        return filesystem, url.partition("://")[2]
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise MissingError(f"{url!r} cannot be opened here: {_one_line(error)}") from error
    return filesystem, path


def with_retries(read: Callable[[], T], what: str) -> T:
    """Call `read` with exponential backoff after transient errors, and return its result.

    Args:
        what: its path or URL; only URLs are retried.

    Raises:
        MissingError: there is no such file.
        UnreachableError: the network is lost.
        DataError: it cannot be read.
    """
    wait = FIRST_WAIT_S
    for tries in count(1):
        try:
            return read()
        except FileNotFoundError as error:
            raise MissingError(f"there is no {what}") from error
        except (DataError, UnreachableError):
            raise
        except Exception as error:  # every file system has errors of its own
            may_pass = is_url(what) and not isinstance(error, _PERMANENT)
            is_fault = may_pass and network.is_fault(error)
            if tries >= (NETWORK_TRIES if is_fault else TRIES if may_pass else 1):
                failure = UnreachableError if is_fault else DataError
                raise failure(f"cannot read {what}: {_one_line(error)}") from error
            _log.warning("cannot read %s (%s); trying again in %g s", what, _one_line(error), wait)
        time.sleep(wait)
        wait *= 2
    raise AssertionError("the last try returns or raises")


def checksum(info: Mapping[str, Any]) -> str:
    """Return the checksum in a file's metadata; "" if it has none, as on this machine."""
    for name in _CHECKSUMS:
        if info.get(name):
            return f"{name}:{info[name]}"
    return ""


def file_size(info: Mapping[str, Any], url: str, *, key: str = "") -> int:
    """Return the bytes of a file by its metadata, or raise ConfigError if they do not say."""
    if info["size"] is None:  # of a web server that makes the file as it sends it
        raise ConfigError(
            f"{url}: its server does not tell its size; copy it here and name the copy", key=key
        )
    return int(info["size"])


def local_folder(name: str) -> str:
    """Return a copy in the trainer's cache of the folder at a URL; return other names as they are.

    A GGUF file is converted into a folder.

    Raises:
        MissingError: there is no such folder, or it is empty.
        UnreachableError, DataError: it cannot be read.
        ConfigError: a GGUF file cannot be converted, or a file's size is not known.
    """
    if name.endswith(gguf.SUFFIX):
        return str(gguf.convert(_local_file(name)))
    return str(download(name)) if is_url(name) else name


def download(name: str) -> Path:
    """Return a copy in the trainer's cache of the folder at a URL, made again when a file of it has changed.

    Raises:
        MissingError: there is no such folder, or it is empty.
        UnreachableError, DataError: it cannot be read.
        ConfigError: a file's size is not known.
    """
    filesystem, root = open_filesystem(name)
    root = root.rstrip("/")
    found = with_retries(lambda: filesystem.find(root, detail=True), name)
    files = {str(PurePosixPath(path).relative_to(root)): info for path, info in found.items() if path != root}
    if not files:
        raise MissingError(f"there is no {name}, or it is an empty folder")
    for relative in files:
        if ".." in PurePosixPath(relative).parts:
            raise DataError(f"{name} has a file {relative!r}, whose copy would lie outside its folder")
    return _copies(
        name, filesystem, {relative: (f"{root}/{relative}", info) for relative, info in files.items()}
    )


def _local_file(name: str) -> Path:
    """Return a copy in the trainer's cache of the file at a URL; return a path as it is."""
    if not is_url(name):
        return Path(name)
    filesystem, path = open_filesystem(name)
    info = with_retries(lambda: filesystem.info(path), name)
    target = PurePosixPath(path).name
    return _copies(name, filesystem, {target: (path, info)}) / target


def _copies(name: str, filesystem: Any, files: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Path:
    """Return a folder of the cache with copies of files, given as their names there, paths and metadata."""
    urls = {target: name if name.endswith(f"/{target}") else f"{name}/{target}" for target in files}
    sizes = {target: file_size(info, urls[target]) for target, (_, info) in files.items()}

    def copy(folder: Path) -> None:
        for target, (path, _) in files.items():
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            get = partial(_copy_file, filesystem, path, folder / target, sizes[target])
            with_retries(get, urls[target])

    listed = {
        target: [info["size"], checksum(info), str(info.get("mtime", ""))]
        for target, (_, info) in files.items()
    }
    return artifact("downloads", {"url": name, "files": listed}, copy)


def _copy_file(filesystem: Any, source: str, target: Path, size: int) -> None:
    filesystem.get_file(source, str(target))
    if target.stat().st_size != size:
        raise OSError(f"{target.stat().st_size} bytes came of {size}")


def _one_line(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
