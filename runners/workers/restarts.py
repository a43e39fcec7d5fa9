"""Whether a worker that ended is started again, by its exit status. Pure; `keep` does what it says.

0        no work is left, or as many trials as it was to do     done
75       preempted, or its machine was told to go               again, at once
2, 42    what it was given is wrong, and stays wrong            poison: not again
other    it crashed, or was killed                              again, later and later; given up in the end
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

POISON = (2, 42)
PREEMPTED = 75
SOON_S = 1.0  # even a worker that is told to go at once, again and again, must not take a core
LONGEST_WAIT_S = 60.0
HEALTHY_S = 600.0  # who has worked that long starts with a clean slate

End = Literal["done", "poison", "given up"]


@dataclass(frozen=True, kw_only=True)
class Again:
    """It is started again after so many seconds.

    Args:
        crashes: in a row, this one included; 0 after anything else.
    """

    after_s: float
    crashes: int = 0


def after_exit(status: int, *, ran_s: float, crashes: int, restarts: int) -> Again | End:
    """What to do about a worker that ended.

    Args:
        status: negative: the number of the signal that killed it.
        ran_s: how long it ran, in seconds.
        crashes: in a row, before this end.
        restarts: crashes in a row that are answered by a restart.
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
