"""Description of a pool of workers, the same for every engine."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.errors import PoolError
from sweeps.text.counted import counted

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPASSABLE = re.compile("[\0\ud800-\udfff]")  # the others are unpaired surrogates, which UTF-8 cannot encode


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Workers to start. `engines.check` refuses fields that an engine does not support.

    Args:
        name: the sweep's name, for people and labels.
        folder: this machine's folder for the pool's logs and records.
        command: the argv of one worker, see `worker_command`.
        nodes: hosts of each worker, which share its trials; the command is started on each of them.
        accelerator: accelerator of each worker, as the engine names it ("A100", "v6e-4"); "" for none.
        threads: CPU threads per worker; None: the engine's default.
        devices: `local` only: accelerators as CUDA_VISIBLE_DEVICES names them, or chips of a TPU as `tpu:0`;
            one per host of a worker, in order, or several with commas between them, one for each process of a
            trial. Empty: the workers see all that their starter sees.
        spot: use cheaper machines that may be preempted.
        environment: variables added to the workers' environment.
        secrets: names of variables that are passed to the workers; artifacts never hold their values.
        setup: lines of bash that run in the worker's shell before it; what they export reaches the worker.
        grace_s: seconds between SIGTERM and SIGKILL, in which workers hand their trials back.
        restarts: consecutive crashes that are answered by a restart.
        max_dollars_per_hour: cost above which the user is asked; None: the command line's own limit.
        dollars_per_hour: cost of one worker, if known.
        priced_as: source of that price, for people.
        price_is_least: whether it may cost more, as where the accelerator has several prices.
    """

    name: str
    storage: str
    folder: Path
    workers: int
    command: tuple[str, ...]
    nodes: int = 1
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
    price_is_least: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("workers", "nodes", "threads", "accelerator_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PoolError(name, f"{value} is less than 1")
        for name in ("restarts", "grace_s", "max_dollars_per_hour"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise PoolError(name, f"{value} is not a finite number, at least 0")
        if not self.command or not self.command[0]:
            raise PoolError("command", "it is empty; give the argv of a worker")
        for name in (*self.environment, *self.secrets):
            if not _VARIABLE.fullmatch(name):
                field_ = "secrets" if name in self.secrets else "environment"
                raise PoolError(field_, f"{name!r} is not a name of a variable: letters, digits and _")
        if both := sorted(set(self.secrets) & set(self.environment)):
            raise PoolError("secrets", f"{both[0]} is in the environment too, where everyone can read it")
        for name, text in self._texts():
            if _UNPASSABLE.search(text):
                raise PoolError(name, f"{text!r} has characters that cannot be passed to a program")
        if self.devices and self.workers * self.nodes > len(self.devices):
            each = f" of {self.nodes} hosts" if self.nodes > 1 else ""
            most = counted(len(self.devices) // self.nodes, "worker")
            raise PoolError(
                "workers",
                f"{self.workers} workers{each} would share {self.accelerators}, and each trainer needs its "
                f"own; at most {most}, or --devices none for CPUs",
            )

    @property
    def label(self) -> str:
        """Return a name for machines and jobs, unique to the sweep: [a-z0-9-], at most 45 characters."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:30].rstrip("-") or "pool"
        return f"sweep-{slug}-{hashlib.sha256(self.storage.encode()).hexdigest()[:8]}"

    @property
    def accelerators(self) -> str:
        """Return how many devices there are, for people."""
        size = self.devices[0].count(",") + 1 if self.devices else 1
        if size == 1:
            return counted(len(self.devices), "accelerator")
        return counted(len(self.devices), f"group of {size} accelerators", f"groups of {size} accelerators")

    def require_one_host(self) -> None:
        """Raise `PoolError` where several hosts share a worker's trials, for workers with TPUs."""
        if self.nodes > 1:
            raise PoolError("nodes", "the trainer does not share the TPUs of several hosts; leave it out")

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield from (("name", self.name), ("storage", self.storage), ("accelerator", self.accelerator))
        for name in ("command", "devices", "setup"):
            yield from ((name, text) for text in getattr(self, name))
        yield from (("environment", text) for text in self.environment.values())


def worker_command(
    storage: str, *, python: str = sys.executable, max_trials: int | None = None, nodes: int | None = None
) -> tuple[str, ...]:
    """Return the argv of one worker: `sweep worker` for the sweep's full URL, run by `python`.

    With `-P` a `sweeps.py` in the folder where it starts is not taken for this package.
    """
    options = {"--max-trials": max_trials, "--nodes": nodes}
    given = (word for name, value in options.items() if value is not None for word in (name, str(value)))
    return (python, "-P", "-m", "sweeps", "worker", "--storage", storage, *given)
