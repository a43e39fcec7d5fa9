"""What was launched for a sweep: `launched.json` in the pool's folder. `sweep pool` and `down` read it.

It says how the pool was meant, and what its engine has to remember (job ids). A machine without it can still
end a pool whose engine finds its workers by their label.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from runners.errors import RunnerError
from runners.pools.pool import Pool
from runners.pools.private_file import write_private

FILE = "launched.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A pool that was launched.

    Args:
        runner: its engine.
        notes: what the engine has to remember, as JSON.
    """

    runner: str
    pool: Pool
    notes: Mapping[str, Any] = field(default_factory=dict)


def write(launched: Launched) -> None:
    """Remember it. Never half-written, and for its owner alone: the environment may be nobody's business."""
    pool = launched.pool
    document = {
        "schema": SCHEMA,
        "runner": launched.runner,
        "pool": asdict(pool) | {"folder": str(pool.folder)},
        "notes": dict(launched.notes),
    }
    write_private(pool.folder / FILE, json.dumps(document, indent=1))


def read(folder: Path) -> Launched | None:
    """What was launched last with this folder; None where nothing was, or it is down.

    Raises:
        RunnerError: the file is not what this program writes.
    """
    try:
        document = from_json((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunnerError(f"{folder / FILE}: {error}; remove it if no pool of this sweep runs") from None
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}, this version reads {SCHEMA}")
        fields = {**document["pool"], "folder": folder}
        for name in ("command", "devices", "secrets", "setup"):
            fields[name] = tuple(fields[name])
        return Launched(runner=document["runner"], pool=Pool(**fields), notes=document["notes"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunnerError(f"{folder / FILE}: {error}; remove it if no pool of this sweep runs") from None


def remove(folder: Path) -> None:
    """It is down."""
    (folder / FILE).unlink(missing_ok=True)
