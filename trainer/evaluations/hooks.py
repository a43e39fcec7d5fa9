"""Evaluation hooks: functions that score a finished student, and whose numbers become metrics of the run.

A hook is called as `hook(student)` with a `FinishedStudent`, and returns numbers by name. Those of
`package.module:exam` are reported as `exam_NAME`, for a sweep to optimise or constrain. It runs once the
result is written, with a limit on its time, so a run that is killed meanwhile keeps all but its scores.
"""

from __future__ import annotations

import importlib
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from trainer.config import Config
from trainer.config.evaluation import hook_name
from trainer.errors import ConfigError, PreemptedError
from trainer.evaluations.student import FinishedStudent

Scores = Mapping[str, float]
Hook = Callable[[FinishedStudent], Scores]

_PLACES = {"cpp": "trainer.evaluations.cpp:evaluate", "lm_eval": "trainer.evaluations.lm_eval:evaluate"}


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Answers of the hooks of a run.

    Args:
        metrics: their numbers, by full name.
        failed: by hook, why there are none, as one line.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


class HookTimeout(BaseException):
    """A hook ran out of time. Not an Exception, so that a hook that catches all of those ends too."""


def check_hooks(config: Config) -> None:
    """Load the hooks, and let each check its part of the configuration and this machine.

    A hook may have an attribute `check`, a function that takes the configuration and raises ConfigError.

    Raises:
        ConfigError: one cannot be loaded, or cannot work here.
    """
    for name in config.hooks.names:
        hook = _load_hook(name)
        if callable(examine := getattr(hook, "check", None)):
            examine(config)


def run(student: FinishedStudent) -> Scored:
    """Call the hooks in order; one that raises or returns something else than numbers fails alone."""
    metrics: dict[str, float] = {}
    failed: dict[str, str] = {}
    asked = student.config.hooks
    for name in asked.names:
        prefix = hook_name(name)
        try:
            with _time_limit(asked.timeout_s):
                scores: object = _load_hook(name)(student)
            if not isinstance(scores, Mapping):
                raise TypeError(f"it returned {type(scores).__name__}, not numbers by name")
            for key, value in scores.items():
                is_number = isinstance(value, int | float) and math.isfinite(value)
                if not (is_number and isinstance(key, str) and key.isidentifier()):
                    raise TypeError(
                        f"{key!r}: {value!r} is not a finite number with a name of letters and digits"
                    )
            metrics |= {f"{prefix}_{key}": float(value) for key, value in scores.items()}
        except PreemptedError:
            raise
        except HookTimeout:
            failed[prefix] = f"not done within hooks.timeout_s={asked.timeout_s:g}"
        except Exception as error:  # noqa: BLE001 - a hook is another's code
            failed[prefix] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return Scored(metrics=metrics, failed=failed)


def _load_hook(name: str) -> Hook:
    module, _, function = _PLACES.get(name, name).partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    sys.path.insert(0, here)  # as `python train.py` would find it; afterwards that folder comes last
    try:
        hook: Hook = getattr(importlib.import_module(module), function)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{name!r} cannot be loaded ({reason})", key="hooks.names") from error
    finally:
        with suppress(ValueError):
            sys.path.remove(here)  # the first of them
    return hook


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise HookTimeout in the block once its time is over; only in the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise HookTimeout

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
