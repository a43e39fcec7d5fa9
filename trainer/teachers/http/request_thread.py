"""Asks a teacher's server from a thread of its own. Used by `look` before a run and by `feed` in it.

The thread runs the event loop in which all requests are made. It lives as long as the `with` block and ends
with it within seconds, requests under way or not; it is a daemon, so that it keeps no process alive.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType

from torch import Tensor

from trainer.config import HttpTeacherConfig
from trainer.losses.candidates import Candidates
from trainer.teachers.http.client import Backoff, Client
from trainer.training.preemption import StopSignal

_NOTICE_S = 0.2  # a signal is noticed within this time
_CLOSE_S = 10.0


class Asker:
    """A context manager.

    Args:
        vocab_size: of the student.
        stop: asked while an answer is waited for.

    Raises:
        ConfigError: the server's key is not there.
    """

    def __init__(
        self,
        config: HttpTeacherConfig,
        *,
        vocab_size: int,
        stop: StopSignal,
        backoff: Backoff | None = None,
    ) -> None:
        self._client = Client(config, vocab_size=vocab_size, backoff=backoff or Backoff())
        self._stop = stop
        self._thread = threading.Thread(target=self._serve, name="remote-teacher", daemon=True)
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    def submit(self, ids_BT: Tensor) -> Future[Candidates]:
        """Begins to ask about a batch; the future may be cancelled."""
        loop, _ = self._ready.result(timeout=_CLOSE_S)
        return asyncio.run_coroutine_threadsafe(self._client.ask(ids_BT.tolist()), loop)

    def wait(self, answer: Future[Candidates]) -> Candidates:
        """The answer.

        Raises:
            TeacherServerError: there is none.
            PreemptedError: a signal came meanwhile.
        """
        while True:
            try:
                return answer.result(timeout=_NOTICE_S)
            except TimeoutError:
                self._stop.raise_if_asked()

    def close(self) -> None:
        """Ends the thread; what was asked is no longer waited for. May be called twice."""
        if not self._thread.is_alive():
            return
        loop, over = self._ready.result(timeout=_CLOSE_S)
        loop.call_soon_threadsafe(over.set)
        self._thread.join(timeout=_CLOSE_S)

    def __enter__(self) -> Asker:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            asyncio.run(self._until_over())
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _until_over(self) -> None:
        """The thread's life: `asyncio.run` cancels what is still under way when this ends."""
        over = asyncio.Event()
        async with self._client:
            self._ready.set_result((asyncio.get_running_loop(), over))
            await over.wait()
