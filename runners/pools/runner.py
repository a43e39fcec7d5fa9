"""What every engine's runner does. `engines` finds them by name, `sweep launch`, `pool` and `down` call them.

`render` is pure and says everything that would be started; the rest is thin. A runner never hands out
trials: the store does, so a pool that is lost, doubled or half-started costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from runners.pools.pool import Pool

Artifacts = Mapping[str, str]
"""File name -> text: whatever would be handed to the engine. A secret's value is in none of them."""

Tell = Callable[[str], None]
"""Told in one line what happens."""

PlaceState = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One worker's place in a pool.

    Args:
        worker: how the engine calls it; `logs` takes it.
        state: waiting: not started, or about to be started again; done: it has no work left; failed: it is
            given up.
        where: the node, the zone, the process.
        told: the engine's own word for its state.
    """

    worker: str
    state: PlaceState
    where: str = ""
    told: str = ""


@dataclass(frozen=True, kw_only=True)
class Health:
    """What `sweep doctor` says of an engine.

    Args:
        state: ready: a pool can be started from here; unreachable: it is installed, and does not answer;
            missing: something is not installed.
        told: versions, and what was reached or not, in one line.
        remedy: what to do about it; "" where it is ready.
    """

    state: Literal["ready", "unreachable", "missing"]
    told: str
    remedy: str = ""


class Runner(Protocol):
    """An engine that starts workers.

    Every method but `render` may raise `EngineMissing` (before anything else happens) or `EngineFailed`.
    """

    @property
    def name(self) -> str:
        """As in `sweep launch NAME`."""

    @property
    def takes(self) -> frozenset[str]:
        """Fields of a pool with a default that this engine heeds; a value in another is refused."""

    @property
    def keeps(self) -> bool:
        """Whether `up` stays until the pool is down, which --detach puts into the background; else the engine
        keeps the pool."""

    @property
    def sees_folders(self) -> bool:
        """Whether its workers see this machine's folders; if not, the storage has to be a bucket."""

    @property
    def python(self) -> str:
        """The interpreter that workers are run by, unless --python says another."""

    def render(self, pool: Pool) -> Artifacts:
        """Everything that `up` would hand to the engine. Pure. Raises `PoolError`."""

    def up(self, pool: Pool, notify: Tell) -> int:
        """Start the pool; the exit status of `sweep launch`."""

    def status(self, pool: Pool) -> tuple[Place, ...]:
        """Every place that the engine knows of."""

    def scale(self, pool: Pool, workers: int, notify: Tell) -> None:
        """Have so many workers. Those too many hand their trials back, those that are done do not count."""

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """The last lines that a worker wrote, or each of them, without line ends."""

    def down(self, pool: Pool, notify: Tell) -> int:
        """End the pool; its workers have `pool.grace_s` seconds. How many places there were."""

    def health(self) -> Health:
        """What is installed and reachable. Quick, and never an error."""
