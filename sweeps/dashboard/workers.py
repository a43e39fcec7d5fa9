"""Workers of a sweep with their last heartbeat, and the pools that were launched from this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeps.errors import SweepError
from sweeps.operations.pools import Place, folder, former_folder
from sweeps.space.definition import Lease
from sweeps.trials.record import Trial

SHOWN = 100
_RECENT_S = 24 * 3600.0


def workers(records: Sequence[Trial], lease: Lease, now: float) -> list[dict[str, Any]]:
    """Return the workers that run something, then those of the last day, the latest first.

    Returns:
        Of each its `name`, the `trial` that it runs (None: nothing), the store's time of its last
        `heartbeat`, whether it is `silent` (it runs a trial, and has missed its heartbeats for half of the
        lease), how many attempts `ended`, and the `progress` of its trial in words, with the share `done`,
        0 to 1 (None: not known).
    """
    ended: dict[str, int] = {}
    last: dict[str, float] = {}
    for record in records:
        for attempt in record.history:
            ended[attempt.worker] = ended.get(attempt.worker, 0) + 1
            last[attempt.worker] = max(last.get(attempt.worker, 0.0), attempt.end)
    busy: list[dict[str, Any]] = []
    for record in (record for record in records if record.status == "running"):
        name, progress = record.worker or "", record.progress
        steps = f"step {progress['step']} of {progress.get('of', '?')}" if "step" in progress else ""
        done = progress.get("done")
        busy.append(
            {
                "name": name,
                "trial": record.trial,
                "heartbeat": record.heartbeat,
                "silent": record.heartbeat is not None and now - record.heartbeat > lease.expire_s / 2,
                "ended": ended.get(name, 0),
                "progress": " ".join(filter(None, (str(progress.get("stage", "")), steps)))[:200],
                "done": float(done) if isinstance(done, int | float) and 0 <= done <= 1 else None,
            }
        )
    names = {worker["name"] for worker in busy}
    idle = [
        {"name": name, "trial": None, "heartbeat": when, "silent": False, "ended": ended[name]}
        | {"progress": "", "done": None}
        for name, when in sorted(last.items(), key=lambda each: -each[1])
        if name and name not in names and now - when < _RECENT_S
    ]
    return [*busy, *idle][:SHOWN]


def pools(url: str, name: str) -> list[dict[str, Any]]:
    """Return the pools of a sweep that were launched from here, as their engines know them.

    It may take seconds: an engine may have to ask its cluster.

    Returns:
        Of each pool its `engine`, the `workers` asked for (None: not known), a row for each worker in
        `states`, and in `error` why the engine could not be asked, in one line.
    """
    from runners.errors import RunnerError
    from runners.pools import engines, launched

    found = []
    for engine in engines.ENGINES:
        pool: dict[str, Any] = {"engine": engine, "workers": None, "states": [], "error": ""}
        try:
            place = Place(url, name)
            known = launched.read_either(folder(place, engine), former_folder(place, engine), url)
            if known is None:
                continue
            pool["workers"] = known.pool.workers
            engines.require(engine)
            pool["states"] = [status.row() for status in engines.runner(engine).status(known.pool)][:SHOWN]
        except (RunnerError, SweepError, OSError) as problem:
            pool["error"] = " ".join(str(problem).split())
        found.append(pool)
    return found
