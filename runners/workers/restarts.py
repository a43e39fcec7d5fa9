"""Restart policy for a worker, by its exit status. Pure.

0        no work is left, or its number of trials is done    done
75       it or its machine was preempted                     restarted at once
2, 42    its input is invalid and would stay so              poison: not restarted
other    it crashed, or was killed                           restarted with exponential backoff, then given up
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

POISON = (2, 42)
PREEMPTED = 75
SOON_S = 1.0  # a worker that is preempted over and over must not occupy a core
LONGEST_WAIT_S = 60.0
HEALTHY_S = 600.0  # a longer life resets the count of crashes

End = Literal["done", "poison", "given up"]


@dataclass(frozen=True, kw_only=True)
class Again:
    """Restart after a delay.

    Args:
        after_s: the delay in seconds.
        crashes: consecutive crashes, this one included; 0 after anything else.
    """

    after_s: float
    crashes: int = 0


def after_exit(status: int, *, ran_s: float, crashes: int, restarts: int) -> Again | End:
    """Decide on a restart of a worker that exited.

    Args:
        status: exit status; negative: the number of the signal that killed it.
        ran_s: its lifetime in seconds.
        crashes: consecutive crashes before this exit.
        restarts: consecutive crashes that are answered by a restart.
    """
    if status == 0:
        return "done"
    if status in POISON:
        return "poison"
    if status == PREEMPTED:
        return Again(after_s=SOON_S)
    if ran_s >= HEALTHY_S:
        crashes = 0
    if crashes >= restarts:
        return "given up"
    return Again(after_s=min(LONGEST_WAIT_S, SOON_S * 2**crashes), crashes=crashes + 1)
