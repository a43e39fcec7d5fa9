"""What a running program says of itself in `metrics.jsonl`, one JSON object a line. `heartbeat` reads it.

The trainer writes `stage`, `step`, `of`, `done` and `loss`; any program may, and anything else: a line that
is no JSON, or is longer than `MAX_LINE` bytes, is passed over, and no number or text is taken unchecked.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import IO, Any

from sweeps.space.definition import Value
from sweeps.text import json_reader
from sweeps.text.regular_file import open_regular
from sweeps.trials import storable
from sweeps.worker import process

log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"

MAX_LINE = 256 * 1024
AT_ONCE = 64 * 1024**2
"""Bytes that one `LossCurve.read` takes in, a second's work: a heartbeat does not wait for gigabytes."""

_KEPT = 8192
_STAGE_CHARACTERS = 100
_SHOWN = ("stage", "step", "of", "done", "loss")
_LAST_STAGE = "stage2"
"""Losses of trials are compared in the trainer's last stage only: Stage 1.9 logs another loss."""

Point = tuple[float, float]
"""A step and the loss there."""


def progress(folder: Path) -> dict[str, Value]:
    """Return what the program last wrote to `metrics.jsonl`: stage, step, of, done, loss; {} if nothing."""
    for line in reversed(process.last_lines(folder / METRICS_FILE, count=2).splitlines()):
        try:
            written = json_reader.parse(line)
        except ValueError:
            continue  # the last line may be half-written
        if isinstance(written, dict):
            shown = {name: _shown(written.get(name)) for name in _SHOWN}
            return {name: value for name, value in shown.items() if value is not None}
    return {}


def curve(folder: Path, points: int = 64) -> tuple[Point, ...]:
    """Return the losses that the program has logged, thinned to about so many points."""
    return LossCurve(folder).points(points)


class LossCurve:
    """The losses in a `metrics.jsonl` that grows: each line is read once, by whichever thread asks.

    Memory does not grow with the file: of more than `_KEPT` losses every second one is forgotten, and so on.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / METRICS_FILE
        self._lock = threading.Lock()
        self._complained = False
        self._begin()

    def points(self, count: int = 64) -> tuple[Point, ...]:
        """Return the losses so far by ascending step, thinned to about so many."""
        with self._lock:
            try:
                with open_regular(self._file) as file:
                    self._read(file)
            except OSError:
                pass  # not there yet, or no file at all
            found = sorted((self._found | dict(self._unfinished)).items())
        return tuple(found[:: max(1, -(-len(found) // count))])

    def _begin(self) -> None:
        self._offset = 0
        self._found: dict[float, float] = {}
        self._unfinished: list[Point] = []
        self._inside_long_line = False
        self._stride, self._met = 1, 0

    def _read(self, file: IO[bytes]) -> None:
        if file.seek(0, os.SEEK_END) < self._offset:  # the program began it anew
            self._begin()
        file.seek(self._offset)
        end = self._offset + AT_ONCE
        self._unfinished = []
        while self._offset < end and (line := file.readline(MAX_LINE)):
            is_ended = line.endswith(b"\n")
            if not is_ended and len(line) < MAX_LINE:  # the end of the file; it may be half a line
                self._unfinished = [] if self._inside_long_line else self._point(line, complain=False)
                return
            self._offset += len(line)
            if is_ended and not self._inside_long_line:
                self._keep(self._point(line, complain=True))
            elif not is_ended:
                self._complain(f"longer than {MAX_LINE} bytes")
            self._inside_long_line = not is_ended

    def _point(self, line: bytes, *, complain: bool) -> list[Point]:
        """The line's loss, if it has one of the last stage."""
        if not line.strip():
            return []
        try:
            written = json_reader.parse(line)
        except ValueError as error:
            if complain:
                self._complain(str(error))
            return []
        if not isinstance(written, dict) or written.get("stage", _LAST_STAGE) != _LAST_STAGE:
            return []
        step, loss = storable.number(written.get("step")), storable.number(written.get("loss"))
        return [] if step is None or loss is None else [(step, loss)]

    def _keep(self, points: list[Point]) -> None:
        for step, loss in points:
            if self._met % self._stride == 0:
                self._found[step] = loss
            self._met += 1
        if len(self._found) > _KEPT:
            self._found = dict(sorted(self._found.items())[::2])
            self._stride *= 2

    def _complain(self, why: str) -> None:
        """Once for a file, not for each of a million lines."""
        if not self._complained:
            self._complained = True
            log.warning("%s: a line is left out, and so is every other of its kind: %s", self._file, why)


def _shown(value: Any) -> Value | None:
    """The value if a record can hold it and a person can read it."""
    return storable.line(value, _STAGE_CHARACTERS) if isinstance(value, str) else storable.number(value)
