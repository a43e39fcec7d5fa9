"""How a trial's program ended: its result file or its exit status, judged.

`objective` runs programs and asks here what to make of their end; `sweep tell` reads a result with it.
"""

from __future__ import annotations

import logging
import re
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sweeps.space import constraints
from sweeps.space.definition import Space
from sweeps.text import json_reader
from sweeps.text.counted import counted
from sweeps.trials import storable
from sweeps.trials.record import Failure
from sweeps.worker import process, startable
from sweeps.worker.transient import network_was_lost

log = logging.getLogger(__name__)

RESULT_FILE = "result.json"
MAX_METRICS = 10_000
"""Of one trial; the objectives come first."""

_EXIT_CONFIG, _EXIT_DIVERGED, _EXIT_PREEMPTED = 2, 70, 75

_NOT_HERE = "trainer: error: not on this machine: "
"""How the line begins with which the trainer says that it is the machine that does not fit."""

_TRAINER_REFUSED = re.compile(r"^trainer: error: .*$", re.MULTILINE)
"""The line with which `python -m trainer` refuses a configuration; its exit status alone may be anybody's."""

OUT_OF_MEMORY = re.compile(r"\bMemoryError\b|OutOfMemoryError|[Oo]ut of memory|RESOURCE_EXHAUSTED")
"""How Python, torch, CUDA and XLA say that memory was short."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The program reported metrics; all objectives and constrained metrics are there and finite."""

    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The program is at fault. The first line of `error` says how, the rest are its last words.

    Args:
        again: whether another attempt may go better: a signal ended it, or the network was lost.
    """

    error: str
    failure: Failure
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Preempted:
    """The program was stopped from outside and nothing is wrong with the trial."""

    detail: str


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """The program never began: its worker's fault, unless that has run it before."""

    detail: str


Outcome = Completed | Failed | Preempted | NotStarted


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
    """The outcome in a `result.json`: `{"status": "completed", "metrics": {…}}`, or the metrics alone.

    See `stated_failure` for the other statuses.
    """
    if not isinstance(document, dict):
        return _broken(f"{where}: not a JSON object")
    if (stated := stated_failure(document, where)) is not None:
        return stated
    if (status := document.get("status", "completed")) != "completed":
        return _broken(f"{where}: status is {status!r:.200}")
    return checked(space, document.get("metrics", document), where)


def stated_failure(document: Any, where: str) -> Failed | None:
    """What a program says of its own failure; None where it states none.

    `{"status": "refused", "error": "…"}` refuses the configuration. `{"status": "failed", "error": "…",
    "failure": "…"}` says what it died of; without a kind it crashed.
    """
    if not isinstance(document, dict) or document.get("status") not in ("refused", "failed"):
        return None
    error, kinds = document.get("error"), get_args(Failure)
    failure: Failure = next((kind for kind in kinds if kind == document.get("failure")), "crashed")
    if document["status"] == "refused" or failure == "bad_config":
        return Failed(error=f"config refused: {error or 'without a reason'}", failure="bad_config")
    return Failed(error=str(error or f"{where}: status is 'failed'"), failure=failure)


def read_refusal(file: Path) -> Failed | None:
    """The refusal or failure that a program wrote before it ended with another status than 0, if it did."""
    try:
        return stated_failure(json_reader.read(file), str(file))
    except (OSError, ValueError):
        return None


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
    """Return whether the program wrote a larger file than this machine's limit allows (`ulimit -f`).

    Without such a limit the status is the program's own affair, and must not end one worker after another.
    """
    is_limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return is_limited and status in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)


def needed_metrics(space: Space) -> tuple[str, ...]:
    """The metrics without which a trial cannot be judged: those of objectives and outcome constraints."""
    constrained = (
        name for text in space.outcome_constraints for name in constraints.parse(text).coefficients
    )
    return tuple(dict.fromkeys((*space.metrics(), *constrained)))


def _broken(error: str) -> Failed:
    """The program ended well and yet broke its contract: trying again would not help."""
    return Failed(error=error, failure="bad_config")


def died(status: int, log_file: Path, argv: Sequence[str], *, is_trainer: bool) -> Failed | NotStarted:
    """What a program that did not end well died of, by its exit status and its last words.

    Args:
        status: as `subprocess` gives it, negative for a signal.
        argv: the program's command.
        is_trainer: whether it is this project's trainer, whose words are known.
    """
    words = process.last_lines(log_file)
    last = words.splitlines()[-1] if words else ""
    if status == _EXIT_DIVERGED:
        return Failed(error=f"diverged: {last}\n{words}", failure="diverged")
    if is_trainer and status == _EXIT_CONFIG and (lines := _TRAINER_REFUSED.findall(words)):
        if lines[-1].startswith(_NOT_HERE):
            return NotStarted(detail=lines[-1].removeprefix(_NOT_HERE))
        return Failed(error=f"config refused: {lines[-1]}\n{words}", failure="bad_config")
    if never := startable.never_began(argv, status, last):
        return NotStarted(detail=never)
    said = f"; its last words: {last}" if last else " without a word"
    error = f"the program {process.describe_exit(status)}{said}\n{words}".strip()
    signum = _signal(status)
    if signum == signal.SIGKILL:  # by the host; what the device refuses is told in words, and comes again
        return Failed(error=error, failure="out_of_memory", again=True)
    if OUT_OF_MEMORY.search(words):
        return Failed(error=error, failure="out_of_memory")
    again = signum is not None or network_was_lost(words)
    return Failed(error=error, failure="crashed", again=again)


def _signal(status: int) -> int | None:
    """The signal that ended the program, or a program that it ran (as shells tell it); None if none did."""
    number = -status if status < 0 else status - 128
    return number if number in signal.valid_signals() else None
