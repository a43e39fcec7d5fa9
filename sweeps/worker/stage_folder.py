"""Folder of a finished stage, `RUN_DIR/snapshots/STAGE/`, as a trial's program writes or finds it.

stage.json    optional: {"schema": 1, "key": KEY, "seconds": …, "usd": …, "metrics": {…}}
…             the program's own files
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeps.storage.run_files.snapshot import Unfit
from sweeps.text import json_reader
from sweeps.worker.stage_runs import amount

SNAPSHOTS = "snapshots"
STAGE_FILE = "stage.json"
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Details:
    """Content of `stage.json`: what it took to compute the stage; None: not stated."""

    seconds: float | None = None
    usd: float | None = None


def details(folder: Path, key: str) -> Details:
    """Return what the folder's `stage.json` says; nothing if there is no such file.

    Raises:
        Unfit: it cannot be read, or belongs to another version or another key.
    """
    try:
        document = json_reader.read(folder / STAGE_FILE)
    except FileNotFoundError:
        return Details()
    except (OSError, ValueError) as error:
        raise Unfit(f"its {STAGE_FILE} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema", _SCHEMA) != _SCHEMA:
        raise Unfit(f"its {STAGE_FILE} is not of schema {_SCHEMA}")
    if document.get("key", key) != key:
        raise Unfit(f"its {STAGE_FILE} names another key")
    return Details(seconds=amount(document.get("seconds")), usd=amount(document.get("usd")))


def clause(error: Exception) -> str:
    """Return an error of a snapshot as one clause."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__
