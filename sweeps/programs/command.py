"""Command line as a program: a child process, so that a crash or an out-of-memory kill fails a trial.

The record gets the end of its log; the worker lives on.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweeps.errors import EnvironmentFault
from sweeps.programs import process, startable
from sweeps.programs.base import LOG_FILE, HostEnd, Program, cannot_start, write_trial_file
from sweeps.programs.launchers import behind_launcher
from sweeps.programs.progress_log import METRICS_FILE
from sweeps.programs.result import (
    RESULT_FILE,
    Failed,
    NotStarted,
    Outcome,
    Preempted,
    classify_exit,
    read_refusal,
    read_result,
    states_completion,
    was_limited,
    was_preempted,
)
from sweeps.programs.signals import Stop
from sweeps.space.overrides import with_parameters
from sweeps.trials.record import Trial

PYTHON = "${python}"
"""Placeholder in a command for the Python that the worker itself runs in."""
PLACEHOLDERS = (PYTHON, "${run_dir}", "${trial}")
"""What is replaced within any argument of a command; `overrides.WORDS` are whole arguments."""

CONFIG_FILE = "config.json"  # the trainer refuses to resume a folder whose config differs


class CommandProgram(Program):
    """Command that the search space gives, with a trial's parameters as arguments."""

    def require_startable(self) -> None:
        template = [word.replace(PYTHON, sys.executable) for word in self.space.program.command]
        if problem := startable.problem(template):
            raise cannot_start(problem)

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
        had_result: bool | None = None  # when the program was told to go; None: it was not

        def should_stop() -> bool:
            nonlocal had_result
            if not (stop.requested or wants_stop()):
                return False
            if had_result is None:
                had_result = (folder / RESULT_FILE).exists()
            return True

        if should_stop():
            return Preempted(detail="before the program was started")
        for name in (RESULT_FILE, METRICS_FILE, CONFIG_FILE):  # left by a lost record whose index was reused
            (folder / name).unlink(missing_ok=True)
        argv = self.argv(record, folder, snapshots=snapshots, points=points)
        if problem := startable.problem(argv):
            return NotStarted(detail=problem)
        write_trial_file(record, folder)
        log_file, env = folder / LOG_FILE, self.variables(record, folder)

        def start(host: str, should_stop: Callable[[], bool]) -> HostEnd:
            words = argv
            if host:
                words = self.argv(record, folder, snapshots=snapshots, points=points, host=host)
            warm = self.warm_starter()
            status = process.run(words, log_file=log_file, env=env, should_stop=should_stop, warm=warm)
            status, output = behind_launcher(status, log_file)
            return HostEnd(status=status, output=output)

        try:
            if self.hosts is None:
                end = start("", should_stop)
            else:
                options = {"snapshots": snapshots, "points": points}
                end = self.hosts.run(record, folder, options=options, start=start, should_stop=should_stop)
        except process.Unstartable as error:
            return Failed(error=str(error), failure="bad_config")
        status = end.status
        was_stopped = should_stop()
        # Libraries that stop at SIGTERM, such as transformers with `enable_jit_checkpoint`, return as if
        # training were complete, and the script goes on to measure and report half of a run.
        if status == 0 and (not was_stopped or had_result or states_completion(folder / RESULT_FILE)):
            return read_result(self.space, folder / RESULT_FILE)
        if end.lost and not was_stopped:  # as if this worker were, but its trial need not wait for a lease
            return Failed(error=f"{end.lost}\n{end.output}".strip(), failure="lost", retryable=True)
        if was_limited(status):
            raise EnvironmentFault(
                "the program was ended because it may not write such large files here (SIGXFSZ); lift the "
                "limit (ulimit -f) and start this worker again"
            )
        if was_stopped or was_preempted(status):
            return Preempted(detail=f"the program {process.describe_exit(status)}")
        stated = read_refusal(folder / RESULT_FILE)
        return stated or self.read_exit(status, end.output, argv)

    def argv(
        self, record: Trial, folder: Path, *, snapshots: bool, points: bool, host: str = ""
    ) -> list[str]:
        """Return the argument vector of a trial; see `run` for the arguments.

        Args:
            host: this host among those that share it, as RANK/HOSTS@ADDRESS:PORT; "" where it is alone.
        """
        values = (sys.executable, str(folder), str(record.trial))
        return self._argv(record, dict(zip(PLACEHOLDERS, values, strict=True)))

    def warm_starter(self) -> process.Starter | None:
        """Return a start that is quicker than by the command; None: there is none."""
        return None

    def read_exit(self, status: int, output: str, argv: Sequence[str]) -> Failed | NotStarted:
        """Return why the program failed; see `result.classify_exit`."""
        return classify_exit(status, output, argv)

    def command_line(self, record: Trial, *, run_dir: str = "runs/best") -> str:
        values = ("python", run_dir, str(record.trial))
        words = self._argv(record, dict(zip(PLACEHOLDERS, values, strict=True)))
        # Absolute, because a program may change its working directory before it writes its result.
        return f'mkdir -p {run_dir} && SWEEP_RUN_DIR="$PWD/{run_dir}" {shlex.join(words)}'

    def _argv(self, record: Trial, values: Mapping[str, str]) -> list[str]:
        """Return the command with a trial's parameters, and with these values for its placeholders.

        All placeholders of a word are replaced in one pass, so that no value is expanded again.
        """
        placeholder = re.compile("|".join(map(re.escape, values)))
        return with_parameters(
            self.space.program.command,
            record.parameters,
            lambda word: placeholder.sub(lambda found: values[found[0]], word),
        )
