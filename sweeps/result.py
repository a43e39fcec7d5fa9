"""How a trial's program ended: its result file or its exit status, judged.

`objective` runs programs and asks here what to make of their end; `sweep tell` reads a result with it.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps import constraints, json_reader, storable, subprocess_run
from sweeps.counted import counted
from sweeps.space import Space
from sweeps.trial import Failure

log = logging.getLogger(__name__)

RESULT_FILE = "result.json"
MAX_METRICS = 10_000
"""Of one trial; the objectives come first."""

_EXIT_CONFIG, _EXIT_DIVERGED, _EXIT_PREEMPTED = 2, 70, 75

OUT_OF_MEMORY = re.compile(r"\bMemoryError\b|OutOfMemoryError|[Oo]ut of memory|RESOURCE_EXHAUSTED")
"""How Python, torch, CUDA and XLA say that memory was short."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The program reported metrics; all objectives and constrained metrics are there and finite."""

    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The program is at fault. The first line of `error` says how, the rest are its last words."""

    error: str
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Preempted:
    """The program was stopped from outside and nothing is wrong with the trial."""

    detail: str


Outcome = Completed | Failed | Preempted


def read_result(space: Space, file: Path) -> Outcome:
    """Return what the program's result file says; a file that cannot be read is a failure of the trial."""
    try:
        document = json_reader.read(file)
    except FileNotFoundError:
        return _broken(f"the program ended well but wrote no {RESULT_FILE} into {file.parent}")
    except OSError as error:
        return _broken(f"{file}: cannot be read: {error.strerror or error}")
    except ValueError as error:
        return _broken(f"{file}: {error}")
    return parse_result(space, document, str(file))


def parse_result(space: Space, document: Any, where: str) -> Completed | Failed:
    """The outcome in a `result.json`: `{"status": "completed", "metrics": {…}}`, or the metrics alone."""
    if not isinstance(document, dict):
        return _broken(f"{where}: not a JSON object")
    if (status := document.get("status", "completed")) != "completed":
        return _broken(f"{where}: status is {status!r:.200}")
    return checked(space, document.get("metrics", document), where)


def checked(space: Space, metrics: Any, where: str) -> Completed | Failed:
    """Return the metrics if all that the sweep needs are there and finite, else why the trial has failed.

    Names that no record can hold are left out, with a warning.
    """
    if not isinstance(metrics, Mapping):
        return _broken(f"{where}: metrics is not an object of names and numbers")
    needed = needed_metrics(space)
    numbers = _numbers(metrics, needed, where)
    for name in needed:
        if name not in metrics:
            there = ", ".join(sorted(numbers)[:20]) or "nothing"
            return _broken(f"{where}: no metric {name!r}; there is {there}")
        if numbers.get(name) is None:
            return Failed(
                error=f"{where}: {name} is {metrics[name]!r:.200}, not a finite number", failure="diverged"
            )
    return Completed(metrics=numbers)


def _numbers(metrics: Mapping[Any, Any], needed: Sequence[str], where: str) -> dict[str, float | None]:
    """The metrics that a record can hold, those that are needed first."""
    names = [*(name for name in needed if name in metrics), *(name for name in metrics if name not in needed)]
    numbers: dict[str, float | None] = {}
    unfit: list[str] = []
    for given in names:
        value, name = metrics[given], str(given)
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            continue  # notes beside the numbers are welcome, but nothing here can use them
        if storable.is_name(name) and len(numbers) < MAX_METRICS:
            numbers[name] = storable.number(value)
        else:
            unfit.append(name)
    if unfit:
        log.warning(
            "%s: %s left out, such as %s: a name has at most %d characters, none of control and no half of a "
            "surrogate pair; a trial has at most %d metrics",
            *(where, counted(len(unfit), "metric"), ascii(unfit[0][:80]), storable.MAX_NAME, MAX_METRICS),
        )
    return numbers


def was_told_to_go(status: int) -> bool:
    """Whether the program ended by a polite signal: this machine is going, and our own may be under way."""
    polite = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return status == _EXIT_PREEMPTED or any(status in (-signum, 128 + signum) for signum in polite)


def was_limited(status: int) -> bool:
    """Whether the program wrote a larger file than its machine's limit allows (`ulimit -f`)."""
    return status in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)


def needed_metrics(space: Space) -> tuple[str, ...]:
    """The metrics without which a trial cannot be judged: those of objectives and outcome constraints."""
    constrained = (
        name for text in space.outcome_constraints for name in constraints.parse(text).coefficients
    )
    return tuple(dict.fromkeys((*space.metrics(), *constrained)))


def _broken(error: str) -> Failed:
    """The program ended well and yet broke its contract: trying again would not help."""
    return Failed(error=error, failure="bad_config")


def died(status: int, log_file: Path) -> Failed:
    """What a program that did not end well died of, by its exit status and its last words."""
    words = subprocess_run.last_lines(log_file)
    last = words.splitlines()[-1] if words else ""
    if status == _EXIT_DIVERGED:
        return Failed(error=f"diverged: {last}\n{words}", failure="diverged")
    if status == _EXIT_CONFIG:
        return Failed(error=f"config refused: {last}\n{words}", failure="bad_config")
    said = f"; its last words: {last}" if last else " without a word"
    error = f"the program {subprocess_run.describe_exit(status)}{said}\n{words}".strip()
    out_of_memory = status == -signal.SIGKILL or OUT_OF_MEMORY.search(words)
    return Failed(error=error, failure="out_of_memory" if out_of_memory else "crashed")
