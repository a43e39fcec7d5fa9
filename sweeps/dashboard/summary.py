"""Numbers of a sweep's page: progress, budget, dollars, the best trial, failures."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analysis.labels import number, with_error
from analysis.summaries.costs import Rate, cost
from analysis.summaries.failures import first_line, kind_of
from sweeps.dashboard.reader import View
from sweeps.export import table
from sweeps.export.gain import gain
from sweeps.operations.confirmation import has_confirmed, progress_line
from sweeps.search.confirm.answer import answer
from sweeps.space.definition import Space
from sweeps.space.fidelity import is_at_target
from sweeps.stages import sharing
from sweeps.trials import budget
from sweeps.trials.record import Trial

REASONS = 12


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best trial so far.

    Args:
        value: of the first objective, for people.
        uncertainty: what is known of its error, in words; "" if nothing is known.
        confirmed: by fresh seeds; else it is one observation.
    """

    record: Trial
    value: str
    uncertainty: str
    confirmed: bool


def summary(view: View, rate: Rate | None = None) -> dict[str, Any]:
    """Return the numbers of a sweep; `rate` is the price of the trials' time, None for what they report."""
    space, records = view.space, view.records
    most = budget.amounts(space.budget)
    used = asdict(budget.spent(space, records, view.now)) if most else {}
    generators = Counter(record.generator for record in records)
    counts = {status: count for status, count in table.counts(records).items() if count}
    kinds: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for record in records:
        if record.status in ("failed", "early_stopped", "abandoned"):
            detail = record.history[-1].detail if record.history else ""
            kind, reason = record.failure or record.status, first_line(record.error or detail)
            kinds[key := (kind, kind_of(reason))] += 1
            examples.setdefault(key, reason[:300])
    best = _best(view)
    gained = gain(space, records, None if best is None else best.record, None)
    if gained is not None and has_confirmed(space, view.confirmation, records):
        gained = None  # what fresh seeds say is no one run's gain
    return {
        "counts": counts,  # by status
        "ended": sum(count for status, count in counts.items() if status not in ("pending", "running")),
        "searched": budget.run_cap_count(space, records),  # which the run cap counts
        "confirming": generators["confirm"],
        "imported": generators["imported"],
        "most_trials": view.most_trials,
        "state": state_of(view),
        "limits": [(name, used[name], limit) for name, limit in most.items()],
        "cost": cost(table.cost_rows(space, records), view.cap, rate),
        "hours_left": _hours_left(space, records, view.cap),
        "best": best,
        "confirmation": "" if view.confirmation is None else progress_line(space, *view.confirmation),
        "saved": sharing.sweep_line(records),
        "gain": "" if gained is None else str(gained),
        # Kind, the first of the reasons that differ in numbers alone, and how many.
        "failures": [(key[0], examples[key], count) for key, count in kinds.most_common(REASONS)],
    }


def state_of(view: View) -> str:
    """Return the state of a sweep in a few words."""
    if view.archived:
        return "in the archive"
    if view.switch.braked:
        return "paused by the brake"
    if view.switch.state != "running":
        return view.switch.state
    open_ = any(not record.finished for record in view.records)
    may_search = view.cap is None or budget.run_cap_count(view.space, view.records) < view.cap
    return "open" if open_ or may_search else "done"


def _hours_left(space: Space, records: Sequence[Trial], cap: int | None) -> float | None:
    """Return the hours until the search ends if as many trials run at once as now, each as long as usual."""
    running = sum(record.status == "running" for record in records)
    records = [record for record in records if is_at_target(space, record.parameters)]
    taken = [table.attempts_seconds(record) for record in records if record.status == "completed"]
    known = [seconds for seconds in taken[-200:] if seconds]
    if cap is None or not running or not known:
        return None
    own = [record for record in records if record.is_own]
    missing = max(0, cap - sum(record.finished for record in own))
    return missing * statistics.fmean(known) / running / 3600


def _best(view: View) -> Best | None:
    metric = view.space.metrics()[0]
    if (
        view.confirmation is not None
        and view.confirmation[1].finished
        and view.confirmation[0].metric == metric
    ):
        found = answer(view.space, *view.confirmation)
        record = None if found is None else view.trial(found.winner.finalist.trial)
        if found is not None and record is not None:
            known = math.isfinite(found.low) and math.isfinite(found.high)
            interval = f"95 %: {number(found.low)} to {number(found.high)}" if known else ""
            text = f"{found.metric}, mean of {found.winner.seeds} fresh seeds"
            words = ", ".join(filter(None, (text, interval)))
            return Best(record=record, value=number(found.mean, 5), uncertainty=words, confirmed=True)
    record = table.best(view.space, view.records)
    return None if record is None else observed_best(view.space, record)


def observed_best(space: Space, record: Trial) -> Best:
    """Return a trial with its own value, and with its standard error where it reports one."""
    metric = space.metrics()[0]
    value = record.metrics.get(metric)
    # No interval of 95 %: the trainer's error is not the loss's, but that of its difference to the teacher's.
    error = with_error(value, record.metrics.get(f"{metric}_sem"))
    words = f"{error}, one standard error, without other seeds" if error else ""
    return Best(record=record, value=number(value, 5), uncertainty=words, confirmed=False)
