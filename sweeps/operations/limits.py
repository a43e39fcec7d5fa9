"""Limits of a sweep that exists: a new run cap, a new budget, and who changed which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sweeps.experiment import Experiment
from sweeps.search.grid import Grid
from sweeps.space.definition import BUDGET_KEYS, Space
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten, timestamp
from sweeps.trials import budget
from sweeps.trials.amendments import GAIN, LIMITS, Amendment, Amendments, Changes, amended, limits
from sweeps.trials.record import Trial

NONE = "none"
"""Value that lifts a limit."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """New limits of a sweep.

    Args:
        differences: a line for each limit that has changed: `run_cap 40 → 60`.
        reached: each new limit that the sweep has reached already, as a clause.
        is_idle: whether trials may be begun, and none is running.
    """

    differences: list[str]
    reached: list[str]
    is_idle: bool


def extend(experiment: Experiment, changes: Changes, by: str) -> Extension:
    """Change limits of the sweep for all workers, from their next claim on. See `Experiment.extend`."""
    experiment.amendments.refresh()  # it must be the same sweep
    amendment = experiment.extend(changes, by=by)
    made = experiment.amendments.made
    before = amended(experiment.written, [each for each in made if each.number < amendment.number])
    records, _ = experiment.readable_trials()
    return Extension(
        differences=differences(before, amendment),
        reached=_reached_limits(experiment, amendment, records),
        is_idle=not any(record.status == "running" for record in records) and not experiment.is_full(records),
    )


def present(experiment: Experiment) -> dict[str, float | None]:
    """Return all limits that hold now, by name; None: no limit."""
    return limits(experiment.amendments.refresh())


def most_trials(space: Space, records: Sequence[Trial], *, ended: bool) -> int | None:
    """Return how many trials the search will have had, of those that the run cap counts; None: no limit.

    Args:
        ended: whether the search has ended by itself, and makes no more.
    """
    searched = budget.run_cap_count(space, records)
    if ended:
        return searched
    if space.search.method != "grid":
        return space.run_cap
    configurations = searched + len(Grid(space).left(records))
    return configurations if space.run_cap is None else min(space.run_cap, configurations)


def reached_run_cap(space: Space, records: Sequence[Trial]) -> int | None:
    """Return the run cap if all its trials are there and a larger one would bring more, else None."""
    if space.run_cap is None or budget.run_cap_count(space, records) < space.run_cap:
        return None
    is_covered = space.search.method == "grid" and not Grid(space).left(records)
    return None if is_covered else space.run_cap


def _reached_limits(experiment: Experiment, amendment: Amendment, records: Sequence[Trial]) -> list[str]:
    """Return each new limit that the sweep has reached already, as a clause."""
    cap, found = amendment.changes.get("run_cap"), []
    own = budget.run_cap_count(experiment.space, records)
    if isinstance(cap, int | float) and own >= cap:
        found.append(f"run_cap is {cap:g}, and there {'is' if own == 1 else 'are'} {counted(own, 'trial')}")
    used = asdict(budget.spent(experiment.space, records, experiment.store.now()))
    for name in BUDGET_KEYS:
        limit = amendment.changes.get(name)
        if isinstance(limit, int | float) and used[name] >= limit:
            found.append(f"{used[name]:.5g} of {limit:.5g} {name} are spent")
    if GAIN in amendment.changes and (standing := experiment.standing()) is not None and standing.ended:
        found.append(str(standing))
    return found


def differences(before: Space, amendment: Amendment) -> list[str]:
    """Return a line for each limit that an amendment has changed: `run_cap 40 → 60`."""
    present = limits(before)
    return [
        f"{name} {format_limit(name, present[name])} → {format_limit(name, amendment.changes[name])}"
        for name in LIMITS
        if name in amendment.changes
    ]


def amendment_lines(made: Amendments) -> list[str]:
    """Return who changed what and when, a line for each amendment of limits that still counts."""
    newest: dict[str, Amendment] = {}
    for amendment in made.made:
        newest |= dict.fromkeys((name for name in amendment.changes if name in LIMITS), amendment)
    by_amendment: dict[int, list[str]] = {}
    for name, amendment in newest.items():
        change = f"{name} {format_limit(name, amendment.changes[name])}"
        by_amendment.setdefault(amendment.number, []).append(change)
    at = {amendment.number: amendment for amendment in made.made}
    return [
        f"{', '.join(changes)} by {at[number].by}, {timestamp(at[number].at)}"
        for number, changes in sorted(by_amendment.items())
    ]


def format_limit(name: str, limit: object) -> str:
    """Return a limit for people."""
    if limit is None:
        return NONE
    return timestamp(limit) if name == "until" and isinstance(limit, float | int) else shorten(limit)


def document(made: Amendments) -> list[Mapping[str, object]]:
    """Return the amendments for programs."""
    return [
        {"number": a.number, "changes": dict(a.changes), "by": a.by, "at": a.at}
        for a in made.made
        if a.changes
    ]
