"""Exit of the program behind torchrun or `accelerate launch`, which themselves always end with status 1.

They report the process that failed first at the end of a long traceback of their own, so that neither the
status nor the last words are the program's.
"""

from __future__ import annotations

import re
from pathlib import Path

from sweeps.programs import process

_LOG_BYTES = 64 * 1024  # torchrun writes seven lines for each process that failed

_TRACEBACK = "Traceback (most recent call last):\n"
_TORCHRUN = re.compile(
    r"^torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError:"
    r".*^Root Cause .*?^ *exitcode *: (?P<status>-?\d+) ",
    re.MULTILINE | re.DOTALL,
)
_ACCELERATE = re.compile(
    r"accelerate/commands/launch\.py.*^subprocess\.CalledProcessError: Command .* "
    r"(?:returned non-zero exit status (?P<status>\d+)|died with <Signals\.\w+: (?P<signal>\d+)>)\.\s*\Z",
    re.MULTILINE | re.DOTALL,
)
_NOTICE = re.compile(r"^[IWE]\d{4} \S+ \d+ torch/distributed/.*\n", re.MULTILINE)
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)


def behind_launcher(status: int, log_file: Path) -> tuple[int, str]:
    """Return the exit status of the program and the last lines that it wrote.

    Without a launcher these are the command's own.

    Args:
        status: of the command, as `subprocess` gives it.
    """
    log = process.last_lines(log_file, count=_LOG_BYTES, max_bytes=_LOG_BYTES)
    found = _TORCHRUN.search(log) or _ACCELERATE.search(log) if status == 1 else None
    if found is None:
        return status, process.last_lines(log_file)
    groups = found.groupdict()
    status = -int(groups["signal"]) if groups.get("signal") else int(groups["status"])
    own = log[: max(0, log.rfind(_TRACEBACK, 0, found.start()))]
    lines = _RANK.sub("", _NOTICE.sub("", own)).splitlines()
    return status, "\n".join(lines[-process.LAST_LINES :]).strip()
