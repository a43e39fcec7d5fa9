"""Predictions that a server computes while the student trains. Used by `stages.distill`.

A thread runs the event loop of all requests. It ends with its `with` block, within seconds even if requests
are under way; it is a daemon, so that it keeps no process alive. `check_teacher` asks it once before a run
depends on the server; `HttpFeed` asks it for batches ahead of the one that is trained on.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.state import State
from trainer.config import HttpTeacherConfig
from trainer.data.feed import Feed, LabelledFeed
from trainer.errors import ConfigError, TeacherServerError
from trainer.losses.candidates import NOTHING, Candidates
from trainer.teachers.http.client import Backoff, Client
from trainer.training.preemption import StopSignal

_POLL_S = 0.2  # a signal is noticed within this time
_CLOSE_S = 10.0
_MARGIN = 0.5  # nats above ln V at which a teacher is taken to have another tokenizer
_MIN_LOGPROB = -30.0  # a single token that the teacher considers impossible must not decide


class RequestThread:
    """A context within which the thread accepts requests. Raises ConfigError without a usable API key."""

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
            UnreachableError: the server does not answer.
            TeacherServerError: it refuses the request, or its answer is invalid.
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

    def __exit__(self, *exception: object) -> None:
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


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A batch whose predictions were requested, and the state of the text's feed before it."""

    ids: Tensor
    answer: Future[Candidates]
    before: State


class HttpFeed(LabelledFeed[Candidates]):
    """A feed that prefetches predictions; the caller still closes `source` and `thread`.

    Args:
        source: the plain feed of text.
        prefetch: number of batches requested ahead of the current one.
    """

    def __init__(self, source: Feed, thread: RequestThread, *, prefetch: int, device: torch.device) -> None:
        self._source, self._thread, self._prefetch, self._device = source, thread, prefetch, device
        self._window: deque[_Request] = deque()

    def __next__(self) -> Tensor:
        """Return the next batch once its predictions are there.

        Raises:
            UnreachableError, TeacherServerError: as `RequestThread.wait` raises them.
            PreemptedError: a signal came during the wait; the batch is still the next one.
        """
        self._fill(1 + self._prefetch)
        answer = self._thread.wait(self._window[0].answer)
        self.set_labels(answer.mapped(lambda tensor: tensor.to(self._device, non_blocking=True)))
        request = self._window.popleft()
        self._fill(self._prefetch)
        return request.ids

    def state(self) -> State:
        return self._window[0].before if self._window else self._source.state()

    def restore(self, state: State) -> None:
        self._source.restore(state)  # first: if it raises, nothing has changed
        self.close()

    def close(self) -> None:
        """Cancel the requests under way."""
        for request in self._window:
            request.answer.cancel()
        self._window.clear()

    def _fill(self, window: int) -> None:
        while len(self._window) < window:
            before = self._source.state()
            ids_BT = next(self._source)
            self._window.append(_Request(ids=ids_BT, answer=self._thread.submit(ids_BT), before=before))


def check_teacher(
    thread: RequestThread, config: HttpTeacherConfig, ids_BT: Tensor, *, vocab_size: int
) -> None:
    """Request predictions for a little held-out text and check that the teacher has the same tokenizer.

    Raises:
        ConfigError: it refuses, or its token ids seem to mean something else.
        UnreachableError: it does not answer.
        TeacherServerError: the answer is invalid.
        PreemptedError: a signal came meanwhile.
    """
    if config.top_k > vocab_size:
        raise ConfigError(
            f"{config.top_k} is more than the vocabulary has ({vocab_size}); write that at most",
            key="stage3.teacher.top_k",
        )
    try:
        candidates = thread.wait(thread.submit(ids_BT))
    except TeacherServerError as error:
        if error.status is None:
            raise
        raise ConfigError(str(error), key="stage3.teacher") from error
    same_BPC = candidates.ids == ids_BT[:, 1:].unsqueeze(-1)  # each token of the text is among the candidates
    logprobs_BP = candidates.logprobs.masked_fill(~same_BPC, NOTHING).amax(dim=-1)
    loss, uniform = float(-logprobs_BP.clamp_(min=_MIN_LOGPROB).mean()), math.log(vocab_size)
    if loss > uniform + _MARGIN:
        raise ConfigError(
            f"it predicts held-out text at {loss:.2f} nats per token, where guessing costs {uniform:.2f}: "
            "its token ids must mean other tokens; serve a model with the student's tokenizer",
            key="stage3.teacher.model",
        )
