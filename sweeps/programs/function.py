"""Python function as a program: called in the worker's own process, or in a thread of the user's."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sweeps.errors import CannotStart, Interrupted
from sweeps.programs import live_trial, process
from sweeps.programs.base import Program
from sweeps.programs.result import (
    OUT_OF_MEMORY,
    Failed,
    Outcome,
    Preempted,
    check_metrics,
    disk_failed,
    network_was_lost,
    parse_result,
    stated_failure,
)
from sweeps.programs.signals import Stop
from sweeps.space.definition import Objective, Space, Value, to_plain
from sweeps.space.overrides import to_overrides
from sweeps.trials import storable
from sweeps.trials.record import Failure, Trial

Function = Callable[[Any], Any]
"""A Python function that computes a trial: of the trial, or of the dict of its parameters."""

_PACKAGES = Path(__file__).parents[2]
"""Folder with the packages `sweeps` and `trainer`."""


class FunctionProgram(Program):
    """Python function that the search space names, or that the caller of `Sweep.run` gives.

    A space may name none: then whoever asks for a trial runs it.

    Args:
        given: function to call; None: the one that the space names.
    """

    def __init__(self, space: Space, given: Function | None = None) -> None:
        super().__init__(space)
        self._given = given

    def require_startable(self) -> None:
        if self._given is None:
            _load(self.space.program.function)

    def check(self, points: Sequence[Mapping[str, Value]]) -> None:
        if self.space.program.function:
            self.require_startable()

    def run(
        self,
        record: Trial,
        folder: Path,
        *,
        stop: Stop,
        wants_stop: Callable[[], bool],
        snapshots: bool = False,
        points: bool = False,
    ) -> Outcome:
        """Call the function in this thread: only `stop` interrupts it, and it may ask its trial."""
        function = _load(self.space.program.function) if self._given is None else self._given
        trial = live_trial.Trial(
            record, folder, lambda: stop.requested or wants_stop(), self.space.objectives[0]
        )
        name = getattr(function, "__qualname__", type(function).__name__)
        # A given function may run in one of several threads, which share environment and path.
        with _as_script(self.variables(record, folder)) if self._given is None else nullcontext():
            try:
                stop.heard()
                with stop.interruptible():
                    returned = function(trial if _takes_trial(function) else dict(trial.parameters))
                if stop.heard():  # and yet it returned, perhaps with the result of half of a run
                    return Preempted(detail=f"{name} ended at {stop.by}")
                if trial.stopped:
                    return Preempted(detail=f"{name} ended as it was asked to")
                return _outcome(self.space, returned, f"what {name} returned")
            except Interrupted as interrupted:
                return Preempted(detail=str(interrupted))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it raises fails its trial, not the worker
                if stop.heard():  # Lightning, for one, makes SystemExit of KeyboardInterrupt
                    return Preempted(detail=f"{name} ended at {stop.by}")
                return failure_of(error)

    def command_line(self, record: Trial, *, run_dir: str = "runs/best") -> str:
        if self.space.program.is_user_script:
            return shlex.join(to_overrides(record.parameters))
        module, _, name = self.space.program.function.partition(":")
        parameters = {key: to_plain(value) for key, value in record.parameters.items()}
        call = f"from {module} import {name}; print({name}({parameters!r}))"
        if _may_take_trial(self.space.program.function):
            words = f"{self.space.program.function!r}, {record.trial}, {parameters!r}, {run_dir!r}"
            call = f"from sweeps.programs.function import rerun; print(rerun({words}))"
        quoted = shlex.quote(call) if set(call) & set('"$`\\!') else f'"{call}"'  # a person reads it
        return f"python -c {quoted}"

    def lines_to_rerun(self, record: Trial) -> list[str]:
        """Return each parameter, because the command line is not for reading, and the command line."""
        return [*(f"  {override}" for override in to_overrides(record.parameters)), self.command_line(record)]


def _outcome(space: Space, returned: Any, where: str) -> Outcome:
    """Return the outcome that a function returned: metrics in any form, or a dict as in `result.json`.

    Any other status next to metrics is a note, as functions return for other libraries, too.
    """
    plain = dict(returned) if isinstance(returned, Mapping) else returned
    if (stated := stated_failure(plain, where)) is not None:
        return stated
    judge = parse_result if isinstance(plain, dict) and "metrics" in plain else check_metrics
    return judge(space, plain, where)


def rerun(name: str, index: int, parameters: Mapping[str, Any], run_dir: str) -> Any:
    """Return what the function `package.module:name` returns for a trial's parameters, outside of its sweep.

    Args:
        index: of the trial.
        run_dir: folder that the function gets if it takes a trial; it is made.

    Raises:
        CannotStart: there is no such function here.
    """
    function, folder = _load(name), Path(run_dir)
    if not _takes_trial(function):
        return function(dict(parameters))
    folder.mkdir(parents=True, exist_ok=True)
    record = Trial(trial=index, status="running", parameters=parameters, generator="enqueued")
    # The goal is for a warning alone, which its worker has given.
    return function(live_trial.Trial(record, folder, lambda: False, Objective(metric="")))


def failure_of(error: BaseException) -> Failed:
    """Return the failure of a trial whose Python code raised this."""
    message = storable.error_text(error)
    try:
        text = "".join(traceback.format_exception(error))
        lines = "\n".join(text.strip().splitlines()[-process.LAST_LINES :])
    except Exception:  # noqa: BLE001 - it calls methods of the user's classes
        lines = "(no traceback: the exception cannot be printed)"
    failure: Failure = "out_of_memory" if OUT_OF_MEMORY.search(message) else "crashed"
    retryable = failure == "crashed" and (network_was_lost(lines) or disk_failed(lines))
    return Failed(error=f"{message}\n{lines}", failure=failure, retryable=retryable)


def _takes_trial(function: Function) -> bool:
    """Return whether the function's first parameter is called `trial`; otherwise it takes the parameters."""
    try:
        return next(iter(inspect.signature(function).parameters), "") == "trial"
    except (TypeError, ValueError):  # of a builtin, for example
        return False


def _may_take_trial(name: str) -> bool:
    """Return whether the function `package.module:name` is here and may take a trial, for all that is known.

    Its source is read and not run: the commands and pages that ask only read a sweep.
    """
    module, _, attribute = name.partition(":")
    folders: Sequence[str] = ["", *sys.path]
    file = None
    for part in module.split("."):
        found = PathFinder.find_spec(part, folders)
        file, folders = (found.origin, found.submodule_search_locations or []) if found else (None, [])
    try:
        body = ast.parse(Path(file).read_bytes()).body if file else []
    except (OSError, SyntaxError, ValueError):
        return False
    functions = [each.args for each in body if isinstance(each, ast.FunctionDef) and each.name == attribute]
    if not functions:  # made or imported there
        return file is not None
    return [each.arg for each in (*functions[-1].posonlyargs, *functions[-1].args)][:1] == ["trial"]


def _load(name: str) -> Function:
    """Return the function `package.module:name`. Raises CannotStart."""
    if not name:
        raise CannotStart(
            "program: this sweep has none; run its trials from Python, by `sweeps.open(URL).run(function)`, "
            "or with `sweep ask` and `sweep tell`"
        )
    module_name, _, attribute = name.partition(":")
    try:
        with _as_script({}):
            module = importlib.import_module(module_name)
        function = getattr(module, attribute)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        package = module_name.partition(".")[0]
        if Path(getattr(sys.modules.get(package), "__file__", None) or "").parent == _PACKAGES / package:
            problem += f" (`{package}` is a package of stagesweep; give your module another name)"
        raise CannotStart(
            f"program.function: {name!r} cannot be loaded from this folder: {problem}; start this in the "
            "folder of the module, or name that in PYTHONPATH"
        ) from None
    if not callable(function):
        raise CannotStart(f"program.function: {name!r} is not a function")
    return function  # type: ignore[no-any-return]  # its signature cannot be checked


@contextmanager
def _as_script(variables: Mapping[str, str]) -> Iterator[None]:
    """Let code of the user run as a script in the working folder would: import from there first.

    Afterwards that folder is last, so that a `trainer.py` or `secrets.py` in it does not replace a module
    that this program imports later.

    Args:
        variables: of the environment, which are there only meanwhile.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    if "" not in sys.path:
        sys.path.append("")
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove("")  # the first of them
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
