"""Record of a launched pool: `launched.json` in the pool's folder. `sweep pool` and `down` read it.

It holds the pool's description and what its engine has to remember (job ids). A machine without it can still
stop a pool whose engine finds its workers by their label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from runners.errors import EngineMissing, PoolError, RunnerError
from runners.pools.pool import Pool
from runners.pools.runner import Runner
from sweeps.text.atomic_file import write_atomic
from sweeps.text.regular_file import read_regular

FILE = "launched.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Launched:
    """Launched pool.

    Args:
        notes: what the engine has to remember, as JSON.
    """

    runner: str
    pool: Pool
    notes: Mapping[str, Any] = field(default_factory=dict)


def write(launched: Launched) -> None:
    """Write the record atomically, readable by its owner alone: the environment may be confidential."""
    document = {"schema": SCHEMA, **TypeAdapter(Launched).dump_python(launched, mode="json")}
    write_atomic(launched.pool.folder / FILE, json.dumps(document, indent=1))


def read(folder: Path) -> Launched | None:
    """Return the record in this folder; None where nothing was launched, or the pool is down.

    Raises:
        RunnerError: the file is not a record that this version reads.
    """
    remedy = "remove it if no pool of this sweep runs"
    try:
        document = from_json(read_regular(folder / FILE))
        if isinstance(document["schema"], int) and document["schema"] > SCHEMA:
            remedy = (
                "a later version of stagesweep wrote it; "
                "update this machine: pip install -U /path/to/stagesweep"
            )
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}, this version reads {SCHEMA}")
        document["pool"]["folder"] = str(folder)
        return TypeAdapter(Launched).validate_json(json.dumps(document), strict=True)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    raise RunnerError(f"{folder / FILE}: {problem}; {remedy}")


def read_either(folder: Path, former: Path | None, storage: str) -> Launched | None:
    """Return the record in the folder, or else that of a pool for `storage` in the `former` one."""
    known = read(folder)
    if known is None and former is not None and (older := read(former)) and older.pool.storage == storage:
        return older
    return known


def remove(folder: Path) -> None:
    """Remove the record: the pool is down."""
    (folder / FILE).unlink(missing_ok=True)


@contextmanager
def launching(runner: Runner, pool: Pool) -> Iterator[None]:
    """Wrap `runner.up`, so that a process killed during it leaves a record of what may have been started.

    Where `up` fails and the engine has no worker of the pool, the pool's folder is restored except for logs.
    Where the engine does not answer, the record stays, for `sweep down`.
    """
    missing = [folder for folder in (pool.folder, *pool.folder.parents) if not folder.exists()]
    before = set() if missing else set(pool.folder.iterdir())
    record = pool.folder / FILE
    earlier = read_regular(record).decode() if record in before else None
    write(Launched(runner=runner.name, pool=pool))
    try:
        yield
    except BaseException as error:
        # PoolError and EngineMissing are raised before anything is started.
        if isinstance(error, PoolError | EngineMissing) or not _may_run(runner, pool):
            _roll_back(pool.folder, before, missing)
            if earlier is not None:
                write_atomic(record, earlier)
        raise


def _may_run(runner: Runner, pool: Pool) -> bool:
    try:
        return any(worker.state in ("waiting", "running") for worker in runner.status(pool))
    except RunnerError:
        return True


def _roll_back(folder: Path, before: set[Path], missing: list[Path]) -> None:
    """Remove the new files in the folder, and the folders created for it, innermost first."""
    remove(folder)
    with suppress(OSError):  # a log remains, or the engine still uses the folder
        for path in set(folder.iterdir()) - before:
            if path.suffix != ".log" and not path.is_dir():
                path.unlink(missing_ok=True)
        for empty in missing:
            empty.rmdir()
