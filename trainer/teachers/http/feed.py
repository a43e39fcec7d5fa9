"""Batches of text with predictions that a server computes while the student trains.

Used by `stages.distill`: the loop takes batches as from any feed, and the objective takes the predictions of
the current batch.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data import Feed
from trainer.data.labelled_feed import LabelledFeed
from trainer.losses.candidates import Candidates
from trainer.teachers.http.request_thread import RequestThread


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
        thread: sends the requests.
        prefetch: number of batches requested ahead of the current one.
        device: receives the predictions.
    """

    def __init__(self, source: Feed, thread: RequestThread, *, prefetch: int, device: torch.device) -> None:
        self._source, self._thread, self._prefetch, self._device = source, thread, prefetch, device
        self._window: deque[_Request] = deque()

    def __next__(self) -> Tensor:
        """Return the next batch once its predictions are there.

        Raises:
            TeacherServerError: the server does not answer.
            PreemptedError: a signal came during the wait; the batch is still the next one.
        """
        self._fill(1 + self._prefetch)
        self.set_labels(self._thread.wait(self._window[0].answer).to(self._device))
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
