"""Restart policy for a worker, by its exit status. Pure.

0        no work is left, or its number of trials is done    done
75       it or its machine was preempted                     restarted at once
2, 42    its input is invalid and would stay so              poison: not restarted
1        an import failed before it wrote anything else      poison, see `import_failure`
other    it crashed, or was killed                           restarted with exponential backoff, then given up
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

POISON = (2, 42)
PREEMPTED = 75
SOON_S = 1.0  # a worker that is preempted over and over must not occupy a core
LONGEST_WAIT_S = 60.0
HEALTHY_S = 600.0  # a longer life resets the count of crashes

LAST_START = "STAGESWEEP_LAST_START_S"
"""Variable of a worker that is not started again if it crashes within so many seconds of its start. The other
hosts of its gang need to know."""
SUPERVISED = "STAGESWEEP_SUPERVISED"
"""Variable of a worker that is started again after a crash. It ends with 0 where all its trials have failed,
which is no crash; one that a person has started ends with 1."""

End = Literal["done", "poison", "given up"]

_OWN_LINE = re.compile(r"^sweep: (?!error: cannot import )", re.MULTILINE)
"""Line of a worker that has begun: all its events have this prefix."""
_REASON = re.compile(r"^sweep: (?:error: (.*)|(the leader has sent this host away.*))", re.MULTILINE)
"""Line in which a host of a gang says why it ends: for its own reason, or with its leader."""
_CANNOT_IMPORT = re.compile(r"^sweep: error: (cannot import .*)", re.MULTILINE)
_NO_MODULE = re.compile(r"^\S*python\S*: ((?:No module named|Error while finding module) .*)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+(?:, in (?P<function>.*))?$', re.MULTILINE)
_ERROR = re.compile(r"^(\w[\w.]*)(?::.*)?$", re.MULTILINE)
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True, kw_only=True)
class Again:
    """Restart after a delay.

    Args:
        crashes: consecutive crashes, this one included; 0 after anything else.
    """

    after_s: float
    crashes: int = 0


def after_exit(status: int, *, ran_s: float, crashes: int, restarts: int) -> Again | End:
    """Decide on a restart of a worker that exited.

    Args:
        status: exit status; negative: the number of the signal that killed it.
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


def supervision(*, crashes: int, restarts: int) -> dict[str, str]:
    """Return the variables that tell a worker that it is supervised, and whether this start is its last.

    Args: see `after_exit`.
    """
    last = {LAST_START: f"{HEALTHY_S:g}"} if crashes >= restarts else {}
    return {SUPERVISED: "1", **last}


def last_reason(output: str) -> str:
    """Return the last reason for its end that a host of a gang has written; "" if there is none."""
    reasons = _REASON.findall(output)
    return "".join(reasons[-1])[:300] if reasons else ""


def import_failure(output: str) -> str:
    """Return why a worker ended while it imported its modules, in one line; "" if it got further.

    Another start would end in the same way: a package is missing or broken, or a module of the user has the
    name of one.
    """
    if _OWN_LINE.search(output):
        return ""
    if (found := _CANNOT_IMPORT.search(output) or _NO_MODULE.search(output)) is not None:
        return found[1][:300]
    trace = output.rpartition("Traceback (most recent call last):\n")[2]
    if trace == output or not (errors := list(_ERROR.finditer(trace))):
        return ""
    frames = list(_FRAME.finditer(trace))
    importing = all(
        frame["function"] in (None, "<module>") or frame["file"].startswith("<frozen ") for frame in frames
    )
    is_import = errors[0][1] in _IMPORT_ERRORS
    where = f" ({frames[-1]['file']})" if frames else ""
    return f"{errors[0][0][:300]}{where}" if importing or is_import else ""
