"""Progress and losses of a running program from its `metrics.jsonl`, one JSON object a line.

The trainer writes `stage`, `step`, `of` and `done` with `loss` or `held_out_loss`; any other program may
write the same. A line that is no JSON or longer than `MAX_LINE` bytes is skipped, and every number and text
is checked.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from pathlib import Path
from typing import IO, Any, NamedTuple

from sweeps.programs import process
from sweeps.space.definition import Value
from sweeps.text import json_reader
from sweeps.text.regular_file import open_regular
from sweeps.trials import storable
from sweeps.trials.record import LOSS

log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
HELD_OUT = "held_out_loss"

MAX_LINE = 256 * 1024
AT_ONCE = 64 * 1024**2
"""Bytes read per call of `LossCurve.curve`, about a second's work; a heartbeat must not wait longer."""

_MAX_POINTS = 8192
_STAGE_CHARACTERS = 100
_SHOWN = ("stage", "step", "of", "done", LOSS, HELD_OUT)
_TRAINING_STAGE = "stage2"
"""Training losses are compared in this stage of the trainer only: the other stages minimise other losses."""

Point = tuple[float, float]
"""A step and the loss there."""


class Curve(NamedTuple):
    """The losses of a trial by which it is compared with others.

    Args:
        points: by ascending step; finite.
        of: which losses they are, as in `Trial.curve_of`.
    """

    points: tuple[Point, ...] = ()
    of: str = LOSS


class _Logged(NamedTuple):
    of: str
    step: float
    loss: float | None  # None: not finite


def progress(folder: Path) -> dict[str, Value]:
    """Return stage, step, of, done and losses as last written to `metrics.jsonl`; {} if there is nothing.

    A held-out loss has a line of its own; the training loss before it is shown with it.
    """
    found: dict[str, Value] = {}
    for line in reversed(process.last_lines(folder / METRICS_FILE, count=3).splitlines()):
        try:
            written = json_reader.parse(line)
        except ValueError:
            continue  # the last line may be half-written
        if not isinstance(written, dict):
            continue
        shown: dict[str, Value] = {
            name: value for name in _SHOWN if (value := _record_value(written.get(name))) is not None
        }
        if found:
            same_stage = shown.get("stage") == found.get("stage")
            return {LOSS: shown[LOSS], **found} if same_stage and LOSS in shown else found
        if LOSS in shown or HELD_OUT not in shown:
            return shown
        found = shown
    return found


class _Series:
    """Losses by step. Whenever there are more than `_MAX_POINTS`, every second one is dropped."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.losses: dict[float, float] = {}
        self._stride, self._count = 1, 0  # keep every stride-th of so many losses

    def add(self, step: float, loss: float) -> None:
        if self._count % self._stride == 0:
            self.losses[step] = loss
        self._count += 1
        if len(self.losses) > _MAX_POINTS:
            self.losses = dict(sorted(self.losses.items())[::2])
            self._stride *= 2


class LossCurve:
    """Losses in a growing `metrics.jsonl`: each line is read once. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / METRICS_FILE
        self._lock = threading.Lock()
        self._warned = False
        self._reset()

    def curve(self, count: int = 64) -> Curve:
        """Return the losses so far, thinned to at most `count` points.

        They are the held-out losses of the last stage that has any, or else training losses.
        """
        with self._lock:
            self._update()
            unfinished = (logged.of for logged in self._unfinished if logged.of != LOSS)
            of = next(unfinished, self._held_out.of)
            points = sorted(self._losses(of).items())
        return Curve(tuple(points[:: max(1, -(-len(points) // count))]), of)

    def not_finite(self, of: str) -> float | None:
        """Return the step of the last loss of this kind if that is NaN or infinite, else None."""
        with self._lock:
            self._update()
            unfinished = [logged for logged in self._unfinished if logged.of == of]
            if unfinished:
                return unfinished[-1].step if unfinished[-1].loss is None else None
            return self._not_finite.get(of)

    def last_held_out(self, stage: object) -> dict[str, Value]:
        """Return the last `held_out_loss` of a stage, {} if it has none."""
        with self._lock:
            self._update()
            losses = self._losses(_held_out_of(stage))
        return {HELD_OUT: losses[max(losses)]} if losses else {}

    def _reset(self) -> None:
        self._offset = 0
        self._identity: tuple[int, int] | None = None
        self._training = self._held_out = _Series(LOSS)  # until there are held-out losses
        self._not_finite: dict[str, float] = {}  # by kind: the step of the last loss, if that is NaN
        self._unfinished: list[_Logged] = []  # of a last line without a newline
        self._inside_long_line = False

    def _update(self) -> None:
        try:
            with open_regular(self._file) as file:
                self._read(file)
        except OSError:
            pass  # not there yet, or no file at all

    def _losses(self, of: str) -> dict[float, float]:
        series = self._training if of == LOSS else self._held_out
        losses = series.losses if series.of == of else {}
        return losses | {
            step: loss for kind, step, loss in self._unfinished if kind == of and loss is not None
        }

    def _read(self, file: IO[bytes]) -> None:
        status = os.fstat(file.fileno())
        identity = status.st_dev, status.st_ino
        # The program has truncated it, or put another in its place: the trainer does when it goes on.
        if status.st_size < self._offset or self._identity not in (None, identity):
            self._reset()
        self._identity = identity
        file.seek(self._offset)
        end = self._offset + AT_ONCE
        self._unfinished = []
        while self._offset < end and (line := file.readline(MAX_LINE)):
            is_ended = line.endswith(b"\n")
            if not is_ended and len(line) < MAX_LINE:  # the end of the file; it may be half a line
                self._unfinished = [] if self._inside_long_line else self._parse(line, warn=False)
                return
            self._offset += len(line)
            if is_ended and not self._inside_long_line:
                self._add(self._parse(line, warn=True))
            elif not is_ended:
                self._warn(f"longer than {MAX_LINE} bytes")
            self._inside_long_line = not is_ended

    def _parse(self, line: bytes, *, warn: bool) -> list[_Logged]:
        """Return the line's losses that can be compared: none, or one of each kind."""
        if not line.strip():
            return []
        try:
            written = json_reader.parse(line)
        except ValueError as error:
            if warn:
                self._warn(str(error))
            return []
        if not isinstance(written, dict):
            return []
        stage = written.get("stage")
        kinds = [(HELD_OUT, _held_out_of(stage))]
        if stage in (None, _TRAINING_STAGE):
            kinds.append((LOSS, LOSS))
        step = storable.number(written.get("step"))
        if step is None:
            return []
        losses = [(of, written.get(name)) for name, of in kinds]
        # null is no value: a program may log every name in every line.
        return [
            _Logged(of, step, number)
            for of, loss in losses
            if (number := storable.number(loss)) is not None
            or (isinstance(loss, float) and not math.isfinite(loss))
        ]

    def _add(self, logged: list[_Logged]) -> None:
        for of, step, loss in logged:
            if of not in (LOSS, self._held_out.of):  # the next stage has begun: two stages do not mix
                self._held_out = _Series(of)
            if loss is None:
                self._not_finite[of] = step
                continue
            self._not_finite.pop(of, None)
            (self._training if of == LOSS else self._held_out).add(step, loss)

    def _warn(self, why: str) -> None:
        """Warn once per file, not for each of a million lines."""
        if not self._warned:
            self._warned = True
            log.warning("%s: a line is left out, and so is every other of its kind: %s", self._file, why)


def _held_out_of(stage: object) -> str:
    """Return the kind of held-out losses of a stage; None: of a program without stages."""
    return HELD_OUT if stage is None else f"{HELD_OUT} in {storable.line(str(stage), _STAGE_CHARACTERS)}"


def _record_value(value: Any) -> Value | None:
    """Return the value if a record can hold it and a person can read it."""
    return storable.line(value, _STAGE_CHARACTERS) if isinstance(value, str) else storable.number(value)
