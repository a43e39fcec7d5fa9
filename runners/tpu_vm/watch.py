"""Brings the TPU VMs of a pool to what is wanted, and keeps them there: looks, asks `decide`, does it.
`runner` calls it.

The loop holds nothing that matters: one that is started anew goes on from what it sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from google.api_core import exceptions, retry

from runners.errors import EngineFailed
from runners.pools.runner import Tell
from runners.tpu_vm.decide import Create, Delete, Ended, Memory, Outcome, Wanted, after, decide
from runners.tpu_vm.observed import Observed

EVERY_S = 30.0
_LISTEN_S = 0.5
CLEAR_EVERY_S = 10.0
GONE_S = 600.0
_PASSING = ("zone ", "request ", "VM ")


class Vms(Protocol):
    """What `client.TpuVms` is, and a test's stand-in."""

    def look(self, *, blame: bool = False) -> Observed:
        """All that there is."""

    def create(self, create: Create) -> tuple[Outcome, str]:
        """Ask for one."""

    def settled(self) -> Iterator[tuple[Create, Outcome, str]]:
        """Creations whose end is known now."""

    def delete(self, delete: Delete) -> str:
        """Delete one; what was wrong with that."""


def watch(
    vms: Vms,
    wanted: Callable[[], Wanted],
    *,
    stopped: Callable[[], bool],
    notify: Tell,
    every_s: float = EVERY_S,
) -> dict[int, Ended | None]:
    """Until every worker has ended for good, or `stopped` says so. The caller clears up then.

    Args:
        wanted: asked at every look; may change.
        stopped: asked twice a second.

    Returns:
        How each worker ended; None for those that had not.

    Raises:
        EngineFailed: at the first look, where the service refuses it.
    """
    memory, told, first = Memory(), dict[str, str](), True
    while not stopped():
        want = wanted()
        seen, memory = step(vms, want, memory, notify, told, blame=first)
        first = False
        ends = {worker: memory.ended.get(worker) for worker in range(1, want.workers + 1)}
        if all(ends.values()) and not seen.things and not seen.blind and not seen.pending:
            for zone, problem in memory.refused.items():
                notify(f"{zone} refused: {problem}")
            return ends
        _pause(every_s, stopped)
    return {worker: memory.ended.get(worker) for worker in range(1, wanted().workers + 1)}


def step(
    vms: Vms, want: Wanted, memory: Memory, notify: Tell, told: dict[str, str], *, blame: bool = False
) -> tuple[Observed, Memory]:
    """One look, and what follows from it. `told` holds what was told last of each thing, to tell it once."""

    def tell_once(about: str, line: str) -> None:
        if told.get(about) != line:
            told[about] = line
            notify(line)

    for create, outcome, problem in vms.settled():
        if outcome != "accepted":
            about = f"worker {create.worker}: {create.zone}"
            tell_once(about, f"{about} did not make its VM ({outcome}): {problem}")
        memory = after(memory, create, want, outcome, problem)
    seen = vms.look(blame=blame)
    _tell_states(seen, told, tell_once)
    actions, memory = decide(seen, want, memory)
    for action in actions:
        memory = _do(vms, action, memory, want, tell_once)
    return seen, memory


def clear(
    vms: Vms, zones: tuple[str, ...], notify: Tell, *, every_s: float | None = None, gone_s: float = GONE_S
) -> int:
    """Delete everything of the pool, and look until it is gone, twice: a creation whose answer was lost may
    come late. Returns how many VMs and requests there were.

    Raises:
        EngineFailed: what is still there after `gone_s` seconds, or what could not be looked at.
    """
    met: set[tuple[int, str]] = set()
    told: dict[str, str] = {}
    empty = 0

    def attempt() -> None:
        nonlocal empty
        seen, _ = step(vms, Wanted(workers=0, zones=zones), Memory(), notify, told)
        met.update((thing.worker, thing.zone) for thing in seen.things)
        left = {f"{thing.id} in {thing.zone} ({thing.state})" for thing in seen.things}
        left |= {f"{zone}, which does not answer" for zone in seen.blind}
        left |= {f"a creation for worker {worker}" for worker in seen.pending}
        empty = 0 if left else empty + 1
        if empty < 2:
            raise _StillThere(", ".join(sorted(left)) or "perhaps a creation that was lost")

    again = retry.Retry(
        predicate=retry.if_exception_type(_StillThere),
        initial=CLEAR_EVERY_S if every_s is None else every_s,
        maximum=CLEAR_EVERY_S if every_s is None else every_s,
        multiplier=1.0,
        timeout=gone_s,
    )
    try:
        again(attempt)()
    except exceptions.RetryError as error:
        left = f"still there, and it costs money: {error.cause}; run `sweep down` again"
        raise EngineFailed("tpu-vm", left) from None
    return len(met)


class _StillThere(Exception):
    """Something of the pool is not gone yet."""


def _do(
    vms: Vms, action: Create | Delete, memory: Memory, want: Wanted, tell_once: Callable[[str, str], None]
) -> Memory:
    about = f"worker {action.worker}: {action.zone}"
    if isinstance(action, Delete):
        problem = vms.delete(action)
        not_yet = f", but not yet: {problem}" if problem else ""
        tell_once(
            about, f"worker {action.worker}: {action.id} in {action.zone} is deleted: {action.why}{not_yet}"
        )
        return memory
    outcome, problem = vms.create(action)
    end = {"accepted": "asked for", "exists": "there already"}.get(
        outcome, f"not made ({outcome}): {problem}"
    )
    tell_once(about, f"worker {action.worker}: a VM in {action.zone} is {end}")
    return after(memory, action, want, outcome, problem)


def _tell_states(seen: Observed, told: dict[str, str], tell_once: Callable[[str, str], None]) -> None:
    """States that are new. What is gone is forgotten, so that its successor's are told again."""
    lines = {
        f"zone {zone}": f"{zone} does not answer; nothing new is made until it does"
        for zone in sorted(seen.blind)
    }
    for each in seen.things:
        kind = "request" if each.kind == "queued" else "VM"
        state = f"worker {each.worker}: the {kind} in {each.zone} is {each.state}"
        lines[f"{kind} {each.zone} {each.id}"] = state
    for about in [about for about in told if about.startswith(_PASSING) and about not in lines]:
        del told[about]
    for about, line in lines.items():
        tell_once(about, line)


def _pause(seconds: float, stopped: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not stopped() and (left := until - time.monotonic()) > 0:
        time.sleep(min(_LISTEN_S, left))
