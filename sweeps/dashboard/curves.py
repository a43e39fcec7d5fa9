"""Training curves from `metrics.jsonl` while it grows: each line is read once, what is kept is bounded."""

from __future__ import annotations

import functools
import itertools
import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from sweeps.dashboard.run_files import RunFiles
from sweeps.programs.progress_log import MAX_LINE, METRICS_FILE
from sweeps.text import json_reader
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact

Axis = Literal["steps", "tokens", "seconds", "dollars"]
AXES: tuple[Axis, ...] = get_args(Axis)

_NOT_CURVES = frozenset(("step", "of", "done", "unix_seconds", "seconds", "tokens"))
_MOST_NAMES = 48
_MOST_POINTS = 4096
_MOST_STAGES = 64
_MOST_WARNINGS = 100
_LONGEST_NAME = 80
_MORE_FILES = 64
_AT_ONCE = 16 * 1024**2
_COMPARED = 256  # bytes


class Series(NamedTuple):
    """Points of one curve: numbers of lines, and the values there."""

    lines: array[float]
    values: array[float]


class Stage(NamedTuple):
    """A stage of the run, and what step, second and token of the run came before it."""

    name: str
    first: float
    seconds: float
    tokens: float


@dataclass
class Curves:
    """Curves of one attempt.

    Attributes:
        steps, seconds, tokens: by line, since the beginning of the run; NaN where they are not known.
        series: by name.
        stages: in order.
        warnings: of the health checks, each with stage and step.
    """

    steps: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    series: dict[str, Series] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _last_step: float = 0.0
    _clock: float = math.nan
    _previous: tuple[float, float] = (0.0, 0.0)
    _timed_step: float = 0.0
    _per_step: tuple[float, float] | None = None
    _count: int = 0
    _stride: int = 1

    def add(self, data: bytes) -> None:
        """Add the next bytes of the file; a last line without its end waits for more."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._rest = b""
        for line in lines:
            if line.strip() and len(line) <= MAX_LINE:
                self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        try:
            written = json_reader.parse(line)
        except ValueError:
            return
        if not isinstance(written, dict):
            return
        step = _number(written.get("step"))
        if step is None:
            return
        stage = written.get("stage")
        stage = _clean(str(stage)[:_LONGEST_NAME]) if stage is not None else ""
        if not self.stages or (self.stages[-1].name != stage and len(self.stages) < _MOST_STAGES):
            self.stages.append(Stage(stage, self._last_step, *self._previous))
        elif self.stages[-1].name != stage:
            self.stages[-1] = Stage(stage, self._last_step, *self._previous)
        where = self.stages[-1].first + max(0.0, step)
        warnings = written.get("warnings")
        for warning in warnings[: _MOST_WARNINGS - len(self.warnings)] if isinstance(warnings, list) else ():
            text = warning.get("message", warning) if isinstance(warning, dict) else warning
            self.warnings.append(redact(f"{f'{stage} step {step:g}'.strip()}: {text}")[:600])
        seconds, tokens = self._elapsed(written, where)
        self._last_step = max(self._last_step, where)
        numbers = {
            name: value
            for name, raw in written.items()
            if name not in _NOT_CURVES and (value := _number(raw)) is not None
        }
        self._count += 1
        rare = "held_out_loss" in numbers
        if self._count % self._stride and not rare:
            return
        at = float(len(self.steps))
        self.steps.append(where)
        self.seconds.append(seconds)
        self.tokens.append(tokens)
        for raw_name, value in numbers.items():
            name = _clean(str(raw_name)[:_LONGEST_NAME])
            if name not in self.series and len(self.series) < _MOST_NAMES:
                self.series[name] = Series(array("d"), array("d"))
            if name in self.series:
                self.series[name].lines.append(at)
                self.series[name].values.append(value)
        if len(self.steps) > _MOST_POINTS:
            self._thin()

    def _elapsed(self, written: dict[str, object], where: float) -> tuple[float, float]:
        """Return the training seconds and the tokens until a line; each NaN if it is not known.

        A line has the mean seconds of the steps since the last line with them, and their tokens a second, or
        what a program has counted itself. Until a line between these, such as a held-out loss, steps are
        taken to be like the last ones; the next line with means counts them.
        """
        before_s, before_tokens = self._previous
        count = max(0.0, where - self._timed_step)
        parts = [_number(written.get(name)) for name in ("data_seconds", "compute_seconds")]
        known = [part for part in parts if part is not None]
        rate = _number(written.get("tokens_per_second"))
        seconds, tokens = _number(written.get("seconds")), _number(written.get("tokens"))
        now = _number(written.get("unix_seconds"))
        if self._per_step is not None and seconds is None and not known:
            per_step_s, per_step_tokens = self._per_step
            return before_s + count * per_step_s, before_tokens + count * per_step_tokens
        if seconds is None and known:
            seconds = before_s + count * sum(known)
        elif seconds is None and now is not None and not math.isnan(self._clock):
            seconds = before_s + max(0.0, now - self._clock) if count else before_s
        if tokens is None and rate is not None:
            tokens = before_tokens + rate * max(0.0, (seconds or before_s) - before_s)
        if now is not None:
            self._clock = now
        if seconds is None and tokens is None:
            return before_s, before_tokens
        seconds = before_s if seconds is None else max(before_s, seconds)
        tokens = before_tokens if tokens is None else max(before_tokens, tokens)
        self._timed_step = max(self._timed_step, where)
        if known and count:
            self._per_step = ((seconds - before_s) / count, (tokens - before_tokens) / count)
        self._previous = (seconds, tokens)
        return seconds, tokens

    def _thin(self) -> None:
        """Drop every second line, but none with a held-out loss, which are few."""
        held_out = self.series.get("held_out_loss")
        rare = set(held_out.lines[-_MOST_POINTS // 4 :]) if held_out is not None else set()
        stay = [at for at in range(len(self.steps)) if at % 2 == 0 or at in rare]
        place = {float(old): float(new) for new, old in enumerate(stay)}
        for name in ("steps", "seconds", "tokens"):
            values = getattr(self, name)
            setattr(self, name, array("d", (values[at] for at in stay)))
        for name, (lines, values) in self.series.items():
            left = [(place[line], value) for line, value in zip(lines, values, strict=True) if line in place]
            self.series[name] = Series(array("d", (a for a, _ in left)), array("d", (b for _, b in left)))
        self._stride *= 2

    def starts(self, axis: Axis, dollars_per_second: float | None = None) -> list[tuple[str, float]]:
        """Return the stages by name, and where on the axis each begins; none if nothing is known of x."""
        if axis == "steps":
            return [(stage.name, stage.first) for stage in self.stages]
        if axis == "tokens":
            return [(stage.name, stage.tokens) for stage in self.stages]
        scale = 1.0 if axis != "dollars" else dollars_per_second
        return [] if scale is None else [(stage.name, scale * stage.seconds) for stage in self.stages]

    def points(
        self, name: str, axis: Axis, dollars_per_second: float | None = None
    ) -> list[tuple[float, float]]:
        """Return a curve as (x, y); empty if the attempt has none of that name, or nothing is known of x."""
        series = self.series.get(name)
        if series is None:
            return []
        along = {"steps": self.steps, "tokens": self.tokens}.get(axis, self.seconds)
        scale = 1.0 if axis != "dollars" else dollars_per_second
        if scale is None or (axis != "steps" and not any(along)):
            return []
        return [
            (along[int(line)] * scale, value) for line, value in zip(series.lines, series.values, strict=True)
        ]


@functools.lru_cache(4096)
def _clean(name: str) -> str:
    return redact(name)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def thin(points: Sequence[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """Return at most about `most` points: of each piece of x the first, the least and the largest."""
    if len(points) <= most:
        return list(points)
    pieces = max(1, most // 3)
    ends = [round(piece * len(points) / pieces) for piece in range(pieces + 1)]
    found: list[tuple[float, float]] = []
    for start, end in itertools.pairwise(ends):
        piece = points[start:end]
        chosen = {0, *(f(range(len(piece)), key=lambda at: piece[at][1]) for f in (min, max))}
        found += (piece[at] for at in sorted(chosen))
    return [*found, points[-1]] if found[-1] != points[-1] else found


@dataclass
class _File:
    curves: Curves
    version: str
    size: int
    until: int
    last: bytes = b""


class CurveCache:
    """Curves of the attempts that were looked at last, for one thread at a time."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._known: OrderedDict[tuple[int, int, float], _File] = OrderedDict()

    def curves(self, record: Trial) -> Curves | None:
        """Return the curves of the present or last attempt; None if it has written none."""
        # Another sweep of the same name has trials of the same numbers.
        key = (record.trial, record.attempt, record.created)
        known = self._known.get(key)
        # From the last known bytes: in a bucket each upload has a version of its own, so only they and the
        # size tell that a resumed run has put another file in the place of the former one.
        start = 0 if known is None else known.until - len(known.last)
        found = self._files.content(record, METRICS_FILE, start=start, most=_AT_ONCE)
        if found is None:
            return None
        if known is not None and not (
            found.size >= known.size
            and (known.version == found.version or "." not in found.version)
            and found.data.startswith(known.last)
        ):
            known, start = None, 0
            found = self._files.content(record, METRICS_FILE, most=_AT_ONCE)
            if found is None:
                return None
        if known is None:
            known = _File(Curves(), found.version, 0, 0)
        known.curves.add(found.data[len(known.last) :])
        known.last = found.data[-_COMPARED:]
        known.size, known.until, known.version = found.size, start + len(found.data), found.version
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > _MORE_FILES:
            self._known.popitem(last=False)
        return known.curves

    def by_trial(self, records: Iterable[Trial]) -> dict[int, Curves]:
        """Return the curves of several trials by index, as far as there are any."""
        found = ((record.trial, self.curves(record)) for record in records)
        return {index: curves for index, curves in found if curves is not None}
