"""SIGTERM and SIGINT as one exception between two steps. Installed by `__main__`, checked by `loop`.

Inside a step (`hold`) the exception waits until the step is done; anywhere else (waiting for another process
to build the teacher, downloading) it is raised at once, because a machine may be gone thirty seconds later.
Processes that share a run end after the same step, though each has its signal at its own time, and some
perhaps none: from `share` to `unshare` a signal is only noted, and at the end of every `hold` all processes
exchange whether one came. A second signal, after `ECHO_S`, exits immediately, without a checkpoint.

Before the first step there is nothing to save. After `leave_early` a process does not wait for imports then:
until it has opened its folder it exits immediately, and after that within `PROMPT_S`, even inside a call that
does not return (but releases the GIL) or a library that swallows the exception.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from trainer.errors import EXIT_PREEMPTED, PreemptedError

if TYPE_CHECKING:
    from trainer.devices.device import Device

# A signal to a process group or a job reaches a trainer twice: directly, and through its worker.
ECHO_S = 1.0
PROMPT_S = 1.0
"""How long an exception may take to end a run that has not trained yet."""
# For what the device still hands over. A preempted machine is gone after 30 s, of which saving takes some.
# Its notice may also come when the run has just finished, before anybody has reported that.
_FINISHED_S, _PREEMPTED_S = 20.0, 10.0
_STDERR = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ELSEWHERE = "SIGTERM"  # the likeliest signal of another process


class StopSignal:
    """The state of a run's signals: none, or a request to end. Does nothing until `install`ed."""

    def __init__(self) -> None:
        self._received: str | None = None
        self._received_at = 0.0
        self._held = 0
        self._ignored = False
        self._raised: PreemptedError | None = None
        self._any: Callable[[bool], bool] | None = None
        self._early: float | None = None  # seconds after which a signal ends a process that has not trained
        self._program = ""
        self._exiting = threading.RLock()  # a second signal may come while the main thread has it

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from now on. To be called in the main thread."""
        for number in _SIGNALS:
            signal.signal(number, self._receive)

    def leave_early(self, program: str) -> None:
        """Let a signal end the process immediately, until `written` and `begun` are called.

        To be called in the main thread of a process of its own, before imports that take long, and before
        `install`: a signal between the two would be an exception that nothing catches yet.

        Args:
            program: its name, for the line on stderr.
        """
        self._early, self._program = 0.0, program
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        # Python's own handlers wait for the main thread, which may be inside of a library's C code.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._watch, args=(reader,), name="stop signal", daemon=True).start()

    def written(self) -> None:
        """Give a signal's exception `PROMPT_S` from now on, to close the run's folder."""
        if self._early is not None:
            self._early = PROMPT_S

    def begun(self) -> None:
        """Wait for the orderly end from now on, as training has begun."""
        self._early = None

    def share(self, any_of_all: Callable[[bool], bool]) -> None:
        """Let all processes of the run end together from now on.

        Args:
            any_of_all: returns whether a flag is set in any process; a collective call.
        """
        self.begun()
        self._any = any_of_all

    def unshare(self) -> None:
        """Let this process end by itself from now on, as it has left the others."""
        self._any = None

    @contextmanager
    def hold(self, where: str) -> Iterator[None]:
        """Defer a signal to the end of the block, where PreemptedError is raised."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        # Of processes that share the run all end at the same block, whichever of them got the signal.
        if not self._held and (self._any(self.received) if self._any else self.received):
            raise PreemptedError(signal_name=self._received or _ELSEWHERE, where=where)

    @contextmanager
    def together(self, where: str) -> Iterator[None]:
        """Do as `hold` in processes that share a run; in a single process, raise a signal at once."""
        if self._any is None:
            yield
        else:
            with self.hold(where):
                yield

    @property
    def received(self) -> bool:
        """Return whether this process has received a signal."""
        return self._received is not None

    def raise_if_asked(self) -> None:
        """Raise PreemptedError if a signal came. For long waits inside a `hold`."""
        if self._received:
            raise PreemptedError(signal_name=self._received)

    @contextmanager
    def unwrapped(self) -> Iterator[None]:
        """Raise the PreemptedError of a signal, whatever a library made of it inside the block.

        After the block the orderly end may take its time.
        """
        try:
            yield
        except Exception as error:
            if self._raised is None or error is self._raised:
                raise
            raise self._raised from error
        finally:
            self.begun()

    def ignore(self) -> None:
        """Ignore signals from now on, as the work is done."""
        self._early, self._ignored = None, True

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a signal end the block at once, although the rest is to be done without them (`ignore`)."""
        before, self._ignored = self._ignored, False
        try:
            self.raise_if_asked()  # one that was only noted, after the last `hold` that processes shared
            yield
        finally:
            self._ignored = before

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._ignored:
            return
        if self._early == 0.0:
            self._leave(number)
        now = time.monotonic()
        if self._received is not None:
            if now - self._received_at >= ECHO_S:
                os._exit(EXIT_PREEMPTED)  # even out of a system call that does not come back
            return
        self._received, self._received_at = signal.Signals(number).name, now
        if not self._held and self._any is None:
            self._raised = PreemptedError(signal_name=self._received)
            raise self._raised

    def _watch(self, reader: int) -> None:
        """Wait for signals, on a thread of its own, and exit if the main thread does not."""
        while numbers := os.read(reader, 1):
            if numbers[0] not in _SIGNALS or self._early is None:
                continue
            time.sleep(self._early)
            if self._early is not None:
                self._leave(numbers[0])

    def _leave(self, number: int) -> None:
        # The main thread and the watching one may both be here. The second waits for the end of the process:
        # the main thread would go on, and print the traceback of a PreemptedError below the line.
        self._exiting.acquire()
        if os.environ.get("RANK", "0") == "0":  # one of the processes that share a run
            name = signal.Signals(number).name
            line = f"{self._program}: stopped by {name} before its first step\n"
            with suppress(OSError):
                os.write(_STDERR, line.encode())
        os._exit(EXIT_PREEMPTED)

    def _forget(self) -> None:
        """Leave the parent's signals alone, in a forked child."""
        self._early = None
        with suppress(ValueError):  # forked by another thread than the main one
            signal.set_wakeup_fd(-1)


@contextmanager
def closing_device(device: Device, stop: StopSignal) -> Iterator[None]:
    """Close the device at the end of the run, with less time for it unless the run has finished."""
    within_s = _PREEMPTED_S
    try:
        yield
        within_s = _FINISHED_S
    finally:
        if not stop.received:  # else a second one ends the process at once
            stop.ignore()
        device.close(within_s)
