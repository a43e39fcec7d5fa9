"""Reconciliation loop for the TPU VMs of a pool: observe, `decide`, act.

The loop holds no state that matters: one that is restarted continues from what it observes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from google.api_core import exceptions, retry

from runners.errors import EngineFailed
from runners.pools.runner import Notify
from runners.tpu_vm.decide import Create, Delete, Ended, Memory, Outcome, Wanted, after, decide
from runners.tpu_vm.observed import Observed

EVERY_S = 30.0
_POLL_S = 0.5
CLEAR_EVERY_S = 10.0
GONE_S = 600.0
_TRANSIENT = ("zone ", "request ", "VM ")


class Vms(Protocol):
    """Interface of `client.TpuVms`, also for test doubles."""

    def observe(self, *, strict: bool = False) -> Observed:
        """Return the state of the pool."""

    def create(self, create: Create) -> tuple[Outcome, str]:
        """Request a VM."""

    def finished_creations(self) -> Iterator[tuple[Create, Outcome, str]]:
        """Yield creations whose outcome has become known."""

    def delete(self, delete: Delete) -> str:
        """Delete a resource and return the error message."""


def watch(
    vms: Vms,
    wanted: Callable[[], Wanted],
    *,
    stopped: Callable[[], bool],
    notify: Notify,
    every_s: float = EVERY_S,
) -> dict[int, Ended | None]:
    """Reconcile until every worker has ended for good or `stopped`; what is left is for `clear`.

    Args:
        wanted: called at every step; its result may change.
        stopped: polled twice a second.

    Returns:
        How each worker ended; None for those that had not.

    Raises:
        EngineFailed: a zone does not answer at the first step.
    """
    memory, notified, first = Memory(), dict[str, str](), True
    while not stopped():
        want = wanted()
        observed, memory = step(vms, want, memory, notify, notified, strict=first)
        first = False
        ends = {worker: memory.ended.get(worker) for worker in range(1, want.workers + 1)}
        if all(ends.values()) and observed == Observed():
            for zone, problem in memory.refused.items():
                notify(f"{zone} refused: {problem}")
            return ends
        pause(every_s, stopped)
    return {worker: memory.ended.get(worker) for worker in range(1, wanted().workers + 1)}


def step(
    vms: Vms, want: Wanted, memory: Memory, notify: Notify, notified: dict[str, str], *, strict: bool = False
) -> tuple[Observed, Memory]:
    """Observe once and act on it.

    Args:
        memory: of the step before.
        notified: by subject: the last line, so that a repeated one is suppressed; updated in place.
        strict: see `Vms.observe`.
    """

    def notify_once(subject: str, line: str) -> None:
        if notified.get(subject) != line:
            notified[subject] = line
            notify(line)

    for create, outcome, problem in vms.finished_creations():
        if outcome != "accepted":
            subject = f"worker {create.worker}: {create.zone}"
            notify_once(subject, f"{subject} did not create its VM ({outcome}): {problem}")
        memory = after(memory, create, want, outcome, problem)
    observed = vms.observe(strict=strict)
    _notify_states(observed, notified, notify_once)
    actions, memory = decide(observed, want, memory)
    for action in actions:
        subject = f"worker {action.worker}: {action.zone}"
        if isinstance(action, Delete):
            problem = vms.delete(action)
            not_yet = f", but not yet: {problem}" if problem else ""
            what = f"worker {action.worker}: {action.id} in {action.zone}"
            notify_once(subject, f"{what} is deleted: {action.why}{not_yet}")
            continue
        outcome, problem = vms.create(action)
        ends = {"accepted": "requested", "exists": "there already"}
        end = ends.get(outcome, f"not created ({outcome}): {problem}")
        notify_once(subject, f"worker {action.worker}: a VM in {action.zone} is {end}")
        memory = after(memory, action, want, outcome, problem)
    return observed, memory


def clear(
    vms: Vms, zones: tuple[str, ...], notify: Notify, *, every_s: float | None = None, gone_s: float = GONE_S
) -> int:
    """Delete all resources of the pool, until none is observed twice in a row: a lost creation may come late.

    Args:
        every_s: seconds between observations; None: `CLEAR_EVERY_S`.
        gone_s: seconds until it gives up.

    Returns:
        The number of workers' VMs and requests, by zone, that there were.

    Raises:
        EngineFailed: resources are left after `gone_s` seconds, or a zone does not answer.
    """
    existed: set[tuple[int, str]] = set()
    notified: dict[str, str] = {}
    empty = 0

    def attempt() -> None:
        nonlocal empty
        observed, _ = step(vms, Wanted(workers=0, zones=zones), Memory(), notify, notified)
        existed.update((each.worker, each.zone) for each in observed.resources)
        left = {f"{each.id} in {each.zone} ({each.state})" for each in observed.resources}
        left |= {f"{zone}, which does not answer" for zone in observed.unreachable}
        left |= {f"a creation for worker {worker}" for worker in observed.pending}
        empty = 0 if left else empty + 1
        if empty < 2:
            raise _StillThere(", ".join(sorted(left)) or "perhaps a creation whose answer was lost")

    until_gone = retry.Retry(
        predicate=retry.if_exception_type(_StillThere),
        initial=CLEAR_EVERY_S if every_s is None else every_s,
        maximum=CLEAR_EVERY_S if every_s is None else every_s,
        multiplier=1.0,
        timeout=gone_s,
    )
    try:
        until_gone(attempt)()
    except exceptions.RetryError as error:
        problem = f"still there, and it costs money: {error.cause}; run `sweep down` again"
        raise EngineFailed("tpu-vm", problem) from None
    return len(existed)


class _StillThere(Exception):
    """Resource of the pool that is not gone yet."""


def _notify_states(
    observed: Observed, notified: dict[str, str], notify_once: Callable[[str, str], None]
) -> None:
    """Notify of new states; forget resources that are gone, so that their successors' states are new."""
    lines = {
        f"zone {zone}": f"{zone} does not answer; nothing is created until it does"
        for zone in sorted(observed.unreachable)
    }
    for each in observed.resources:
        kind = "request" if each.kind == "queued" else "VM"
        state = f"worker {each.worker}: the {kind} in {each.zone} is {each.state}"
        lines[f"{kind} {each.zone} {each.id}"] = state
    for subject in [each for each in notified if each.startswith(_TRANSIENT) and each not in lines]:
        del notified[subject]
    for subject, line in lines.items():
        notify_once(subject, line)


def pause(seconds: float, stopped: Callable[[], bool]) -> None:
    """Sleep until the time is over or `stopped`."""
    until = time.monotonic() + seconds
    while not stopped() and (left := until - time.monotonic()) > 0:
        time.sleep(min(_POLL_S, left))
