"""What trials shared, in words: for `sweep status`, `trials` and `best` and for a worker's lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeps.text.counted import counted
from sweeps.trials import costs
from sweeps.trials.record import Trial


def sweep_line(records: Sequence[Trial]) -> str:
    """Return what the sweep paid and saved so far, in one clause; "" if nothing was shared."""
    if (found := costs.compute(records)) is None:
        return ""
    unit = f" {found.unit}" if found.unit else ""
    reused = counted(found.reused, "reused stage") if found.reused else ""
    by = " and ".join(filter(None, (reused, branches(found.branched))))
    return (
        f"{amount(found.paid)} of {amount(found.nominal)}{unit} paid; {100 * found.saved:.0f} % saved by {by}"
    )


def trunks_line(records: Sequence[Trial]) -> str:
    """Return what is stored of trunks, and what they saved, in one clause; "" without any."""
    found, stored = costs.compute(records), _points(records)
    if not stored and not (found and found.branched):
        return ""
    points = f"{counted(stored, 'point')} stored to branch off at"
    if found is None or not found.branched:
        return f"{points}; no trial has yet"
    share = found.branch_saved / found.nominal if found.nominal else 0.0
    unit = f" {found.unit}" if found.unit else ""
    trials = counted(sum(bool(costs.branched(record)) for record in records), "trial")
    return f"{points}; {trials} branched, saving {amount(found.branch_saved)}{unit} ({100 * share:.0f} %)"


def _points(records: Sequence[Trial]) -> int:
    """Return how many checkpoints within trunks are stored; several trials may have published one."""
    return len({point.key for record in records for point in record.points if point.snapshot})


def branches(count: int) -> str:
    """Return a number of branches in words; "" for none."""
    return f"{count} branch{'' if count == 1 else 'es'}" if count else ""


def sweep_document(records: Sequence[Trial]) -> dict[str, Any]:
    """Return `{"compute": …, "trunks": …}` for programs, each as far as there is any."""
    found = costs.compute(records)
    document: dict[str, Any] = {}
    if found is not None:
        totals = {"nominal": found.nominal, "paid": found.paid, "saved": found.saved}
        counts = {"reused_stages": found.reused, "branches": found.branched}
        document["compute"] = {**totals, **counts, "unit": found.unit}
    if trunks_line(records):
        trials = sum(bool(costs.branched(record)) for record in records)
        saved = 0.0 if found is None else found.branch_saved
        document["trunks"] = {"points": _points(records), "branched_trials": trials, "saved": saved}
    return document


def sources(record: Trial) -> str:
    """Return the stages that a trial reused and whose they are: `stage1_9 of 3`; "" without any."""
    return ", ".join(f"{stage.name} of {stage.reused_from}" for stage in costs.reused(record))


def trunk_sources(record: Trial) -> str:
    """Return where a trial branched off: `stage1_9 of 3 at 70`, which is a step; "" if it did not."""
    return ", ".join(f"{s.name} of {s.branched_from} at {s.branched_at}" for s in costs.branched(record))


def trial_line(record: Trial) -> str:
    """Return what a trial paid, reused and branched off, in one clause; "" if it shared nothing."""
    nominal, paid = costs.nominal(record), costs.paid(record)
    reused = [f"{stage.name} of trial {stage.reused_from}" for stage in costs.reused(record)]
    left = [
        f"{stage.name} of trial {stage.branched_from} at step {stage.branched_at}"
        for stage in costs.branched(record)
    ]
    if nominal is None or paid is None or not (reused or left):
        return ""
    phrases = (("reusing", reused), ("branching off", left))
    how = " and ".join(f"{verb} {', '.join(stages)}" for verb, stages in phrases if stages)
    return f"paid {amount(paid)} of {amount(nominal)}, {how}"


def amount(value: float) -> str:
    """Return a cost for people: in full from 1000, else with four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
