"""Compiled graphs in a bucket, so that a machine that is made anew need not compile them again. Used by
`xla`.

torch_xla keeps them as files in a folder, named by what they were compiled from, and never changes one. So
the folder and the bucket only ever give each other what they lack; two machines that write the same file
write the same thing. What goes wrong here costs a compilation, never the run.
"""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path
from typing import Any

from trainer.devices.background_calls import BackgroundExecutor

_log = logging.getLogger(__name__)


class GraphMirror:
    """A folder and its copy at a URL that fsspec knows, such as gs://bucket/graphs. Never raises.

    Args:
        settled_s: files that are younger wait: another process of the machine may still be writing them.
    """

    def __init__(self, url: str, folder: Path, *, settled_s: float = 5.0) -> None:
        self._url, self._folder, self._settled_s = url.rstrip("/"), folder, settled_s
        self._there: set[str] = set()
        self._broken = False

    def bring(self) -> None:
        """Fetches what the folder lacks. Before torch_xla looks into it."""
        try:
            bucket, root = self._bucket()
            bucket.invalidate_cache()
            if not bucket.exists(root):
                return
            self._there = {path.rpartition("/")[2] for path in bucket.ls(root, detail=False)}
            for name in sorted(self._there - self._here()):
                draft = self._folder / f".{name}.{os.getpid()}.tmp"
                bucket.get_file(f"{root}/{name}", str(draft))
                draft.replace(self._folder / name)
        except Exception as error:  # noqa: BLE001 - see above; buckets fail in many ways
            self._tell(error)

    def send(self) -> None:
        """Writes what the bucket lacks; does not ask it where there is nothing new."""
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
                self._there.add(name)
        except Exception as error:  # noqa: BLE001 - see above
            self._tell(error)

    def close(self, within_s: float) -> None:
        """Writes what the bucket still lacks, once it has settled. What takes longer is left behind."""
        if self._broken or not self._new():
            return
        executor = BackgroundExecutor(self._tell)
        executor.do(self._send_the_rest)
        if not executor.end(within_s):
            self._tell(TimeoutError(f"{within_s:g} s at the end of the run were not enough"))

    def _send_the_rest(self) -> None:
        self.send()  # what is old enough already, in case that time runs out
        settled = max(self._new().values(), default=0.0) + self._settled_s
        time.sleep(min(max(settled - time.time(), 0.0), self._settled_s))
        self.send()

    def _new(self) -> dict[str, float]:
        """What the bucket lacks, and when it was written."""
        return {name: self._written(name) for name in self._here() - self._there}

    def _here(self) -> set[str]:
        return {path.name for path in self._folder.iterdir() if not path.name.startswith(".")}

    def _written(self, name: str) -> float:
        try:
            return (self._folder / name).stat().st_mtime
        except OSError:  # somebody has tidied up
            return math.inf

    def _bucket(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        found: tuple[Any, str] = url_to_fs(self._url)
        return found

    def _tell(self, error: Exception) -> None:
        self._broken = True
        _log.warning("compiled graphs are not shared through %s: %s", self._url, error)
