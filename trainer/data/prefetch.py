"""Batches made ahead, on a thread of their own, so that no step waits for files or the tokenizer.

`stream` wraps its feed in one. The thread ends with the feed: when it is closed, when nothing refers to it
any more, and with the process: it is a daemon, for a read that hangs must not keep a finished process alive.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from dataclasses import dataclass

from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data.errors import DataError
from trainer.data.feed import Feed

CLOSING_S = 5.0  # that `close` waits for a thread in the middle of a read
STALLED_S = 900.0  # without a batch; longer than all tries at reading a block
_TICK_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A batch and where the feed stood after it, or what went wrong instead."""

    batch: Tensor | None
    state: State | None
    error: BaseException | None = None


class Prefetched(Feed):
    """A feed whose batches are made before they are asked for. The thread starts with the first.

    What it raises, the one who asks gets. `state` is that of the batches which were taken, not of those made.

    Args:
        feed: used by the thread alone from then on; closed with this one.
        ahead: the most batches that wait.
    """

    def __init__(self, feed: Feed, *, ahead: int, stalled_s: float = STALLED_S) -> None:
        self._feed, self._ahead, self._stalled_s = feed, ahead, stalled_s
        self._state = feed.state()
        self._worker: _Worker | None = None
        self._next: _Made | None = None
        self._error: BaseException | None = None
        self._closed = False

    def state(self) -> State:
        return self._state

    def restore(self, state: State) -> None:
        if not self._halt():
            raise DataError("a read of training text hangs; the feed cannot be set to another place")
        try:
            self._feed.restore(state)
        except BaseException:
            self._feed.restore(self._state)
            raise
        self._state, self._error = self._feed.state(), None

    def __next__(self) -> Tensor:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise StopIteration
        self.wait()
        made, self._next = self._next, None
        if made is None or made.batch is None or made.state is None:
            ended = RuntimeError("the prefetching thread ended without a word")
            self._error = (made and made.error) or ended
            raise self._error
        self._state = made.state
        return made.batch

    def wait(self) -> None:
        if self._next is not None or self._error is not None or self._closed:
            return
        if self._worker is None:
            self._worker = _Worker(self._feed, self._ahead)
            weakref.finalize(self, self._worker.stop.set)
        try:
            self._next = self._wait(self._worker)
        except DataError as error:
            self._next = _Made(batch=None, state=None, error=error)

    def close(self) -> None:
        self._closed = True
        if self._halt():
            self._feed.close()

    def _halt(self) -> bool:
        """Whether the feed is nobody's now."""
        worker, self._worker, self._next = self._worker, None, None
        if worker is None:
            return True
        worker.stop.set()
        worker.thread.join(CLOSING_S)
        if worker.thread.is_alive():
            _log.warning(
                "a read of training text is still under way after %g s; it is left behind", CLOSING_S
            )
        return not worker.thread.is_alive()

    def _wait(self, worker: _Worker) -> _Made:
        began = time.monotonic()
        while True:
            try:
                return worker.made.get(timeout=_TICK_S)
            except queue.Empty:
                if not worker.thread.is_alive() and worker.made.empty():
                    return _Made(batch=None, state=None)
                if time.monotonic() - began > self._stalled_s:
                    raise DataError(f"no training text has come for {self._stalled_s:g} s") from None


class _Worker:
    """The thread and what it shares. It refers to the feed, not to whoever takes the batches."""

    def __init__(self, feed: Feed, ahead: int) -> None:
        self.stop = threading.Event()
        self.made: queue.Queue[_Made] = queue.Queue(ahead)
        self.thread = threading.Thread(
            target=_make, args=(feed, self.made, self.stop), name="training text", daemon=True
        )
        self.thread.start()


def _make(feed: Feed, made: queue.Queue[_Made], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            item = _Made(batch=next(feed), state=feed.state())
        except BaseException as error:  # noqa: BLE001 - whoever takes the batches raises it
            item = _Made(batch=None, state=None, error=error)
        while not stop.is_set():
            try:
                made.put(item, timeout=_TICK_S)
                break
            except queue.Full:
                continue
        if item.error is not None:
            return
