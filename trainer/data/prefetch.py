"""A feed that prefetches batches in a thread, so that no step waits for files or the tokenizer.

`stream` wraps its feed in one. The thread ends when the feed is closed or garbage-collected. It is a daemon:
a read that hangs must not keep a finished process alive.
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
from trainer.data.feed import Feed
from trainer.errors import DataError, HangingDiskError, UnreachableError

CLOSING_S = 5.0  # `close` waits so long for a thread in the middle of a read
STALLED_S = 900.0  # without a batch; longer than all retries of reading a block
_TICK_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A batch with the feed's state after it, or an error instead."""

    batch: Tensor | None
    state: State | None
    error: BaseException | None = None


class Prefetched(Feed):
    """A feed whose batches are made ahead by a thread, which the first batch starts.

    Errors of the thread are raised by `__next__`. `state` follows the batches that were taken.

    Args:
        feed: from then on used by the thread alone; closed with this one.
        ahead: the most batches in the queue.
        folder: where the text is read from; "" where it comes over the network.
        stalled_s: seconds without a batch until UnreachableError is raised.
    """

    def __init__(self, feed: Feed, *, ahead: int, folder: str = "", stalled_s: float = STALLED_S) -> None:
        self._feed, self._ahead, self._folder, self._stalled_s = feed, ahead, folder, stalled_s
        self._state = feed.state()
        self._worker: _Worker | None = None
        self._next: _Item | None = None
        self._error: BaseException | None = None
        self._closed = False

    def state(self) -> State:
        return self._state

    def restore(self, state: State) -> None:
        if not self._stop_worker():
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
        item, self._next = self._next, None
        if item is None or item.batch is None or item.state is None:
            ended = RuntimeError("the prefetching thread ended without an error")
            self._error = (item and item.error) or ended
            raise self._error
        self._state = item.state
        return item.batch

    def wait(self) -> None:
        if self._next is not None or self._error is not None or self._closed:
            return
        if self._worker is None:
            self._worker = _Worker(self._feed, self._ahead)
            weakref.finalize(self, self._worker.stop.set)
        try:
            self._next = self._wait(self._worker)
        except UnreachableError as error:
            self._next = _Item(batch=None, state=None, error=error)

    def close(self) -> None:
        self._closed = True
        if self._stop_worker():
            self._feed.close()

    def _stop_worker(self) -> bool:
        """Stop the thread and drop its batches; return whether the thread has ended."""
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

    def _wait(self, worker: _Worker) -> _Item:
        began = time.monotonic()
        while True:
            try:
                return worker.items.get(timeout=_TICK_S)
            except queue.Empty:
                if not worker.thread.is_alive() and worker.items.empty():
                    return _Item(batch=None, state=None)
                if time.monotonic() - began > self._stalled_s:
                    problem = f"no training text has come for {self._stalled_s:g} s"
                    if self._folder:
                        advice = "check the disk or the mount"
                        raise HangingDiskError(f"{problem} from {self._folder}; {advice}") from None
                    raise UnreachableError(problem) from None


class _Worker:
    """The thread with its queue. It has no reference to the consumer, which can be garbage-collected."""

    def __init__(self, feed: Feed, ahead: int) -> None:
        self.stop = threading.Event()
        self.items: queue.Queue[_Item] = queue.Queue(ahead)
        self.thread = threading.Thread(
            target=_produce, args=(feed, self.items, self.stop), name="training text", daemon=True
        )
        self.thread.start()


def _produce(feed: Feed, items: queue.Queue[_Item], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            item = _Item(batch=next(feed), state=feed.state())
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            item = _Item(batch=None, state=None, error=error)
        while not stop.is_set():
            try:
                items.put(item, timeout=_TICK_S)
                break
            except queue.Full:
                continue
        if item.error is not None:
            return
