"""Every error that `trainer` raises on purpose, and the exit status that `python -m trainer` gives it.

    TrainerError             1   anything that stops a run and is reported in one line
    ├── ConfigError          2   the configuration is refused before any compute
    │   ├── ConfigErrors         2   for several reasons, a line each
    │   └── MachineError         2   another machine may run it: this one lacks a device, a package, disk
    ├── DivergedError       70   a loss or a gradient is NaN or infinite
    ├── PreemptedError      75   a signal asked the run to end
    ├── OutOfMemory          1   the device, or the host, had no more memory
    ├── DataError            1   text cannot be read or is too short, or batches cannot be cut as asked
    │   ├── TokenizerError       1   there is no such tokenizer, or it cannot be used
    │   └── MissingError         1   there is no such file or folder, or no installed package opens it
    ├── UnreachableError     1   the network, or a service in it, is down; another attempt may succeed
    │   └── HangingDiskError     1   a disk, or a file system that is mounted, gives no answer
    └── TeacherServerError   1   the teacher's server refused a request, or gave an invalid answer

A message says in one line what is wrong, where, and what to do instead. Imports nothing: `trainer.api`
raises these in processes that must not load torch.
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_DIVERGED = 70
EXIT_PREEMPTED = 75


class TrainerError(Exception):
    """Root of the package's errors."""

    exit_status: int = EXIT_FAILED


class ConfigError(TrainerError):
    """The configuration is wrong; nothing was computed.

    Args:
        key: dotted Hydra key, or "" where no single key is at fault.
    """

    exit_status = EXIT_CONFIG

    def __init__(self, problem: str, *, key: str = "") -> None:
        self.problem, self.key = problem, key
        super().__init__(f"{key}: {problem}" if key else problem)

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """Return this error alone, or those that `ConfigErrors` joins."""
        return (self,)


class ConfigErrors(ConfigError):
    """Several wrong settings, with a line each in the message; `problem` and `key` are the first one's.

    Args:
        errors: two or more; use `joined` where there may be one.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(errors[0].problem, key=errors[0].key)
        self.args = ("\n".join(map(str, errors)),)
        self._errors = tuple(errors)

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        return self._errors


class MachineError(ConfigError):
    """The configuration asks for a device, a package or disk space that this machine does not have.

    `python -m trainer` says `not on this machine`, so that a sweep hands the trial to another worker.
    """


class MachineErrors(ConfigErrors, MachineError):
    """Several things that this machine lacks."""


def joined(errors: Sequence[ConfigError]) -> ConfigError:
    """Return one error for all of these, each message once.

    It is a `MachineError` if all are: what is wrong besides, no other machine can run.
    """
    distinct = list({str(each): each for error in errors for each in error.errors}.values())
    if len(distinct) == 1:
        return distinct[0]
    lacks = all(isinstance(each, MachineError) for each in distinct)
    return MachineErrors(distinct) if lacks else ConfigErrors(distinct)


class DivergedError(TrainerError):
    """Training or evaluation computed a number that is not finite.

    Args:
        value: NaN or infinite.
        step: one-based optimizer step within the stage; 0 means before the first one.
    """

    exit_status = EXIT_DIVERGED

    def __init__(self, *, quantity: str, value: float, stage: str, step: int) -> None:
        self.quantity, self.value, self.stage, self.step = quantity, value, stage, step
        super().__init__(
            f"{quantity} is {value} at step {step} of {stage}; try a lower learning rate or a longer warmup"
        )


class PreemptedError(TrainerError):
    """A signal asked the run to end; it ended after the step that it was in.

    Args:
        signal_name: "SIGTERM" or "SIGINT".
        where: the step that was finished, in words; "" before the first one.
    """

    exit_status = EXIT_PREEMPTED

    def __init__(self, *, signal_name: str, where: str = "") -> None:
        self.signal_name, self.where = signal_name, where
        self.resumable = False
        """Whether there is a checkpoint; set by the code that catches the exception and saves one."""
        super().__init__(signal_name, where)

    def __str__(self) -> str:
        after = f" after {self.where}" if self.where else ""
        next_ = "; the same command goes on from its checkpoint" if self.resumable else ""
        return f"stopped by {self.signal_name}{after}{next_}"


class OutOfMemory(TrainerError):
    """An allocation failed.

    Args:
        reason: the message of the allocator.
        estimate: the preflight's estimate of the run's memory, in words.
    """

    def __init__(self, reason: str, *, estimate: str) -> None:
        self.reason, self.estimate = reason, estimate
        super().__init__(
            f"out of memory ({reason}); {estimate}; write a smaller micro_batch_size for the stage, or "
            "device.recompute=true"
        )


class DataError(TrainerError):
    """Text that cannot be read or is too short, or a request for batches that cannot be met."""


class TokenizerError(DataError):
    """A tokenizer that does not exist or cannot be used."""


class MissingError(DataError):
    """A file or folder that does not exist, or that no installed package can open."""


class UnreachableError(TrainerError):
    """A service over the network gave no answer for long, or said that it cannot now.

    `python -m trainer` begins with `what`, so that a sweep tries the trial again.
    """

    what = "lost the network"


class HangingDiskError(UnreachableError):
    """Files in a folder, on a disk or a network file system, gave no answer for long."""

    what = "a disk or a mount hangs"


class TeacherServerError(TrainerError):
    """The teacher's server refused a request, or gave an invalid answer.

    Args:
        problem: words that follow "the teacher at ADDRESS".
        address: of the requests.
        status: HTTP status, where the server refused the request.
    """

    def __init__(self, problem: str, *, address: str, status: int | None = None) -> None:
        self.problem, self.address, self.status = problem, address, status
        super().__init__(f"the teacher at {address} {problem}")
