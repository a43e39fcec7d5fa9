"""Stored ends of stages and points of trunks: which there are, why each stays, and their removal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.stages import retention
from sweeps.stages.retention import Verdict
from sweeps.transfer import removal, stored_stages
from sweeps.trials import costs
from sweeps.trials.record import Trial

_BEGINNING = re.compile(r"[0-9a-f]{4,64}")


def delete(experiment: Experiment, beginnings: Iterable[str]) -> tuple[list[str], list[str]]:
    """Remove the checkpoints whose keys begin so; return the keys that were removed and those that were left.

    One is left if a worker has removed it meanwhile, or a trial needs it now.

    Raises:
        InputError: no key, or more than one, begins so, or unfinished trials need it; nothing was removed.
    """
    present = retention.stored_checkpoints(experiment.space, experiment.trials())
    keys: list[str] = []
    for beginning in beginnings:
        if not _BEGINNING.fullmatch(beginning):
            raise InputError(
                f"--delete {beginning!r}: not the beginning of a key; give 4 or more of its digits"
            )
        found = [each for each in present if each.key.startswith(beginning)]
        if not found:
            stored = stored_stages.stored_stages(experiment.store)
            unnamed = any(stage.key.startswith(beginning) for stage in stored)
            advice = "no record names it: `sweep repair` removes it" if unnamed else "see `sweep snapshots`"
            raise InputError(f"--delete {beginning}: there is no such snapshot; {advice}")
        if len(found) > 1:
            raise InputError(f"--delete {beginning}: {len(found)} keys begin so; give more digits")
        if found[0].needed_by:
            trials = ", ".join(map(str, found[0].needed_by))
            raise InputError(
                f"--delete {beginning}: unfinished trials need it ({trials}); wait for their end, or abandon "
                "them"
            )
        keys.append(found[0].key)
    return _discard(experiment, keys)


def prune(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Remove what the end of the sweep would remove; return as `delete` does."""
    verdicts = removal.verdicts(experiment, experiment.trials(), ended=True)
    return _discard(experiment, [verdict.checkpoint.key for verdict in verdicts if not verdict.kept])


def _discard(experiment: Experiment, keys: Iterable[str]) -> tuple[list[str], list[str]]:
    removed: list[str] = []
    left: list[str] = []
    for key in dict.fromkeys(keys):
        (removed if removal.discard(experiment, key) else left).append(key)
    return removed, left


COLUMNS = (
    "key",
    "stage",
    "step",
    "trials",
    "used_by",
    "needed_by",
    "bytes",
    "age_s",
    "problem",
    "kept",
    "why",
)
"""Fields of a checkpoint in `listing`, in their order."""


def listing(experiment: Experiment, records: Sequence[Trial]) -> tuple[dict[str, Any], Sequence[Verdict]]:
    """Return the checkpoints as `sweep snapshots --format json` shows them, and the verdict on each.

    The best comes first. Of what is not stored, size and age are None; `unnamed` has the keys of what is
    stored though no record says so.
    """
    verdicts = removal.verdicts(experiment, records)
    stored = {stage.key: stage for stage in stored_stages.stored_stages(experiment.store)}
    now = experiment.store.now()
    rows: list[dict[str, Any]] = []
    for verdict in verdicts:
        checkpoint, stage = verdict.checkpoint, stored.get(verdict.checkpoint.key)
        rows.append(
            {
                "key": checkpoint.key,
                "stage": checkpoint.stage,
                "step": checkpoint.step,
                "trials": list(checkpoint.publishers),
                "used_by": list(checkpoint.users),
                "needed_by": list(checkpoint.needed_by),
                "bytes": None if stage is None else stage.size,
                "age_s": None if stage is None else max(0.0, now - stage.updated),
                "problem": "it is not stored" if stage is None else stage.problem(),
                "kept": verdict.kept,
                "why": verdict.why,
            }
        )
    reused = [run for record in records for run in costs.reused(record)]
    branched = [run for record in records for run in costs.branched(record)]
    seconds = [run.seconds or 0.0 for run in reused]
    seconds += [(run.seconds or 0.0) * run.saved / run.cost for run in branched if run.cost]
    total = math.fsum(costs.nominal(record) or 0.0 for record in records)
    shared = costs.compute(records) or costs.Compute(nominal=total, paid=total, reused=0)
    document = {
        "snapshots": rows,
        "unnamed": sorted(stored.keys() - {row["key"] for row in rows}),
        "totals": {
            "snapshots": len(rows),
            "bytes": sum(row["bytes"] or 0 for row in rows),
            "bytes_fetched": sum((row["bytes"] or 0) * len(row["used_by"]) for row in rows),
            "reused": len(reused),
            "branched": len(branched),
            "cost_nominal": shared.nominal,
            "cost_paid": shared.paid,
            "seconds_saved": math.fsum(seconds),
        },
    }
    return document, verdicts
