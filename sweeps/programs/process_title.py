"""Command line that other programs show for this process (`ps`, `nvidia-smi`). Linux only.

A forked process shows the command line of the one that forked it; `fork_server` replaces it by that of the
program that runs in it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

ROOM = " " * 8192
"""Argument to start a process with that is to have a longer title than its own command line."""
_STAT = Path("/proc/self/stat")
_ARG_START = 48 - 3  # proc_pid_stat(5), counted from the field after the name


def set_title(words: Sequence[str]) -> None:
    """Show these words as the arguments of this process, as many as there is room for.

    The kernel reads them from where it put the arguments at the start, which Python does not use any more.
    """
    try:
        start, end = map(int, _STAT.read_text().rpartition(")")[2].split()[_ARG_START : _ARG_START + 2])
    except (OSError, ValueError):
        return
    if (size := end - start) <= 0:
        return
    text = b"\0".join(map(os.fsencode, words))[: size - 1]
    ctypes.memmove(start, text.ljust(size, b"\0"), size)  # the last byte is 0: else the kernel reads on
