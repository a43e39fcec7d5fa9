"""Mirror of run folders in a bucket: checkpoints, metrics and logs of each attempt.

In a local store, where run folders are not copied, uploads do nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from sweeps.errors import SweepError
from sweeps.storage.base import Store
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.exchange import Deadline, OutOfTime, UploadConfig
from sweeps.storage.run_files.upload import FolderUpload

__all__ = ["UploadConfig", "Uploader"]

log = logging.getLogger(__name__)

_FINAL_ROUNDS = 3


class Uploader:
    """Background thread that mirrors a run folder to a bucket, from `start` to `close`.

    Errors are warnings in the log: a trial does not fail because of its uploads.

    Args:
        folder: the run folder, as returned by `store.folder(prefix)`.
        prefix: key prefix that no other worker writes to: `runs/000012/attempt-1`.
        without: name of a folder in the run folder that is not mirrored; "" for none.
        timed: see `FolderUpload`; called in the thread.

    Raises:
        ValueError: `folder` is not the folder of a local store.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        prefix: str,
        *,
        config: UploadConfig | None = None,
        without: str = "",
        timed: Callable[[str, int, float], None] = lambda name, size, seconds: None,
    ) -> None:
        self._folder, self._location = folder, store.location(prefix)
        self._deadline = Deadline(config or UploadConfig())
        self._upload: FolderUpload | None = None
        if isinstance(store, Bucket):
            self._upload = FolderUpload(store, folder, prefix, self._deadline, without=without, timed=timed)
        elif folder.resolve() != (own := store.folder(prefix)).resolve():
            raise ValueError(f"the files of {prefix} lie in {own}, not in {folder}")
        self._thread = threading.Thread(target=self._run, name=f"upload {prefix}", daemon=True)
        self._error = ""

    def start(self) -> None:
        """Begin to upload files of the folder as they settle.

        What lies in `checkpoints/` now is an earlier attempt's, of which the bucket shows all or none.
        """
        if self._upload is not None:
            self._upload.inherit()
            self._thread.start()

    def close(
        self,
        timeout: float,
        *,
        leave: Callable[[], bool] | None = None,
        grace: float = 20.0,
        while_moving: bool = False,
    ) -> tuple[str, ...]:
        """Upload all remaining files and stop.

        Args:
            timeout: seconds that this may take.
            leave: polled; once it returns true (the machine is preempted), at most `grace` seconds remain.
            grace: seconds.
            while_moving: whether each part of a file that is stored gives further `timeout` seconds.

        Returns:
            Names of the files whose last content is not in the bucket.
        """
        if self._upload is None:
            return ()
        if self._thread.ident is None:
            self.start()
        self._deadline.join(self._thread, timeout, leave=leave, grace=grace, while_moving=while_moving)
        missing = self._upload.missing()
        if missing:
            named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
            why = self._error or "there was no time left"
            log.warning("%s: %d files were not uploaded (%s): %s", self._location, len(missing), named, why)
        return missing

    def _run(self) -> None:
        assert self._upload is not None  # noqa: S101 - `start` and `close` see to it
        while not self._deadline.is_set:
            config = self._deadline.config
            self._deadline.wait(config.scan_s if self._round(self._upload) else config.longest_wait_s)
        for _ in range(_FINAL_ROUNDS):
            if self._round(self._upload, final=True) and not self._upload.missing():
                return
            self._deadline.back_off(self._deadline.config.first_wait_s)

    def _round(self, upload: FolderUpload, *, final: bool = False) -> bool:
        try:
            upload.round(final=final)
        except OutOfTime:
            return False
        except Exception as error:  # noqa: BLE001 - a failed upload must not end the trial
            message = str(error) if isinstance(error, SweepError) else f"{type(error).__name__}: {error}"
            # One warning per error, not per attempt; after the deadline, `close` logs it.
            if message != self._error and not self._deadline.is_over(0.0):
                log.warning("the upload to %s goes on later: %s", self._location, message)
            self._error = message
            return False
        self._error = ""
        return True
