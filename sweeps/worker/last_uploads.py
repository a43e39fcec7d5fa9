"""Upload of the last files of a finished trial, in the background: it needs neither lease nor device."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LastUploads:
    """Background thread that closes the uploader of one finished trial at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def begin(self, close: Callable[[], object]) -> None:
        """Make the call in the background, after the one before.

        Args:
            close: returns in limited time, the sooner after a stop request.
        """
        self.wait()
        self._thread = threading.Thread(target=close, name="last uploads", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last call has returned."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
