"""trainer.data.prefetch: the same batches, ahead of time; the thread always ends with the feed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.checkpoint.state import State, StateError
from trainer.data import prefetch
from trainer.data.feed import Feed
from trainer.data.prefetch import Prefetched
from trainer.errors import DataError, HangingDiskError, UnreachableError

AHEAD = 4


def open_feed(feed: Feed, **more: Any) -> Prefetched:
    return Prefetched(feed, ahead=AHEAD, **more)


class Counting(Feed):
    """Batches 0, 1, 2 …, with a callback at one of them."""

    def __init__(self, at: int = -1, happens: Callable[[], None] = lambda: None) -> None:
        self.made, self.at, self.happens = 0, at, happens
        self.closed = False

    def state(self) -> State:
        return State(values={"made": self.made})

    def restore(self, state: State) -> None:
        if "made" not in state.values:
            raise StateError("batches", "nonsense")
        self.made = state.values["made"]

    def __next__(self) -> torch.Tensor:
        if self.made == self.at:
            self.happens()
        self.made += 1
        return torch.tensor([self.made - 1])

    def close(self) -> None:
        self.closed = True


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "training text"]


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_the_batches_are_the_same_and_no_more_than_allowed_wait() -> None:
    inner = Counting()
    with open_feed(inner) as feed:
        assert [int(next(feed)) for _ in range(10)] == list(range(10))
        assert wait_for(lambda: inner.made >= 10 + AHEAD)
        time.sleep(0.05)
        assert inner.made <= 10 + AHEAD + 1  # and one in the hand of whoever made it


def test_thread_lives_from_first_batch_to_close() -> None:
    inner = Counting()
    feed = open_feed(inner)
    assert not threads()
    next(feed)
    assert len(threads()) == 1
    feed.close()
    assert not threads()
    assert inner.closed
    feed.close()
    with pytest.raises(StopIteration):
        next(feed)


def test_state_counts_batches_taken() -> None:
    inner = Counting()
    with open_feed(inner) as feed:
        assert feed.state().values == {"made": 0}
        next(feed), next(feed)
        assert wait_for(lambda: inner.made > 3)
        assert feed.state().values == {"made": 2}


def test_restoring_forgets_what_was_made_ahead() -> None:
    with open_feed(Counting()) as feed:
        next(feed)
        feed.restore(State(values={"made": 50}))
        assert feed.state().values == {"made": 50}
        assert int(next(feed)) == 50


def test_wait_takes_nothing_and_keeps_errors() -> None:
    def fail() -> None:
        raise DataError("gone")

    with open_feed(Counting(at=1, happens=fail)) as feed:
        for _ in range(2):
            feed.wait()
        assert feed.state() == State(values={"made": 0})
        assert next(feed).item() == 0
        assert feed.state() == State(values={"made": 1})
        for _ in range(2):
            feed.wait()
        with pytest.raises(DataError, match="gone"):
            next(feed)


def test_a_batch_that_was_waited_for_is_forgotten_with_its_place() -> None:
    with open_feed(Counting()) as feed:
        feed.wait()
        feed.restore(State(values={"made": 7}))
        assert next(feed).item() == 7


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    with open_feed(Counting()) as feed:
        next(feed)
        with pytest.raises(StateError):
            feed.restore(State())
        assert feed.state().values == {"made": 1}
        assert int(next(feed)) == 1


def test_error_is_raised_after_earlier_batches() -> None:
    def fail() -> None:
        raise DataError("the file is gone")

    with open_feed(Counting(at=2, happens=fail)) as feed:
        assert [int(next(feed)), int(next(feed))] == [0, 1]
        for _ in range(2):
            with pytest.raises(DataError, match="the file is gone"):
                next(feed)
        assert wait_for(lambda: not threads())


def test_hanging_read_does_not_delay_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prefetch, "CLOSING_S", 0.2)
    hanging = threading.Event()
    inner = Counting(at=1, happens=lambda: hanging.wait(30) and None)
    feed = open_feed(inner)
    next(feed)
    began = time.monotonic()
    feed.close()
    assert time.monotonic() - began < 10
    assert "still under way" in caplog.text
    assert not inner.closed  # it is in use
    assert all(thread.daemon for thread in threads())
    hanging.set()
    assert wait_for(lambda: not threads())


@pytest.mark.parametrize(
    ("folder", "kind", "message"),
    [
        ("", UnreachableError, r"no training text has come for 0\.3 s$"),
        ("/mnt/a", HangingDiskError, r"for 0\.3 s from /mnt/a; check the disk or the mount$"),
    ],
)
def test_hanging_read_is_reported(
    folder: str, kind: type[UnreachableError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "CLOSING_S", 0.1)
    hanging = threading.Event()
    feed = open_feed(Counting(at=0, happens=lambda: hanging.wait(30) and None), stalled_s=0.3, folder=folder)
    with pytest.raises(UnreachableError, match=message) as raised:
        next(feed)
    assert type(raised.value) is kind
    with pytest.raises(DataError, match="hangs"):
        feed.restore(State(values={"made": 0}))
    hanging.set()
    assert wait_for(lambda: not threads())


def test_a_feed_that_nobody_holds_any_more_ends_its_thread() -> None:
    feed = open_feed(Counting())
    next(feed)
    del feed
    gc.collect()
    assert wait_for(lambda: not threads())
