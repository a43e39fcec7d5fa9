"""Background calls: in order, never waited for beyond the timeout, and errors reported."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from trainer.devices import background_calls
from trainer.devices.background_calls import BackgroundExecutor, anything_hangs


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set at the end of the test, so that no call outlasts it."""
    event = threading.Event()
    yield event
    event.set()


def test_calls_run_in_order_and_survive_errors() -> None:
    made: list[int] = []
    errors: list[Exception] = []
    calls = BackgroundExecutor(errors.append)
    for number in range(100):
        calls.submit(lambda n=number: made.append(n) if n != 50 else 1 / 0)
    assert calls.shutdown(10)
    assert made == [n for n in range(100) if n != 50]
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert not anything_hangs()


def test_hanging_call_is_abandoned_and_detected(over: threading.Event) -> None:
    calls = BackgroundExecutor(lambda error: None)
    calls.submit(lambda: over.wait(60))
    began = time.monotonic()
    assert not calls.shutdown(0.1)
    assert time.monotonic() - began < 5
    assert anything_hangs()


def test_no_more_wait_than_there_is_room_for(over: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_calls, "MAX_QUEUED", 3)
    calls = BackgroundExecutor(lambda error: None)
    begun = threading.Event()
    calls.submit(lambda: begun.set() or over.wait(60))
    assert begun.wait(10)
    assert [calls.submit(lambda: None) for _ in range(5)] == [True, True, True, False, False]
    over.set()
    assert calls.shutdown(10)


@pytest.mark.parametrize("shared", [False, True])
def test_one_of_several_processes_leaves_without_exit_handlers(shared: bool) -> None:
    code = (
        "import atexit; from trainer.devices.background_calls import leave; "
        f"atexit.register(print, 'handler'); print('flushed'); leave(3, shared={shared})"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (3, ["flushed"] if shared else ["flushed", "handler"])
