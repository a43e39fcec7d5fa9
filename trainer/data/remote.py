"""Files wherever they are: this machine, `gs://`, `hf://` and whatever else fsspec opens.

Used by `files` for training text, and for tokenizers and models that are named by a URL.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from trainer.cache import artifact
from trainer.data.errors import DataError, MissingError

TRIES = 5
FIRST_WAIT_S = 1.0  # between two tries; it doubles
# What a store knows of a file's content, the best first.
_CHECKSUMS = ("sha256", "md5Hash", "crc32c", "etag", "ETag", "blob_id", "checksum")
# Asking again changes nothing. A ValueError is pyarrow's for a file that is not what it should be.
_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    KeyError,
    MemoryError,
    DataError,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)


def is_url(name: str) -> bool:
    """Whether it names a place by its protocol (`gs://…`), and is no path or hub name."""
    return "://" in name


def open_filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path in it.

    Raises:
        MissingError: nothing opens such URLs here.
    """
    import fsspec

    if url.startswith(("gs://", "gcs://")):
        from gcsfs.core import GCSFileSystem

        # Neither of the defaults does: the listing cache hides what others write, and the package's own
        # class asks the bucket over gRPC first, which takes over a minute where that is not answered.
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "default")
        in_clear = emulator != "default" and not emulator.startswith("https://")
        filesystem = GCSFileSystem(use_listings_cache=False, token="anon" if in_clear else None)
        return filesystem, url.partition("://")[2]
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise MissingError(f"{url!r} cannot be opened here: {_told(error)}") from error
    return filesystem, path


def patiently(read: Callable[[], T], what: str) -> T:
    """What `read` returns, tried again when the network fails, if `what` is a URL.

    Raises:
        MissingError: there is no such file.
        DataError: it cannot be read.
    """
    wait = FIRST_WAIT_S
    for left in reversed(range(TRIES if is_url(what) else 1)):
        try:
            return read()
        except FileNotFoundError as error:
            raise MissingError(f"there is no {what}") from error
        except DataError:
            raise
        except Exception as error:  # every file system has errors of its own
            if isinstance(error, _FINAL) or not left:
                raise DataError(f"cannot read {what}: {_told(error)}") from error
            _log.warning("cannot read %s (%s); trying again in %g s", what, _told(error), wait)
        time.sleep(wait)
        wait *= 2
    raise AssertionError("the last try returns or raises")


def checksum(info: Mapping[str, Any]) -> str:
    """What the store says of a file's content; "" where it says nothing, as for files on this machine."""
    for name in _CHECKSUMS:
        if info.get(name):
            return f"{name}:{info[name]}"
    return ""


def local_folder(name: str) -> str:
    """The folder on this machine that has what the URL's folder has; anything but a URL comes back as it is.

    It is copied into the cache once, and again when a file there has changed.

    Raises:
        MissingError: there is no such folder, or nothing in it.
        DataError: it cannot be read.
    """
    if not is_url(name):
        return name
    filesystem, root = open_filesystem(name)
    root = root.rstrip("/")
    found = patiently(lambda: filesystem.find(root, detail=True), name)
    files = {str(PurePosixPath(path).relative_to(root)): info for path, info in found.items() if path != root}
    if not files:
        raise MissingError(f"there is no {name}, or it is an empty folder")
    for relative in files:
        if ".." in PurePosixPath(relative).parts:
            raise DataError(f"{name} has a file {relative!r}, whose copy would lie outside its folder")
    spec = {
        "url": name,
        "files": {
            relative: [info["size"], checksum(info), str(info.get("mtime", ""))]
            for relative, info in files.items()
        },
    }

    def copy(folder: Path) -> None:
        for relative, info in files.items():
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            get = partial(_copy_file, filesystem, f"{root}/{relative}", target, int(info["size"]))
            patiently(get, f"{name}/{relative}")

    return str(artifact("downloads", spec, copy))


def _copy_file(filesystem: Any, source: str, target: Path, size: int) -> None:
    filesystem.get_file(source, str(target))
    if target.stat().st_size != size:
        raise OSError(f"{target.stat().st_size} bytes came of {size}")


def _told(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
