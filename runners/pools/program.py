"""Calls of an engine's own commands (squeue, ray), with a timeout and one-line errors; ends of log files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from runners.errors import EngineFailed, EngineMissing

TIMEOUT_S = 60.0
_ERROR = re.compile(r"^[\w.]+(?:Error|Exception)\b", re.MULTILINE)


def find_command(name: str) -> str | None:
    """Return the command's path: on the PATH, or in the folder of this interpreter."""
    sibling = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(sibling) if os.access(sibling, os.X_OK) else None)


def require_command(engine: str, name: str, remedy: str) -> str:
    """Return the command's path. Raises `EngineMissing`."""
    found = find_command(name)
    if found is None:
        raise EngineMissing(engine, f"the command {name}", remedy)
    return found


def run_command(
    engine: str, argv: Sequence[str], *, remedy: str, timeout_s: float = TIMEOUT_S, stdin: str = ""
) -> str:
    """Run the command and return its stdout.

    Args:
        argv: begins with the command's bare name.
        remedy: how to install the command where it is missing.

    Raises:
        EngineMissing: the command is not installed.
        EngineFailed: it exited with a status other than 0, or timed out.
    """
    command = (require_command(engine, argv[0], remedy), *argv[1:])
    try:
        ran = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineFailed(engine, f"{argv[0]} did not answer in {timeout_s:g} s") from None
    except OSError as error:
        raise EngineFailed(engine, f"{argv[0]}: {error.strerror or error}") from None
    if ran.returncode:
        problem = _without_traceback((ran.stderr or ran.stdout).strip()) or f"exit status {ran.returncode}"
        raise EngineFailed(engine, f"{argv[0]}: {problem[-500:]}")
    return ran.stdout


def parse_json(engine: str, command: str, text: str) -> Any:
    """Return what a command has printed as JSON. Raises `EngineFailed`."""
    try:
        return from_json(text)
    except ValueError:
        raise EngineFailed(engine, f"{command} answered {text[:200]!r}, which is not JSON") from None


def _without_traceback(output: str) -> str:
    """Return the final error of a Python traceback, and any other output as it is."""
    if "Traceback (most recent call last)" not in output:
        return output
    errors = list(_ERROR.finditer(output))
    return output[errors[-1].start() :] if errors else output


def tails(folder: Path, pattern: str, lines: int) -> Iterator[str]:
    """Yield the last lines of each matching file, in natural order, under a header if there are several."""
    files = sorted(folder.glob(pattern), key=lambda file: (len(file.name), file.name))
    for file in files:
        if len(files) > 1:
            yield f"==> {file.name} <=="
        with file.open(encoding="utf-8", errors="replace") as text:
            yield from (line.rstrip("\r\n") for line in deque(text, maxlen=min(lines, sys.maxsize)))
