"""Run folders to the bucket and back: checkpoints, metrics and logs of each attempt. Workers call this.

    bulk_scan.py       what is in the folder, what has settled
    bulk_manifest.py   what the bucket holds of it, verified
    bulk_upload.py     one round: files, manifest, what is superseded
    bulk_download.py   the way back
    bulk_wire.py       objects in parts; `bulk_exchange`: one request, and the time that is left

In a store whose folders are the place itself (a local folder), uploads and downloads have nothing to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sweeps.errors import SweepError
from sweeps.storage.base import Store
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.download import FolderDownload
from sweeps.storage.run_files.exchange import Deadline, OutOfTime, UploadConfig
from sweeps.storage.run_files.scan import scan
from sweeps.storage.run_files.upload import FolderUpload

__all__ = ["UploadConfig", "Uploader", "download"]

log = logging.getLogger(__name__)

_POLL_S = 0.1
_SLACK_S = 1.0  # until a request that is under way has noticed the deadline
_LAST_TRIES = 3


def download(
    store: Store, prefix: str, folder: Path, *, pace: UploadConfig | None = None
) -> tuple[str, ...] | None:
    """Bring the run folder that was uploaded to `prefix` into `folder`.

    Returns:
        The names of the files that are there now, each as the last manifest has it; None where there is no
        whole upload, and then nothing was left in `folder`.

    Raises:
        StoreUnavailable: the bucket is out of reach; some files may be there, another call goes on.
        EnvironmentFault: the folder cannot be written.
        ValueError: the store's own folder of this prefix is the place, and `folder` is another.
    """
    if isinstance(store, Bucket):
        return FolderDownload(store, prefix, folder, Deadline(pace or UploadConfig())).run()
    _check_place(store, prefix, folder)
    return tuple(sorted(scan(folder, prefix))) or None


class Uploader:
    """Mirrors a run folder to `prefix` in the background, from `start` to `close`.

    Whatever goes wrong is a warning in the log: a trial does not end because of its uploads.

    Args:
        folder: the run folder, as `store.folder(prefix)` gave it.
        prefix: a key's beginning that no other worker writes to: `runs/000012/attempt-1`.

    Raises:
        ValueError: the store's own folder of this prefix is the place, and `folder` is another.
    """

    def __init__(self, store: Store, folder: Path, prefix: str, *, pace: UploadConfig | None = None) -> None:
        self._folder, self._where = folder, store.location(prefix)
        self._deadline = Deadline(pace or UploadConfig())
        self._upload: FolderUpload | None = None
        if isinstance(store, Bucket):
            self._upload = FolderUpload(store, folder, prefix, self._deadline)
        else:
            _check_place(store, prefix, folder)
        self._thread = threading.Thread(target=self._run, name=f"upload {prefix}", daemon=True)
        self._trouble = ""

    def start(self) -> None:
        """Begin to upload what settles in the folder."""
        if self._upload is not None:
            self._thread.start()

    def close(
        self, timeout: float, *, leave: Callable[[], bool] | None = None, grace: float = 20.0
    ) -> tuple[str, ...]:
        """Upload what is left, and end.

        Args:
            timeout: seconds that this may take.
            leave: asked again and again; once true (the machine is going), `grace` seconds are left at most.

        Returns:
            The names of the files whose last content is not in the bucket; empty if all are.
        """
        if self._upload is None:
            return ()
        self._deadline.hurry(time.monotonic() + timeout)
        if self._thread.ident is None:
            self._thread.start()
        while self._thread.is_alive() and not self._deadline.is_over(_SLACK_S):
            if leave is not None and leave():
                self._deadline.hurry(time.monotonic() + grace)
                leave = None
            self._thread.join(_POLL_S)
        missing = self._upload.missing()
        if missing:
            named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
            why = self._trouble or "there was no time left"
            log.warning("%s: %d files were not uploaded (%s): %s", self._where, len(missing), named, why)
        return missing

    def _run(self) -> None:
        assert self._upload is not None  # noqa: S101 - `start` and `close` see to it
        while not self._deadline.hurried:
            done = self._round(self._upload)
            self._deadline.pause(self._deadline.pace.scan_s if done else self._deadline.pace.longest_wait_s)
        for _ in range(_LAST_TRIES):
            if self._round(self._upload, final=True) and not self._upload.missing():
                return
            self._deadline.rest(self._deadline.pace.first_wait_s)

    def _round(self, upload: FolderUpload, *, final: bool = False) -> bool:
        try:
            upload.round(final=final)
        except OutOfTime:
            return False
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the trial goes on
            told = str(error) if isinstance(error, SweepError) else f"{type(error).__name__}: {error}"
            # Once for each trouble, not for each try; after the deadline `close` tells it.
            if told != self._trouble and not self._deadline.is_over(0.0):
                log.warning("the upload to %s goes on later: %s", self._where, told)
            self._trouble = told
            return False
        self._trouble = ""
        return True


def _check_place(store: Store, prefix: str, folder: Path) -> None:
    place = store.folder(prefix)
    if folder.resolve() != place.resolve():
        raise ValueError(f"the files of {prefix} lie in {place}, not in {folder}")
