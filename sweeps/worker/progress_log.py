"""Progress and losses of a running program from its `metrics.jsonl`, one JSON object a line.

The trainer writes `stage`, `step`, `of`, `done` and `loss`; any other program may write the same. A line that
is no JSON or longer than `MAX_LINE` bytes is skipped, and every number and text is checked.
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
"""Bytes read per call of `LossCurve.points`, about a second's work; a heartbeat must not wait longer."""

_MAX_POINTS = 8192
_STAGE_CHARACTERS = 100
_SHOWN = ("stage", "step", "of", "done", "loss")
_LAST_STAGE = "stage2"
"""Losses of trials are compared in the trainer's last stage only: Stage 1.9 logs a different loss."""

Point = tuple[float, float]
"""A step and the loss there."""


def progress(folder: Path) -> dict[str, Value]:
    """Return stage, step, of, done and loss as last written to `metrics.jsonl`; {} if there is nothing."""
    for line in reversed(process.last_lines(folder / METRICS_FILE, count=2).splitlines()):
        try:
            written = json_reader.parse(line)
        except ValueError:
            continue  # the last line may be half-written
        if isinstance(written, dict):
            shown = {name: _shown(written.get(name)) for name in _SHOWN}
            return {name: value for name, value in shown.items() if value is not None}
    return {}


class LossCurve:
    """Losses in a growing `metrics.jsonl`: each line is read once. Threads may share it.

    Memory is bounded: beyond `_MAX_POINTS` losses every second one is dropped, again and again.

    Args:
        folder: the run folder of the program.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / METRICS_FILE
        self._lock = threading.Lock()
        self._warned = False
        self._reset()

    def points(self, count: int = 64) -> tuple[Point, ...]:
        """Return the losses so far by ascending step, thinned to at most `count` points."""
        with self._lock:
            try:
                with open_regular(self._file) as file:
                    self._read(file)
            except OSError:
                pass  # not there yet, or no file at all
            found = sorted((self._found | dict(self._unfinished)).items())
        return tuple(found[:: max(1, -(-len(found) // count))])

    def _reset(self) -> None:
        self._offset = 0
        self._found: dict[float, float] = {}  # step → loss
        self._unfinished: list[Point] = []  # of a last line without a newline
        self._inside_long_line = False
        self._stride, self._count = 1, 0  # keep every stride-th of so many losses

    def _read(self, file: IO[bytes]) -> None:
        if file.seek(0, os.SEEK_END) < self._offset:  # the program truncated it
            self._reset()
        file.seek(self._offset)
        end = self._offset + AT_ONCE
        self._unfinished = []
        while self._offset < end and (line := file.readline(MAX_LINE)):
            is_ended = line.endswith(b"\n")
            if not is_ended and len(line) < MAX_LINE:  # the end of the file; it may be half a line
                self._unfinished = [] if self._inside_long_line else self._point(line, warn=False)
                return
            self._offset += len(line)
            if is_ended and not self._inside_long_line:
                self._add(self._point(line, warn=True))
            elif not is_ended:
                self._warn(f"longer than {MAX_LINE} bytes")
            self._inside_long_line = not is_ended

    def _point(self, line: bytes, *, warn: bool) -> list[Point]:
        """Return the line's loss in a list, or [] if it has none of the last stage."""
        if not line.strip():
            return []
        try:
            written = json_reader.parse(line)
        except ValueError as error:
            if warn:
                self._warn(str(error))
            return []
        if not isinstance(written, dict) or written.get("stage", _LAST_STAGE) != _LAST_STAGE:
            return []
        step, loss = storable.number(written.get("step")), storable.number(written.get("loss"))
        return [] if step is None or loss is None else [(step, loss)]

    def _add(self, points: list[Point]) -> None:
        for step, loss in points:
            if self._count % self._stride == 0:
                self._found[step] = loss
            self._count += 1
        if len(self._found) > _MAX_POINTS:
            self._found = dict(sorted(self._found.items())[::2])
            self._stride *= 2

    def _warn(self, why: str) -> None:
        """Warn once per file, not for each of a million lines."""
        if not self._warned:
            self._warned = True
            log.warning("%s: a line is left out, and so is every other of its kind: %s", self._file, why)


def _shown(value: Any) -> Value | None:
    """Return the value if a record can hold it and a person can read it."""
    return storable.line(value, _STAGE_CHARACTERS) if isinstance(value, str) else storable.number(value)
