"""What the worker, the operations and the search ask of a sweep's program, whatever its kind.

`kinds.program_of` returns the program of a sweep, of the class that fits its kind.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from sweeps.errors import CannotStart
from sweeps.programs.result import Outcome, needed_metrics
from sweeps.programs.signals import Stop
from sweeps.space.definition import Space, Value
from sweeps.space.domain import probes
from sweeps.space.stages import Stages
from sweeps.stages.checkpoint import SharedKeys, end_keys, trunk_keys
from sweeps.trials.record import Trial

LOG_FILE = "log.txt"
TRIAL_FILE = "trial.json"
"""File in the run folder with the trial's index, attempt and parameters."""


@dataclass(frozen=True, kw_only=True)
class HostEnd:
    """Exit of a trial's processes on one host.

    Args:
        status: as `subprocess` gives it, negative for a signal.
        output: the last lines that they have written.
        lost: which other host was lost meanwhile, in one clause; "" for none.
    """

    status: int
    output: str
    lost: str = ""


class Hosts(Protocol):
    """The hosts that share each trial of this worker."""

    def run(
        self,
        record: Trial,
        folder: Path,
        *,
        options: Mapping[str, bool],
        start: Callable[[str, Callable[[], bool]], HostEnd],
        should_stop: Callable[[], bool],
    ) -> HostEnd:
        """See `sweeps.worker.gang.leader.Leader.run`."""


class Program(ABC):
    """Program that computes the trials of a sweep.

    Attributes:
        test_overrides: parameters with which it reports metrics on data that no trial was selected by.
        hosts: those that share each trial; None: this one runs them alone.
        own_disks: whether each of those has a disk of its own, so that only the leader's files are kept.
    """

    test_overrides: ClassVar[Mapping[str, Value]] = {}
    hosts: Hosts | None = None
    own_disks: bool = False

    def __init__(self, space: Space) -> None:
        self.space = space

    # ---- before the sweep

    @abstractmethod
    def require_startable(self) -> None:
        """Raise CannotStart unless the program can be found here; it is not run."""

    def check(self, points: Sequence[Mapping[str, Value]]) -> None:
        """Make sure that the program can start with each of these parameters, before compute is spent.

        Raises:
            InputError: names the overrides, the command or the function that cannot work, each on a line.
        """
        self.require_startable()

    def complete(self) -> Space:
        """Check the program with samples of the space, and return the space with the stages that it has.

        Raises:
            InputError: as `check`.
        """
        self.check(probes(self.space))
        return self.space

    def defaults(self) -> Mapping[str, Value]:
        """Return the program's own values of searched parameters, as far as they are known."""
        return {}

    def prepare(  # noqa: B027 - nothing, for most
        self, threads: int, report: Callable[[str, float | None], None]
    ) -> None:
        """Build what all trials share, unless it exists.

        Args:
            report: called with the current step and its finished fraction, None if that is unknown.

        Raises:
            EnvironmentFault: it cannot be built on this machine.
        """

    @property
    def has_seed(self) -> bool:
        """Return whether it takes a parameter `seed`."""
        return any(parameter.name == "seed" for parameter in self.space.parameters)

    def reports(self, metric: str) -> bool:
        """Return whether each completed trial surely reports a metric."""
        return metric in needed_metrics(self.space)

    # ---- a trial

    def warm_up(self) -> None:  # noqa: B027 - nothing, for most
        """Begin in the background what the next trial would wait for."""

    def close(self) -> None:  # noqa: B027 - nothing, where `warm_up` does nothing
        """End what `warm_up` has begun."""

    @abstractmethod
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
        """Run one trial to its end, with its files in `folder`.

        The program is stopped when `stop` is requested (the worker has to leave) or `wants_stop()` turns true
        (another worker has the trial now, or it should stop early).

        Args:
            wants_stop: polled while the program runs.
            snapshots: whether the trainer writes the ends of its stages for other trials.
            points: whether it writes points of their trunks.

        Raises:
            EnvironmentFault: this machine cannot run the program.
        """

    @abstractmethod
    def command_line(self, record: Trial, *, run_dir: str = "runs/best") -> str:
        """Return one line for a shell that runs a trial's parameters again, in a run folder of this name."""

    def lines_to_rerun(self, record: Trial) -> list[str]:
        """Return what a person reads to run a trial's parameters again: the command line, or more."""
        return [self.command_line(record)]

    def variables(self, record: Trial, folder: Path) -> dict[str, str]:
        """Return the environment variables that a trial is run with."""
        return {"SWEEP_RUN_DIR": str(folder), "SWEEP_TRIAL": str(record.trial), "SWEEP_NAME": self.space.name}

    # ---- what trials share

    def shared_keys(self, parameters: Mapping[str, Value]) -> SharedKeys:
        """Return the keys of what a trial may share: ends of stages, and the trunks of stages that have one.

        Equal keys, of 64 hexadecimal digits, mean equal results. There are none if trials share nothing.
        """
        stages = Stages(self.space)
        return SharedKeys(
            ends=end_keys(self.space, stages, parameters) if stages.shared else {},
            trunks=trunk_keys(self.space, stages, parameters),
        )


def cannot_start(problem: str) -> CannotStart:
    """Return the error of a worker that cannot start the sweep's program."""
    return CannotStart(f"program: {problem}; start this in the folder and the environment of the program")


def write_trial_file(record: Trial, folder: Path) -> None:
    """Write `trial.json` into the run folder: `sweep import` of its result.json needs the parameters."""
    document = {"trial": record.trial, "attempt": record.attempt, "parameters": dict(record.parameters)}
    with suppress(OSError):  # the program cannot write here either, and will report it
        (folder / TRIAL_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
