"""The pool that a runner starts: what `sweep launch` was asked for, the same for every engine."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.counted import counted
from runners.errors import PoolError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Workers to start. Fields that an engine has no use for are refused by `engines.check`.

    Args:
        name: the sweep's name, for people and labels.
        storage: the sweep's whole URL.
        folder: where this machine keeps the pool's logs and what is known of it.
        workers: how many.
        command: the argv of one worker, such as `worker_command` makes it.
        accelerator: what each worker needs, in the engine's own word ("A100", "v6e-4"); "" for none.
        accelerator_count: how many of them for each worker.
        threads: CPU threads for each worker; None: the engine's default.
        devices: `local` only: accelerators as CUDA_VISIBLE_DEVICES names them, or chips of a TPU as `tpu:0`;
            one for each worker, in turn. Empty: the workers see what the starter sees.
        spot: machines that may be taken away at any time, for less money.
        environment: variables that the workers get besides those that are there.
        secrets: names of variables that the workers get with their values here; artifacts have only names.
        setup: lines for bash, before the worker, in its shell; what they export reaches the worker.
        grace_s: seconds that workers have to hand their trials back, before they are killed.
        restarts: crashes in a row after which a worker is given up.
        max_dollars_per_hour: a pool that would cost more is asked about; None: the command line's own limit.
        dollars_per_hour: what one worker costs, as far as somebody knows.
        priced_as: where that comes from, for people.
        options: passed on to the engine under its own names.
    """

    name: str
    storage: str
    folder: Path
    workers: int
    command: tuple[str, ...]
    accelerator: str = ""
    accelerator_count: int = 1
    threads: int | None = None
    devices: tuple[str, ...] = ()
    spot: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    grace_s: float = 30.0
    restarts: int = 5
    max_dollars_per_hour: float | None = None
    dollars_per_hour: float | None = None
    priced_as: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "accelerator_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PoolError(name, f"{value} is less than 1")
        for name in ("restarts", "grace_s", "max_dollars_per_hour"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise PoolError(name, f"{value} is not a number from 0 on")
        if not self.command or not self.command[0]:
            raise PoolError("command", "it is empty; give the argv of a worker")
        for name in (*self.environment, *self.secrets):
            if not _VARIABLE.fullmatch(name):
                field_ = "secrets" if name in self.secrets else "environment"
                raise PoolError(field_, f"{name!r} is no name of a variable: letters, digits and _")
        if both := sorted(set(self.secrets) & set(self.environment)):
            raise PoolError("secrets", f"{both[0]} is in the environment, too, where everybody can read it")
        for name, text in self._texts():
            if "\0" in text or _is_torn(text):
                raise PoolError(name, f"{text!r} has characters that no program can be given")
        if self.devices and self.workers > len(self.devices):
            there = counted(len(self.devices), "accelerator")
            raise PoolError(
                "workers",
                f"{self.workers} workers would share {there}, and a trainer takes a whole one; "
                f"at most {counted(len(self.devices), 'worker')}, or --devices none for CPUs",
            )

    @property
    def label(self) -> str:
        """A name for machines and jobs: lower case, digits and -, at most 45 characters; one a sweep."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:30].rstrip("-") or "pool"
        return f"sweep-{slug}-{hashlib.sha256(self.storage.encode()).hexdigest()[:8]}"

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield from (("name", self.name), ("storage", self.storage), ("accelerator", self.accelerator))
        for name in ("command", "devices", "setup"):
            yield from ((name, text) for text in getattr(self, name))
        yield from (("environment", text) for text in self.environment.values())


def worker_command(
    storage: str, *, python: str = sys.executable, max_trials: int | None = None
) -> tuple[str, ...]:
    """The argv of one worker: `sweep worker` for the sweep's whole URL, by the interpreter `python`."""
    argv = (python, "-m", "sweeps", "worker", "--storage", storage)
    return argv if max_trials is None else (*argv, "--max-trials", str(max_trials))


def _is_torn(text: str) -> bool:
    """Whether it holds half characters that no file can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
