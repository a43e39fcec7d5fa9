"""Checks of a command that cannot start on this machine, before it runs and from how it ended.

Only certain cases count, because they end the worker: a program or script that is missing, and the error
messages of Python or the shell for a program that never began.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_CANNOT_EXECUTE, _NOT_FOUND, _USAGE, _FAILED = 126, 127, 2, 1  # as shells and Python exit
_NO_SCRIPT = re.compile(r"\S.*: can't open file .+: \[Errno \d+\] .+")
_NO_MODULE = re.compile(
    r"\S.*: (?:No module named (?P<module>[\w.]+)(?:;.*)?"
    r"|Error while finding module specification for '(?P<child>[\w.]+)' .*)"
)


def problem(argv: Sequence[str]) -> str:
    """Return why the command cannot start in this folder, in one clause; "" if nothing is known.

    Args:
        argv: the command; words with `${…}` are ignored, since each trial fills them in.
    """
    program = argv[0]
    if "${" not in program and shutil.which(program) is None:
        return f"{program!r} is not a program that can be started here"
    script, _ = _python(argv)
    if not script or "${" in script:
        return ""
    path = Path(script)
    if not path.exists():
        return f"{program!r} finds no {script!r} in {Path.cwd()}"
    if not os.access(path, os.R_OK):
        return f"{program!r} may not read {script!r} in {Path.cwd()}"
    return ""


def never_began(argv: Sequence[str], status: int, last_line: str) -> str:
    """Return why the command never began, from how it ended, in one clause; "" if it did begin."""
    detail = f": {last_line}" if last_line else ""
    if status == _NOT_FOUND:
        return f"a program was not found (exit status {status}){detail}"
    if status == _CANNOT_EXECUTE:
        return f"a program could not be executed (exit status {status}){detail}"
    if status == _USAGE and _NO_SCRIPT.fullmatch(last_line):
        return last_line
    _, module = _python(argv)
    if status == _FAILED and module and (found := _NO_MODULE.fullmatch(last_line)):
        missing = found["module"] or found["child"]
        # `pkg.train` needs its package, and perhaps `__main__` in it; what those import is not checked.
        if f"{module}.__main__".startswith(f"{missing}.") or missing == f"{module}.__main__":
            return last_line
    return ""


def _python(argv: Sequence[str]) -> tuple[str, str]:
    """Return the script and the module that a Python command line starts, one of them or neither."""
    if not _PYTHON.fullmatch(Path(argv[0]).name):
        return "", ""
    words = iter(argv[1:])
    for word in words:
        if word == "-" or (word.startswith("--") and word != "--check-hash-based-pycs"):
            return "", ""
        if word == "--check-hash-based-pycs":
            next(words, None)
        elif not word.startswith("-"):
            return word, ""
        elif (found := re.fullmatch(r"-[^cmWX]*([cmWX])(.*)", word)) is not None:
            value = found[2] or next(words, "")
            if found[1] == "m":
                return "", value
            if found[1] == "c":
                return "", ""
    return "", ""
