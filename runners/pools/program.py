"""An engine's own commands (squeue, ray, kubectl), run with patience and their complaints kept to a line."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from runners.errors import EngineFailed, EngineMissing

PATIENCE_S = 60.0
_ERROR = re.compile(r"^[\w.]+(?:Error|Exception)\b", re.MULTILINE)


def answer(engine: str, argv: Sequence[str], *, remedy: str, patience_s: float = PATIENCE_S) -> str:
    """What the command prints.

    Args:
        engine: the runner's name, for errors.
        remedy: how to get the command where it is not installed.

    Raises:
        EngineMissing: there is no such command here.
        EngineFailed: it ended with another status than 0, or not in time.
    """
    if shutil.which(argv[0]) is None:
        raise EngineMissing(engine, f"the command {argv[0]}", remedy)
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=patience_s, check=False)
    except subprocess.TimeoutExpired:
        raise EngineFailed(engine, f"{argv[0]} did not answer in {patience_s:g} s") from None
    except OSError as error:
        raise EngineFailed(engine, f"{argv[0]}: {error.strerror or error}") from None
    if ran.returncode:
        said = _gist((ran.stderr or ran.stdout).strip()) or f"exit status {ran.returncode}"
        raise EngineFailed(engine, f"{Path(argv[0]).name}: {said[-500:]}")
    return ran.stdout


def _gist(said: str) -> str:
    """Of a Python program's traceback the error alone."""
    if "Traceback (most recent call last)" not in said:
        return said
    errors = list(_ERROR.finditer(said))
    return said[errors[-1].start() :] if errors else said
