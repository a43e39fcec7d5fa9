"""Storage URLs as users type them: a path, `file:///…`, `gs://bucket/prefix/NAME`, `s3://…`, `az://…`.

A path stays as it was typed (`./sweep-store/x`), since it is printed again. Only `~/…` is written out: no
shell does that in `--storage=~/x`, in a file or in Python.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from sweeps.errors import InputError, StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.bucket_url import GS, parse_url
from sweeps.storage.local import LocalStore

if TYPE_CHECKING:
    from sweeps.storage.gcs.store import GcsStore
    from sweeps.storage.objects.store import ObjectStore
    from sweeps.storage.retries import RetryPolicy


def open_store(url: str, *, first_answer_s: float | None = None) -> Store:
    """Return the store at `url` without contacting or creating anything.

    Args:
        first_answer_s: of a bucket: seconds in which its service has to answer for the first time; None for
            as long as any later request may take.

    Raises:
        InputError: it is no URL of a store.
    """
    if not is_remote(url):
        return LocalStore(local_path(url))
    from sweeps.storage.retries import RetryPolicy

    return open_bucket(url, None if first_answer_s is None else RetryPolicy(first_answer_s=first_answer_s))


def open_bucket(url: str, retries: RetryPolicy | None = None) -> GcsStore | ObjectStore:
    """Return the store at the URL of a bucket without contacting it. Raises `InputError`."""
    if not url.startswith(GS):
        from sweeps.storage.objects.store import ObjectStore

        return ObjectStore(url, retries=retries)
    from sweeps.storage.gcs.store import GcsStore

    return GcsStore(url, retries=retries)


def is_remote(url: str) -> bool:
    """Return whether the URL names a bucket, not a folder. Raises `InputError` for an unknown scheme."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return False
    if scheme not in ("file", "gs", "s3", "az"):
        meant = {"gcs": "gs", "s3a": "s3", "azure": "az"}.get(scheme)
        rest = url.partition("://")[2]
        advice = f"write {meant}://{rest}" if meant else "give a path, file:///…, gs://…, s3://… or az://…"
        raise InputError(f"{url}: unknown storage {scheme}://; {advice}")
    return scheme != "file"


def require_url(url: str) -> None:
    """Return if it is the URL of a store, which is not contacted. Raises `InputError`."""
    if is_remote(url):
        parse_url(url)
    else:
        local_path(url)


def local_path(url: str) -> str:
    """Return a local path as typed, `~` written out, or the path of a file:// URL. Raises `InputError`."""
    if is_remote(url):
        raise InputError(f"{url}: this is a bucket, not a folder")
    if not url.startswith("file://"):
        if not url:
            raise InputError(
                "--storage is empty; give a path, file:///…, gs://bucket/prefix, s3://bucket/prefix or "
                "az://container/prefix"
            )
        # A folder called `~` is a trap: `rm -r ~` removes another one.
        return os.path.expanduser(url)  # noqa: PTH111 - keeps the `./` as the user typed it
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InputError(
            f"{url}: a file URL has three slashes, file:///folder; for a relative path leave out file:"
        )
    return unquote(parts.path)


def subfolders(url: str, *, first_answer_s: float | None = None) -> list[str]:
    """Return the names of the folders in a folder or under a prefix, without hidden ones, sorted.

    Args: see `open_store`.

    Raises:
        StoreUnavailable: it cannot be listed.
    """
    if is_remote(url):
        found = list(cast("GcsStore | ObjectStore", open_store(url, first_answer_s=first_answer_s)).folders())
    else:
        try:
            with os.scandir(local_path(url)) as entries:
                found = [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            found = []
        except OSError as error:
            raise StoreUnavailable(f"{url}: cannot list: {(error.strerror or str(error)).lower()}") from None
    return sorted(name for name in found if _is_name(name))


def _is_name(name: str) -> bool:
    """Return whether it can be the name of a sweep."""
    unfit = not name or name.startswith(".") or "/" in name or not name.isprintable()
    return not unfit and len(name.encode("utf-8", "replace")) <= 200


def join(url: str, name: str) -> str:
    """Return the URL of `name` under `url`. Raises `InputError` if `name` is no name of a folder."""
    if not _is_name(name):
        raise InputError(f"--name {name!r}: a sweep's name is one folder's name")
    if is_remote(url):
        joined = f"{_without_last_slash(url)}/{name}"
        parse_url(joined)
        return joined
    return os.path.join(local_path(url), name)  # noqa: PTH118 - keeps the `./` as the user typed it


def parent(url: str) -> str:
    """Return the URL of the folder that contains `url`. Raises `InputError` for a bucket itself."""
    if is_remote(url):
        _, prefix = parse_url(url)
        if not prefix:
            raise InputError(f"{url}: a whole bucket lies in no folder; give {url.rstrip('/')}/NAME")
        return _without_last_slash(url).rpartition("/")[0]
    return os.path.dirname(local_path(url).rstrip("/")) or ("/" if url.startswith("/") else ".")  # noqa: PTH120


def name_of(url: str) -> str:
    """Return the last part of the URL, which is a sweep's name."""
    if is_remote(url):
        return parse_url(url)[1].rpartition("/")[2]
    return os.path.basename(os.path.abspath(local_path(url)))  # noqa: PTH100, PTH119 - `.` has a name, too


def _without_last_slash(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rstrip("/")
