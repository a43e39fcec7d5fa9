"""A thread that sends requests to a teacher's server. Used by `health_check` before a run and by `feed`.

The thread runs the event loop of all requests. It ends with the `with` block, within seconds even if requests
are under way; it is a daemon, so that it keeps no process alive.
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

_POLL_S = 0.2  # a signal is noticed within this time
_CLOSE_S = 10.0


class RequestThread:
    """A context manager within which the thread accepts requests.

    Args:
        config: of the teacher.
        vocab_size: of the student.
        stop: polled while waiting for an answer.
        backoff: between the retries of a request.

    Raises:
        ConfigError: the environment has no usable API key.
    """

    def __init__(
        self, config: HttpTeacherConfig, *, vocab_size: int, stop: StopSignal, backoff: Backoff | None = None
    ) -> None:
        self._client = Client(config, vocab_size=vocab_size, backoff=backoff or Backoff())
        self._stop = stop
        self._thread = threading.Thread(target=self._serve, name="remote-teacher", daemon=True)
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    def submit(self, ids_BT: Tensor) -> Future[Candidates]:
        """Start the request for a batch of token ids [B, T]; the future may be cancelled."""
        loop, _ = self._ready.result(timeout=_CLOSE_S)
        return asyncio.run_coroutine_threadsafe(self._client.ask(ids_BT.tolist()), loop)

    def wait(self, answer: Future[Candidates]) -> Candidates:
        """Wait for an answer and return it.

        Raises:
            TeacherServerError: the request failed.
            PreemptedError: a signal came meanwhile.
        """
        while True:
            try:
                return answer.result(timeout=_POLL_S)
            except TimeoutError:
                self._stop.raise_if_asked()

    def close(self) -> None:
        """End the thread and cancel the requests under way. May be called twice."""
        if not self._thread.is_alive():
            return
        loop, closed = self._ready.result(timeout=_CLOSE_S)
        loop.call_soon_threadsafe(closed.set)
        self._thread.join(timeout=_CLOSE_S)

    def __enter__(self) -> RequestThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            asyncio.run(self._until_closed())
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _until_closed(self) -> None:
        """Wait for `close`; at its end `asyncio.run` cancels the requests under way."""
        closed = asyncio.Event()
        async with self._client:
            self._ready.set_result((asyncio.get_running_loop(), closed))
            await closed.wait()
