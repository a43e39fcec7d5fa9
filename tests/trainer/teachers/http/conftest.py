"""A teacher with a vocabulary of eleven tokens behind a fake server, and its clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from fake_vllm import VOCABULARY, FakeVllm, bigrams

from trainer.config import HttpTeacherConfig
from trainer.teachers.http.client import Backoff
from trainer.teachers.http.feed import RequestThread
from trainer.training.preemption import StopSignal

FAST = Backoff(first_s=0.01, most_s=0.02)


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    with FakeVllm(bigrams, vocab_size=VOCABULARY) as running:
        yield running


@pytest.fixture
def configure(server: FakeVllm) -> Callable[..., HttpTeacherConfig]:
    """A configuration that uses the server, with a short patience."""

    def make(**changes: object) -> HttpTeacherConfig:
        given: dict[str, object] = {
            "url": server.url,
            "model": "teacher",
            "top_k": 3,
            "timeout_s": 5.0,
            "patience_s": 10.0,
            "prefetch": 2,
            "api_key_env": None,
        }
        return HttpTeacherConfig(kind="http", **(given | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def open_thread(configure: Callable[..., HttpTeacherConfig]) -> Iterator[Callable[..., RequestThread]]:
    """Open request threads, all closed at the end; their threads must be gone then."""
    opened: list[RequestThread] = []

    def make(*, stop: StopSignal | None = None, **changes: object) -> RequestThread:
        made = RequestThread(
            configure(**changes), vocab_size=VOCABULARY, stop=stop or StopSignal(), backoff=FAST
        )
        opened.append(made.__enter__())
        return made

    yield make
    for each in opened:
        each.close()
    assert "remote-teacher" not in {thread.name for thread in threading.enumerate()}
