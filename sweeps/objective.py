"""What a trial runs: the trainer, a command line, or a Python function. The one file that knows `trainer`.

`worker` calls `run`, `sweep init` calls `check`. The trainer and commands run in a process of their own, so
that a crash or an out-of-memory kill is a failed trial with its last words in the record, not a dead worker.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeps import subprocess_run
from sweeps.errors import EnvironmentFault, InputError
from sweeps.overrides import to_overrides
from sweeps.space import Space, Value
from sweeps.stopping import Interrupted, Stop
from sweeps.trial import Trial

log = logging.getLogger(__name__)

RESULT_FILE = "result.json"
METRICS_FILE = "metrics.jsonl"
LOG_FILE = "log.txt"

_EXIT_CONFIG, _EXIT_DIVERGED, _EXIT_PREEMPTED = 2, 70, 75


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The program reported metrics; all objectives and constrained metrics are there and finite."""

    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The program is at fault. The first line of `error` says how, the rest are its last words."""

    error: str


@dataclass(frozen=True, kw_only=True)
class Preempted:
    """The program was stopped from outside and nothing is wrong with the trial."""

    detail: str


Outcome = Completed | Failed | Preempted


def run(space: Space, record: Trial, folder: Path, *, stop: Stop, lost: Callable[[], bool]) -> Outcome:
    """Run one trial to its end, with its files in `folder`.

    The program is stopped when `stop` is requested (the worker has to go) or `lost()` turns true (somebody
    else has the trial now). A Python function runs in this thread, and only `stop` can interrupt it.
    """
    if space.program.kind == "function":
        return _run_function(space, record, stop)

    def should_stop() -> bool:
        return stop.requested or lost()

    if should_stop():
        return Preempted(detail="before the program was started")
    argv, env = _command(space, record, folder)
    log_file = folder / LOG_FILE
    status = subprocess_run.run(argv, log_file=log_file, env=env, should_stop=should_stop)
    if status == 0:
        return _read_result(space, folder / RESULT_FILE)
    if should_stop() or _was_told_to_go(status):
        return Preempted(detail=f"the program {subprocess_run.describe_exit(status)}")
    return Failed(error=_last_words(space, status, log_file))


def progress(folder: Path) -> dict[str, Value]:
    """What the running program last wrote to `metrics.jsonl`: stage, step, of, done, loss; {} if nothing."""
    for line in reversed(subprocess_run.last_lines(folder / METRICS_FILE, count=2).splitlines()):
        try:
            written = json.loads(line)
        except ValueError:
            continue  # the last line may be half-written
        if isinstance(written, dict):
            wanted = ("stage", "step", "of", "done", "loss")
            return {name: written[name] for name in wanted if _is_shown(written.get(name))}
    return {}


def _is_shown(value: Any) -> bool:
    """Whether a record can hold it: a diverging run says NaN, which no JSON reader but Python's takes."""
    return isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value))


def check(space: Space, probes: Sequence[Mapping[str, Value]]) -> None:
    """Make sure that the program can start with each of the sampled parameters, before compute is spent.

    Raises:
        InputError: naming the override, the command or the function that cannot work.
    """
    program = space.program
    if program.kind == "function":
        _load_function(program.function)
    elif program.kind == "command":
        if shutil.which(program.command[0]) is None:
            raise InputError(
                f"program.command: {program.command[0]!r} is not a program that can be started here"
            )
    else:
        from trainer import api
        from trainer.errors import ConfigError

        for parameters in probes:
            overrides = [*program.overrides, *to_overrides(parameters)]
            try:
                api.check(overrides)
            except ConfigError as error:
                raise InputError(f"the trainer refuses this space: {error}") from None


def prepare(space: Space, threads: int, report: Callable[[str, float | None], None]) -> None:
    """Build what all trials share (corpus, tokenizer, teacher) with that many threads, unless it is there.

    Raises:
        EnvironmentFault: it cannot be built on this machine.
    """
    if space.program.kind == "trainer":
        from trainer import api
        from trainer.errors import TrainerError

        try:
            api.prepare([*space.program.overrides, f"device.threads={threads}"], report)
        except TrainerError as error:
            raise EnvironmentFault(f"cannot prepare the trainer: {error}") from None


def trainer_overrides(space: Space, parameters: Mapping[str, Value]) -> list[str]:
    """The trial's overrides as one would type them behind `python -m trainer`."""
    return [*space.program.overrides, *to_overrides(parameters)]


def _command(space: Space, record: Trial, folder: Path) -> tuple[list[str], dict[str, str]]:
    env = {"SWEEP_RUN_DIR": str(folder), "SWEEP_TRIAL": str(record.trial), "SWEEP_NAME": space.name}
    if space.program.kind == "trainer":
        from trainer import api

        identity = to_overrides({"wandb.group": space.name, "wandb.name": f"{space.name}-{record.trial:06d}"})
        return api.command([*trainer_overrides(space, record.parameters), *identity], folder), env
    argv: list[str] = []
    for word in space.program.command:
        if word == "${overrides}":
            argv += to_overrides(record.parameters)
        else:
            argv.append(word.replace("${run_dir}", str(folder)).replace("${trial}", str(record.trial)))
    return argv, env


def _run_function(space: Space, record: Trial, stop: Stop) -> Outcome:
    function = _load_function(space.program.function)
    try:
        with stop.interruptible():
            metrics = function(dict(record.parameters))
    except Interrupted as interrupted:
        return Preempted(detail=str(interrupted))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises fails its trial, not us
        words = "\n".join(traceback.format_exc().strip().splitlines()[-subprocess_run.LAST_LINES :])
        return Failed(error=f"{type(error).__name__}: {error}\n{words}")
    return _checked(space, metrics, f"the dict that {space.program.function} returned")


def _load_function(spelled: str) -> Callable[[dict[str, Value]], Any]:
    module_name, _, name = spelled.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: a user's module lies where the worker is started
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # noqa: BLE001 - a user's module may fail in any way while it is imported
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"program.function: {spelled!r} cannot be loaded from this folder: {told}") from None
    if not callable(function):
        raise InputError(f"program.function: {spelled!r} is not a function")
    return function  # type: ignore[no-any-return]  # it is checked as far as Python can


def _read_result(space: Space, file: Path) -> Outcome:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        return Failed(error=f"the program ended well but wrote no {RESULT_FILE} into {file.parent}")
    except ValueError as error:
        return Failed(error=f"{file}: not JSON: {error}")
    return parse_result(space, document, str(file))


def parse_result(space: Space, document: Any, where: str) -> Completed | Failed:
    """The outcome in a `result.json`: `{"status": "completed", "metrics": {…}}`, or the metrics alone."""
    if not isinstance(document, dict):
        return Failed(error=f"{where}: not a JSON object")
    if (status := document.get("status", "completed")) != "completed":
        return Failed(error=f"{where}: status is {status!r}")
    return _checked(space, document.get("metrics", document), where)


def _checked(space: Space, metrics: Any, where: str) -> Completed | Failed:
    if not isinstance(metrics, Mapping):
        return Failed(error=f"{where}: metrics is not an object of names and numbers")
    numbers: dict[str, float | None] = {}
    for name, value in metrics.items():
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            continue  # notes beside the numbers are welcome, but nothing here can use them
        numbers[str(name)] = _plain(value)
    for name in needed_metrics(space):
        if name not in metrics:
            there = ", ".join(sorted(numbers)) or "nothing"
            return Failed(error=f"{where}: no metric {name!r}; there is {there}")
        if numbers.get(name) is None:
            return Failed(error=f"{where}: {name} is {metrics[name]!r}, not a finite number")
    return Completed(metrics=numbers)


def _plain(value: Any) -> float | None:
    """A number as JSON has it, from Python's, NumPy's or torch's; None if it is not finite."""
    try:
        number = value if isinstance(value, int) else float(value)
        return number if math.isfinite(number) else None
    except (OverflowError, TypeError, ValueError):
        return None


def _was_told_to_go(status: int) -> bool:
    """Whether the program ended by a polite signal: this machine is going, and our own may be under way."""
    polite = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return status == _EXIT_PREEMPTED or any(status in (-signum, 128 + signum) for signum in polite)


def needed_metrics(space: Space) -> tuple[str, ...]:
    """The metrics without which a trial cannot be judged: those of objectives and outcome constraints."""
    from sweeps.constraints import parse

    constrained = (name for text in space.outcome_constraints for name in parse(text).coefficients)
    return tuple(dict.fromkeys((*space.metrics(), *constrained)))


def _last_words(space: Space, status: int, log_file: Path) -> str:
    words = subprocess_run.last_lines(log_file)
    last = words.splitlines()[-1] if words else ""
    if space.program.kind == "trainer" and status == _EXIT_DIVERGED:
        return f"diverged: {last}\n{words}"
    if space.program.kind == "trainer" and status == _EXIT_CONFIG:
        return f"config refused: {last}\n{words}"
    said = f"; its last words: {last}" if last else " without a word"
    return f"the program {subprocess_run.describe_exit(status)}{said}\n{words}".strip()
