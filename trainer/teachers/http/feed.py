"""Batches of text, and what a teacher elsewhere predicts for them, asked for while the student trains.

Used by `stages.distill`: the loop takes batches as from any feed, and the objective takes what the teacher
said of the batch in hand.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data import Feed
from trainer.data.labelled_feed import Taught
from trainer.losses.candidates import Candidates
from trainer.teachers.http.request_thread import Asker


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A batch that the teacher was asked about, and where the text's feed stood before it."""

    ids: Tensor
    answer: Future[Candidates]
    before: State


class TaughtFeed(Taught[Candidates]):
    """A feed that asks ahead. The plain feed that it is made on, and the asker, stay the caller's to close.

    Args:
        prefetch: batches that are asked about ahead of the one in hand.
        device: where the answers go.
    """

    def __init__(self, source: Feed, asker: Asker, *, prefetch: int, device: torch.device) -> None:
        self._source, self._asker, self._prefetch, self._device = source, asker, prefetch, device
        self._window: deque[_Asked] = deque()

    def __next__(self) -> Tensor:
        """The next batch, once the teacher has answered.

        Raises:
            TeacherServerError: it does not.
            PreemptedError: a signal came while it was waited for; the batch is still the next one.
        """
        self._ask_ahead(1 + self._prefetch)
        self._hand_out(self._asker.wait(self._window[0].answer).to(self._device))
        batch = self._window.popleft()
        self._ask_ahead(self._prefetch)
        return batch.ids

    def state(self) -> State:
        return self._window[0].before if self._window else self._source.state()

    def restore(self, state: State) -> None:
        self._source.restore(state)  # first: if it refuses, nothing has changed
        self.close()

    def close(self) -> None:
        """Waits for no answer any more."""
        for asked in self._window:
            asked.answer.cancel()
        self._window.clear()

    def _ask_ahead(self, window: int) -> None:
        while len(self._window) < window:
            before = self._source.state()
            ids_BT = next(self._source)
            self._window.append(_Asked(ids=ids_BT, answer=self._asker.submit(ids_BT), before=before))
