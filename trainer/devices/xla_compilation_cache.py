"""XLA's compilation cache mirrored in a bucket, so that a new machine need not compile again. Used by `xla`.

torch_xla keeps compiled graphs as files named by a hash of their source, and never changes one. So folder and
bucket only exchange missing files, and two machines that write the same file write the same content. A
failure here costs a compilation, never the run.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

from sweeps.text.atomic_file import atomic_write
from trainer.devices.background_calls import BackgroundExecutor

_log = logging.getLogger(__name__)


class GraphMirror:
    """A folder and its copy in a bucket. Its methods never raise.

    Args:
        url: of the copy, as fsspec reads it, such as gs://bucket/graphs.
        folder: torch_xla's cache.
        settled_s: files younger than so many seconds are not uploaded yet: another process of the machine
            may still be writing them.
    """

    def __init__(self, url: str, folder: Path, *, settled_s: float = 5.0) -> None:
        self.url, self._folder, self._settled_s = url.rstrip("/"), folder, settled_s
        self._uploaded: set[str] = set()
        self._broken = False

    def download(self) -> None:
        """Fetch the files that the folder lacks; call it before torch_xla opens the folder."""
        try:
            bucket, root = self._bucket()
            bucket.invalidate_cache()
            if not bucket.exists(root):
                return
            self._uploaded = {path.rpartition("/")[2] for path in bucket.ls(root, detail=False)}
            for name in sorted(self._uploaded - self._local()):
                with atomic_write(self._folder / name) as draft:
                    bucket.get_file(f"{root}/{name}", str(draft))
        except Exception as error:  # noqa: BLE001 - see above; buckets fail in many ways
            self._give_up(error)

    def upload(self) -> None:
        """Write the files that the bucket lacks; without a new file, without a request."""
        if self._broken:
            return
        oldest = time.time() - self._settled_s
        new = [name for name, written in self._new().items() if written <= oldest]
        if not new:
            return
        try:
            bucket, root = self._bucket()
            bucket.makedirs(root, exist_ok=True)
            for name in sorted(new):
                bucket.put_file(str(self._folder / name), f"{root}/{name}")
                self._uploaded.add(name)
        except Exception as error:  # noqa: BLE001 - see above
            self._give_up(error)

    def close(self, within_s: float) -> None:
        """Upload the remaining files once they have settled, and give up after `within_s` seconds."""
        if self._broken or not self._new():
            return
        executor = BackgroundExecutor(self._give_up)
        executor.submit(self._upload_remaining)
        if not executor.shutdown(within_s):
            self._give_up(TimeoutError(f"{within_s:g} s at the end of the run were not enough"))

    def _upload_remaining(self) -> None:
        self.upload()  # what is old enough already, in case that time runs out
        settled = max(self._new().values(), default=0.0) + self._settled_s
        time.sleep(min(max(settled - time.time(), 0.0), self._settled_s))
        self.upload()

    def _new(self) -> dict[str, float]:
        """Return the names that the bucket lacks, with their times of modification."""
        return {name: self._modified_at(name) for name in self._local() - self._uploaded}

    def _local(self) -> set[str]:
        return {path.name for path in self._folder.iterdir() if not path.name.startswith(".")}

    def _modified_at(self, name: str) -> float:
        try:
            return (self._folder / name).stat().st_mtime
        except OSError:  # it was deleted
            return math.inf

    def _bucket(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        found: tuple[Any, str] = url_to_fs(self.url)
        return found

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        _log.warning("compiled graphs are not shared through %s: %s", self.url, error)
