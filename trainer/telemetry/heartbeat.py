"""`heartbeat.json`: the present phase of a run, and its duration. Built by `__main__`, fed by `run`.

A thread of its own writes it, even while a step compiles for half an hour, or hangs. So readers can tell
apart a process that is gone or frozen (the file is stale), a compilation (`compiling`), and a hanging step
(many times `typical_step_seconds`).
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps.text.atomic_file import atomic_write
from trainer.devices.device import Device
from trainer.telemetry.line import memory_mib
from trainer.text import Lines

SCHEMA = 1
CLOSING_S = 5.0  # timeout of `close`, for a disk that hangs
_TYPICAL_OF = 51  # steps


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a run.

    Args:
        name: loading, compiling, training, evaluating, saving, ending or ended.
        position: stage, step and number of steps, if there is a step.
        began: on the monotonic clock.
    """

    name: str
    detail: str
    position: Mapping[str, str | int]
    began: float


class Heartbeat:
    """A thread that writes the file periodically, from `start` to `close`.

    The threads share immutable values that are replaced, and no lock: a signal's exception may come anywhere
    in the main thread, and could leave a lock taken.

    A failing disk is reported once on stderr, and never ends a run.
    """

    def __init__(self, path: Path, *, device: Device, every_s: float) -> None:
        self._path, self._device, self._every_s = path, device, every_s
        self._phase = Phase(name="loading", detail="", position={}, began=time.monotonic())
        self._began = self._phase.began
        self._steps: deque[float] = deque(maxlen=_TYPICAL_OF)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._warned = False
        self._held_out: float | None = None

    def start(self) -> None:
        """Start the thread, which writes at once."""
        self._thread.start()

    def enter(self, name: str, detail: str = "", **position: str | int) -> None:
        """Begin a phase and end the previous one. Cheap, as the thread does the writing."""
        if not self._over.is_set():
            self._phase = Phase(name=name, detail=detail, position=position, began=time.monotonic())

    def record_step(self, seconds: float | None) -> None:
        """Record the duration of a step; None begins a stage, whose steps are not comparable with others."""
        if seconds is None:
            self._steps = deque(maxlen=_TYPICAL_OF)
        else:
            self._steps.append(seconds)

    def record_held_out(self, loss: float | None) -> None:
        """Record the held-out loss that was last measured within a stage; None: it was not finite."""
        self._held_out = loss

    @contextmanager
    def during(self, name: str, detail: str = "") -> Iterator[None]:
        """Enter a phase for the block, and return to the previous one."""
        before = self._phase
        self.enter(name, detail)
        try:
            yield
        finally:
            self.enter(before.name, before.detail, **before.position)

    def close(self, status: int) -> None:
        """Write that the run has ended, and stop. May be called twice."""
        if self._over.is_set():
            return
        self.enter("ended", f"exit status {status}")
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_S)

    def document(self) -> dict[str, Any]:
        phase, steps, now = self._phase, list(self._steps), time.monotonic()
        return {
            "schema": SCHEMA,
            "phase": phase.name,
            "detail": phase.detail,
            **phase.position,
            "phase_seconds": round(now - phase.began, 3),
            "run_seconds": round(now - self._began, 3),
            "typical_step_seconds": round(statistics.median(steps), 6) if steps else None,
            "held_out_loss": self._held_out,
            **{name: round(value, 1) for name, value in memory_mib(self._device).items()},
            "written_unix_seconds": round(time.time(), 3),
            "every_seconds": self._every_s,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    def _beat(self) -> None:
        while True:
            over = self._over.is_set()
            self.write()
            if over:
                return
            self._over.wait(self._every_s)

    def write(self) -> None:
        try:
            with atomic_write(self._path) as draft:
                draft.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        except (OSError, RuntimeError) as error:  # of the disk; of a device that has failed
            if not self._warned:
                self._warned = True
                reason = getattr(error, "strerror", None) or " ".join(str(error).split())
                message = f"{str(self._path)!r} cannot be written: {reason}; the run goes on"
                Lines(sys.stderr).write(f"trainer: warning: {message}")
