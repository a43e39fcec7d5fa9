"""All errors that `sweeps` raises on purpose.

    SweepError                  exit status
    ├── InputError              2   the user's input is wrong
    │   ├── SpaceError              a search space file: file, line, key
    │   ├── CannotStart             the sweep's program, on this machine or in this folder
    │   └── SweepNotFound           no sweep at this URL
    ├── EnvironmentFault        1   the machine, the disk or the network is at fault
    │   ├── DiskFailed              a disk under a trial's program; the attempt counts as lost
    │   ├── StoreUnavailable        the store cannot be read or written
    │   │   ├── Busy                    one object is locked by another process
    │   │   └── WriteRefused            retrying is useless: no permission, or a file where a folder belongs
    │   └── DamagedObject           an object in the store is not what was written there
    │       └── NewerObject     2   a later version wrote it
    ├── SweepClosed             1   no trial is handed out: paused, braked, stopped, or out of budget
    ├── IllegalTransition       1   a lifecycle event that the trial's state does not allow
    ├── SurrogateFailed         1   the model of the search cannot be fitted to the results
    ├── NothingToAsk            1   there is no trial to hand out, or no other candidate
    ├── TrialLost               1   a trial that another worker, or nobody, has now
    ├── UnstorableRecord        1   a record that could not be read back; nothing was stored
    └── StoreConflict           -   a lost race; callers read again, users never see it
        ├── AlreadyExists
        └── Conflict

A message says what is wrong, where, and what to do instead, in one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130


class SweepError(Exception):
    """Base class of the package's errors."""

    exit_status: int = EXIT_FAILED


class InputError(SweepError):
    """An error in the user's input: exit status 2, nothing was changed."""

    exit_status = EXIT_INPUT


class SpaceError(InputError):
    """An error in a search space file.

    Args:
        file: the file's name as the user gave it.
        line: one-based line, or None where the error has no line.
        key: dotted path of the key, or "" where there is none.
        others: further problems of the file; the message has a line for each.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str,
        line: int | None = None,
        key: str = "",
        others: Sequence[SpaceError] = (),
    ) -> None:
        self.problem, self.file, self.line, self.key = problem, file, line, key
        where = file if line is None else f"{file}:{line}"
        message = f"{where}: {key}: {problem}" if key else f"{where}: {problem}"
        alone = self if not others else SpaceError(problem, file=file, line=line, key=key)
        self.problems: tuple[SpaceError, ...] = (alone, *others)
        super().__init__("\n".join([message, *map(str, others)]))

    @classmethod
    def together(cls, problems: Sequence[SpaceError]) -> SpaceError:
        """Return one error with all of these, each once."""
        first, *others = {str(problem): problem for each in problems for problem in each.problems}.values()
        return cls(first.problem, file=first.file, line=first.line, key=first.key, others=others)


class CannotStart(InputError):
    """A program that this worker cannot start; no trial is at fault."""


class SweepNotFound(InputError):
    """A URL without a sweep."""


class EnvironmentFault(SweepError):
    """A fault of the machine, the disk or the network, not of the input."""


class DiskFailed(EnvironmentFault):
    """A disk that failed, or was full, under a trial's program, by the program's last words."""


class StoreUnavailable(EnvironmentFault):
    """A store that cannot be read or written (permissions, full disk, network)."""


class Busy(StoreUnavailable):
    """An object that another process has locked for too long.

    Args:
        problem: which lock it is, and what to do.
    """

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        super().__init__(problem)


class WriteRefused(StoreUnavailable):
    """An error that retrying cannot mend: read-only, no permission, or a file where a folder belongs."""


class DamagedObject(EnvironmentFault):
    """An object in the store that is not what this program writes there.

    Args:
        location: path or URL of the object.
    """

    def __init__(self, key: str, reason: str, location: str) -> None:
        self.key, self.reason, self.location = key, reason, location
        super().__init__(f"{location}: {self.clause()}")

    def clause(self) -> str:
        """Return what is wrong, and what to do."""
        return f"damaged record ({self.reason}); {_REMEDIES.get(self.key, _REPAIR)}"


class NewerFormat(ValueError):
    """Content with a schema, or a key, that only a later version can know."""


class NewerObject(DamagedObject):
    """An object of a later version: nothing is wrong with it, and this version must leave it alone."""

    exit_status = EXIT_INPUT

    def clause(self) -> str:
        """Return what is wrong, and what to do."""
        return f"a later version of stagesweep wrote this ({self.reason}); {UPDATE}"


def unreadable(key: str, error: Exception, location: str, reason: str = "") -> DamagedObject:
    """Return the error of an object whose content was refused with `error`.

    Args:
        reason: for a damaged one, in place of the error's message.
    """
    if isinstance(error, NewerFormat):
        return NewerObject(key, str(error), location)
    return DamagedObject(key, reason or str(error), location)


UPDATE = "update this machine: pip install -U /path/to/stagesweep"
_REPAIR = (
    "put the original back, or let `sweep repair --yes` move it to quarantine/ (`sweep doctor` says more)"
)
# `sweep repair` itself needs `sweep.json` to open the sweep.
_REMEDIES = {
    "sweep.json": "put the original back, or move it away and recreate it: `sweep init` with the same search"
    " space file"
}


class IllegalTransition(SweepError):
    """A lifecycle event that the trial's current state does not allow.

    Args:
        history: the attempts so far, oldest first.
    """

    def __init__(
        self, trial: int, status: str, event: str, why: str, history: tuple[object, ...] = ()
    ) -> None:
        self.trial, self.status, self.event, self.why, self.history = trial, status, event, why, history
        attempts = "; ".join(str(entry) for entry in history) or "no attempts yet"
        super().__init__(f"trial {trial} is {status}: {event} refused, {why} (history: {attempts})")


class SweepClosed(SweepError):
    """A sweep that hands out no trials now.

    Args:
        state: cause; workers wait for a paused or braked sweep and leave the others.
    """

    def __init__(self, state: Literal["paused", "braked", "stopped", "spent"], message: str) -> None:
        self.state, self.message = state, message
        super().__init__(message)


class NothingToAsk(SweepError):
    """No trial to hand out: the sweep is full, or its space has no other candidate."""


class SurrogateFailed(SweepError):
    """A model that cannot be fitted to the results, for whoever wants its answer; a search does without."""


class TrialLost(SweepError):
    """A report about a trial that was taken over, or that a user has given up; nothing was stored."""

    def __init__(self, trial: int, why: str) -> None:
        self.trial, self.why = trial, why
        super().__init__(
            f"trial {trial} is lost: {why}; nothing of this attempt is stored any more, stop it and ask for "
            "another trial"
        )


class UnstorableRecord(SweepError, ValueError):
    """A record that could not be read back; nothing was stored."""

    def __init__(self, trial: int, reason: str) -> None:
        self.trial, self.reason = trial, reason
        super().__init__(f"trial {trial}: its record could not be read back ({reason}); nothing was stored")


class StoreConflict(SweepError):
    """A race lost to another writer: the caller reads again and decides anew."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"{key}: another writer was faster")


class AlreadyExists(StoreConflict):
    """A `create` of a key that exists."""


class Conflict(StoreConflict):
    """A `replace` or `delete` whose expected version is not the current one."""


class Interrupted(BaseException):
    """A request to stop the worker, raised where stopping is safe; no `except Exception` catches it."""
