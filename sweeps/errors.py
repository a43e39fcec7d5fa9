"""Every error that `sweeps` raises on purpose.

    SweepError                  exit status
    ├── InputError              2   what the user wrote or asked for is wrong
    │   ├── SpaceError              a search space file: file, line, key
    │   ├── CannotStart             the sweep's program, on this machine or in this folder
    │   └── SweepNotFound           no sweep at this URL
    ├── EnvironmentFault        1   the machine, the disk or the network is at fault
    │   ├── StoreUnavailable        the store cannot be read or written
    │   │   ├── Busy                    one object cannot: another process keeps it locked
    │   │   └── WriteRefused            this process may not write there: waiting is of no use
    │   └── DamagedObject           an object in the store is not what was written there
    ├── SweepClosed             1   no trial is handed out now: paused, braked, stopped, or out of budget
    ├── IllegalTransition       1   a lifecycle event that the trial's state does not allow
    ├── NothingToAsk            1   the optimizer cannot generate another candidate
    ├── UnstorableRecord        1   a record that nobody could read back; nothing was stored
    └── StoreConflict           -   lost a race; callers read again, users never see it
        ├── AlreadyExists
        └── Conflict

A message says what is wrong, where, and what to do instead, in one line.
"""

from __future__ import annotations

from typing import Literal

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130


class SweepError(Exception):
    """Root of the package's errors."""

    exit_status: int = EXIT_FAILED


class InputError(SweepError):
    """The user's input is wrong: exit status 2, nothing was changed."""

    exit_status = EXIT_INPUT


class SpaceError(InputError):
    """A search space file is wrong.

    Args:
        problem: what is wrong and what to write instead.
        file: the file's name as the user gave it.
        line: one-based line, or None where the file as a whole is wrong.
        key: dotted path of the key, or "" where there is none.
    """

    def __init__(self, problem: str, *, file: str, line: int | None = None, key: str = "") -> None:
        self.problem, self.file, self.line, self.key = problem, file, line, key
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")


class CannotStart(InputError):
    """The sweep's program cannot be started by this worker; no trial is at fault."""


class SweepNotFound(InputError):
    """There is no sweep at this URL."""


class EnvironmentFault(SweepError):
    """The machine, the disk or the network is at fault, not the input."""


class StoreUnavailable(EnvironmentFault):
    """The store cannot be read or written (permissions, disk full, network)."""


class Busy(StoreUnavailable):
    """One object cannot be written, because another process is in the middle of that and does not go on.

    Args:
        key: the object's.
        problem: which lock it is, and what to do.
    """

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        super().__init__(problem)


class WriteRefused(StoreUnavailable):
    """The store takes no writes of this process: read-only, no permission, or a limit on files' sizes."""


class DamagedObject(EnvironmentFault):
    """An object in the store is not what this program writes there.

    Args:
        key: the object's key in the store.
        reason: what does not fit.
        location: where a person finds the object (a path or URL).
    """

    def __init__(self, key: str, reason: str, location: str) -> None:
        self.key, self.reason, self.location = key, reason, location
        super().__init__(f"{location}: damaged record ({reason}); {_REMEDIES.get(key, _REPAIR)}")


_REPAIR = (
    "put the original back, or let `sweep repair --yes` move it to quarantine/ (`sweep doctor` says more)"
)
# Without it no other command can open the sweep, `sweep repair` included.
_REMEDIES = {
    "sweep.json": "put the original back, or move it away and make it anew: `sweep init` with the same search"
    " space file"
}


class IllegalTransition(SweepError):
    """A lifecycle event that the trial's present state does not allow.

    Args:
        trial: index of the trial.
        status: its present status.
        event: name of the refused event.
        why: one clause.
        history: the attempts so far, oldest first.
    """

    def __init__(
        self, trial: int, status: str, event: str, why: str, history: tuple[object, ...] = ()
    ) -> None:
        self.trial, self.status, self.event, self.why, self.history = trial, status, event, why, history
        told = "; ".join(str(entry) for entry in history) or "no attempts yet"
        super().__init__(f"trial {trial} is {status}: {event} refused, {why} (history: {told})")


class SweepClosed(SweepError):
    """No trial is handed out now.

    Args:
        state: why; a paused or braked sweep may open again, the others are over for a worker.
        told: the reason for people.
    """

    def __init__(self, state: Literal["paused", "braked", "stopped", "spent"], told: str) -> None:
        self.state, self.told = state, told
        super().__init__(told)


class NothingToAsk(SweepError):
    """The optimizer cannot generate another candidate (a finite space is used up, for example)."""


class UnstorableRecord(SweepError, ValueError):
    """A record that could not be read back if it were stored; nothing was stored.

    Args:
        trial: index of the trial.
        reason: one clause, what the reader refuses.
    """

    def __init__(self, trial: int, reason: str) -> None:
        self.trial, self.reason = trial, reason
        super().__init__(f"trial {trial}: its record could not be read back ({reason}); nothing was stored")


class StoreConflict(SweepError):
    """Another writer was faster. The caller reads again and decides anew."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"{key}: another writer was faster")


class AlreadyExists(StoreConflict):
    """`create` found the key taken."""


class Conflict(StoreConflict):
    """`replace` or `delete` found another version than the expected one, or none."""


class Interrupted(BaseException):
    """The worker was asked to leave: raised where that is safe. No `except Exception` stops it."""
