"""Interface of all engines' runners, which `engines` finds by name and `sweep launch`, `pool`, `down` call.

`render` is pure and shows everything that would be started; the rest is thin. A runner never hands out
trials: the store does, so a pool that is lost, duplicated or half-started costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from runners.pools.pool import Pool

Artifacts = Mapping[str, str]
"""File name -> text, for everything that the engine would get. No secret's value is in it."""

Notify = Callable[[str], None]
"""Callback that prints one line for the user."""

WorkerState = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """State of one worker of a pool.

    Args:
        worker: the engine's id of the worker; `logs` takes it.
        state: waiting: not started yet, or about to be restarted; done: it has no work left; failed: it is
            not restarted any more.
        where: the node, zone or process that it runs on.
        detail: the engine's own word for the state.
    """

    worker: str
    state: WorkerState
    where: str = ""
    detail: str = ""

    def row(self) -> dict[str, str]:
        """Return the status as `sweep pool status --format json` prints it."""
        return {"worker": self.worker, "state": self.state, "where": self.where, "told": self.detail}


@dataclass(frozen=True, kw_only=True)
class Health:
    """Result of an engine's check by `sweep doctor`.

    Args:
        state: ready: a pool can be started from here; unreachable: installed, but it does not answer;
            missing: something is not installed.
        detail: versions, and what was reached or not, in one line.
        remedy: how to fix it; "" where it is ready.
    """

    state: Literal["ready", "unreachable", "missing"]
    detail: str
    remedy: str = ""


class Runner(Protocol):
    """Engine that starts workers.

    Every method but `render` may raise `EngineMissing` (before anything else happens) or `EngineFailed`.
    """

    @property
    def name(self) -> str:
        """Return the name, as in `sweep launch NAME`."""

    @property
    def takes(self) -> frozenset[str]:
        """Return the fields of a pool that this engine supports and some do not; it refuses the others."""

    @property
    def keeps(self) -> bool:
        """Return True where `up` supervises the pool itself and blocks until it is down (see --detach)."""

    def sees(self, folder: Path, pool: Pool) -> bool:
        """Return True where the workers have this machine's folder too; if not, the storage is a bucket."""

    @property
    def python(self) -> str:
        """Return the interpreter that runs the workers, unless --python names another."""

    def render(self, pool: Pool) -> Artifacts:
        """Return everything that `up` would hand to the engine. Pure. Raises `PoolError`."""

    def up(self, pool: Pool, notify: Notify) -> int:
        """Start the pool and return the exit status of `sweep launch`."""

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """Return the status of every worker that the engine knows of."""

    def scale(self, pool: Pool, workers: int, notify: Notify) -> None:
        """Change the number of workers; surplus ones hand their trials back, finished ones do not count."""

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """Yield the last log lines of one worker, or of each, without line ends."""

    def down(self, pool: Pool, notify: Notify) -> int:
        """Stop the pool within `pool.grace_s` seconds and return how many workers there were."""

    def health(self) -> Health:
        """Check what is installed and reachable: quickly, and without raising."""
