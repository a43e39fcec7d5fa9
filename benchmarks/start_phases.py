"""Trainer that ends after its first training step, and writes how long each phase before took.

Started by `benchmarks.start`, by its command or forked, with the arguments of `python -m trainer`. Writes
`phases.json` into the folder SWEEP_RUN_DIR: for each phase its seconds of wall time and of CPU.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PHASES = ("start", "imports", "compose", "preflight", "model", "student", "rest", "step")
"""Python itself; imports; the configuration; the preflight; loading text and teacher; making the student from
it, with a calibration; what is between these; the first step."""
FILE = "phases.json"
# Functions that make up a phase, less what they import: (module, name, phase).
_MEASURED = [
    ("trainer.api", "check", "compose"),
    ("trainer.api", "stage_keys", "compose"),
    ("trainer.api", "stage_trunks", "compose"),
    ("trainer.config.compose", "compose_config", "compose"),
    ("trainer.preflight.batch_size_search", "with_micro_batches", "preflight"),
    ("trainer.preflight.preflight", "run_preflight", "preflight"),
    ("trainer.data.inputs", "prepare_inputs", "model"),
    ("trainer.stages.teacher", "prepare_teacher", "model"),
    ("trainer.pipeline", "make_student", "student"),
]


class Stopwatch:
    """Time of each phase, without that of the phases inside it."""

    def __init__(self) -> None:
        self.seconds = {phase: [_age(), time.process_time()] for phase in PHASES[:1]}
        self.seconds |= {phase: [0.0, 0.0] for phase in PHASES[1:]}
        self._stack = ["rest"]
        self._last = _now()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def write(self) -> None:
        self._charge()
        (Path(os.environ["SWEEP_RUN_DIR"]) / FILE).write_text(json.dumps(self.seconds))

    def _charge(self) -> None:
        now = _now()
        for kind in (0, 1):
            self.seconds[self._stack[-1]][kind] += now[kind] - self._last[kind]
        self._last = now


def _now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def _age() -> float:
    """Return how many seconds ago this process was started or forked."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[22 - 3])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _install(watch: Stopwatch) -> None:
    """Measure imports, and the functions above as soon as their modules are there."""
    missing = list(_MEASURED)
    original = builtins.__import__, importlib.import_module
    depth = 0

    def patch() -> None:
        for entry in list(missing):
            module, name, phase = entry
            if callable(function := getattr(sys.modules.get(module), name, None)):
                setattr(sys.modules[module], name, _measured(watch, phase, function))
                missing.remove(entry)
        train_step = getattr(sys.modules.get("trainer.training.train_step"), "TrainStep", None)
        if train_step is not None and not hasattr(train_step, "is_measured"):
            train_step.is_measured = True
            train_step.__call__ = _last(watch, train_step.__call__)

    def importing(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*given: Any, **named: Any) -> Any:
            nonlocal depth
            if depth:
                return function(*given, **named)
            depth += 1
            try:
                with watch.phase("imports"):
                    return function(*given, **named)
            finally:
                depth -= 1
                patch()

        return inner

    builtins.__import__, importlib.import_module = map(importing, original)
    patch()


def _measured(watch: Stopwatch, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*given: Any, **named: Any) -> Any:
        with watch.phase(phase):
            return function(*given, **named)

    return inner


def _last(watch: Stopwatch, step: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*given: Any, **named: Any) -> None:
        with watch.phase("step"):
            step(*given, **named)
        watch.write()
        sys.stdout.flush()
        os._exit(0)

    return inner


if __name__ == "__main__":
    _install(Stopwatch())
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
