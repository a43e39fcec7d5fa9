"""Snapshots of a sweep, by its records: who published and who uses them, and which may be removed. Pure.

A worker asks after each trial (`worker.collection`), `sweep snapshots` shows the answer with its reasons.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sweeps.space import constraints
from sweeps.space.definition import Space
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A stage's end that is stored, as records say. Trials are indices in ascending order.

    Args:
        key: of the stage's end.
        stage: its name.
        publishers: trials whose records say that it is stored.
        users: trials that started from it, now or before.
        needed_by: pending and running trials that have it, start from it or may do so.
    """

    key: str
    stage: str
    publishers: tuple[int, ...]
    users: tuple[int, ...] = ()
    needed_by: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Decision on a snapshot, with its reason in a few words."""

    snapshot: Snapshot
    kept: bool
    why: str


def published(space: Space, records: Sequence[Trial]) -> list[Snapshot]:
    """Return the snapshots that are stored by the records, in the order of their publishers.

    An unfinished trial needs a snapshot of its own, the one that it started from, and every one that its
    parameters lead to: between its claim and its first report, only they show what it is about to fetch.
    """
    by_key: defaultdict[str, list[tuple[Trial, StageRun]]] = defaultdict(list)
    users: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        for run in record.stages:
            if run.snapshot:
                by_key[run.key].append((record, run))
            if run.reused_from is not None:
                users[run.key].append(record.trial)
    if not by_key:
        return []
    waiting = _Waiting(space, records)
    return [
        Snapshot(
            key=key,
            stage=found[0][1].name,
            publishers=tuple(record.trial for record, _ in found),
            users=tuple(users[key]),
            needed_by=waiting.for_snapshot(key, found),
        )
        for key, found in by_key.items()
    ]


def judge(
    space: Space,
    records: Sequence[Trial],
    *,
    ended: bool = False,
    sizes: Mapping[str, int] = MappingProxyType({}),
    ranks: Mapping[int, float] | None = None,
) -> list[Verdict]:
    """Return which snapshots stay, the best first.

    What an unfinished trial needs stays. Of all, the `snapshots.keep` best stay, as long as they take no
    more than `snapshots.keep_gib` together; a snapshot is as good as the best trial that had it. Once the
    sweep has ended, only those of the best trials stay.

    Args:
        space: of the sweep.
        records: all trials.
        ended: whether no trial will follow.
        sizes: bytes of snapshots by key; needed only for a limit in GiB.
        ranks: of trials by index, 0 for the best, such as by posterior mean; None: by their observed results.
    """
    found = published(space, records)
    if not found:
        return []
    standing = _Standing(records, observed_ranks(space, records) if ranks is None else ranks)
    verdicts, taken = [], 0
    for position, snapshot in enumerate(sorted(found, key=standing.order)):
        after = taken + sizes.get(snapshot.key, 0)
        too_many = position >= space.snapshots.keep
        gib = space.snapshots.keep_gib
        too_large = gib is not None and after > gib * _GIB
        inferior = ended and standing.rank(snapshot) > 0
        within = not (too_many or too_large or inferior)
        if within:
            taken = after
        if snapshot.needed_by:
            why = f"needed by {_trials(snapshot.needed_by)}"
        elif within:
            why = standing.describe(snapshot)
        elif inferior:
            why = "the sweep has ended, others are better"
        else:
            why = f"not among the {space.snapshots.keep} best" if too_many else f"beyond {gib:g} GiB"
        verdicts.append(Verdict(snapshot=snapshot, kept=within or bool(snapshot.needed_by), why=why))
    return verdicts


def observed_ranks(space: Space, records: Iterable[Trial]) -> dict[int, float]:
    """Return how many trials are better than each completed one, by index: 0 for the best.

    With several objectives, better means that it dominates (Fonseca and Fleming, 1993), and all of the
    front have rank 0. Trials that break an outcome constraint come last. Repeats of a confirmation do not
    count: the luckiest of them would be best.
    """
    bounds = [constraints.parse(text) for text in space.outcome_constraints]
    costs: dict[int, tuple[float, ...]] = {}
    broken: list[int] = []
    for record in records:
        if record.status != "completed" or record.generator == "confirm":
            continue
        values = {name: value for name, value in record.metrics.items() if value is not None}
        if not all(objective.metric in values for objective in space.objectives):
            continue
        if all(bound.coefficients.keys() <= values.keys() and bound.holds(values) for bound in bounds):
            costs[record.trial] = tuple(
                values[o.metric] if o.goal == "minimize" else -values[o.metric] for o in space.objectives
            )
        else:
            broken.append(record.trial)
    ranks = _dominated(costs)
    return ranks | dict.fromkeys(broken, float(len(costs)))


def _dominated(costs: Mapping[int, tuple[float, ...]]) -> dict[int, float]:
    """Return by how many others each is dominated; lower costs are better."""
    distinct = Counter(costs.values())
    count = {
        mine: float(
            sum(n for other, n in distinct.items() if other != mine and all(map(float.__le__, other, mine)))
        )
        for mine in distinct
    }
    return {index: count[mine] for index, mine in costs.items()}


class _Waiting:
    """Unfinished trials, by what they need."""

    def __init__(self, space: Space, records: Iterable[Trial]) -> None:
        from sweeps.space.stages import Stages  # imports scipy, which most commands do without

        self._stages = Stages(space)
        self._open = [record for record in records if not record.finished]

    def for_snapshot(self, key: str, found: Sequence[tuple[Trial, StageRun]]) -> tuple[int, ...]:
        """Return the unfinished trials that have the key in their record, or parameters that lead to it."""
        leads_here = {self._end(record, run.name) for record, run in found} - {None}
        return tuple(
            record.trial
            for record in self._open
            if any(run.key == key for run in record.stages)
            or self._end(record, found[0][1].name) in leads_here
        )

    def _end(self, record: Trial, stage: str) -> Hashable:
        """Return the trial's prefix to the end of a stage; None for a stage that the space does not have."""
        if stage not in self._stages.names:
            return None
        return self._stages.prefix(record.parameters, self._stages.names.index(stage))


class _Standing:
    """Standing of snapshots: that of the best trial that had each."""

    def __init__(self, records: Iterable[Trial], ranks: Mapping[int, float]) -> None:
        self._ranked: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for record in records:
            for run in record.stages:
                if record.trial in ranks:
                    self._ranked[run.key].append((ranks[record.trial], record.trial))

    def rank(self, snapshot: Snapshot) -> float:
        """Return the rank of the best trial that had it; infinite if none has a result."""
        return min(self._ranked[snapshot.key], default=(math.inf, 0))[0]

    def order(self, snapshot: Snapshot) -> tuple[float, int, int]:
        """Return a key to sort by: of equal rank, those of more such trials come first, then later ones."""
        rank = self.rank(snapshot)
        alike = sum(other == rank for other, _ in self._ranked[snapshot.key])
        return rank, -alike, -snapshot.publishers[-1]

    def describe(self, snapshot: Snapshot) -> str:
        """Return why it stays though nobody needs it now."""
        ranked = self._ranked[snapshot.key]
        if not ranked:
            return "there is room"
        rank, trial = min(ranked)
        return f"trial {trial}, {'the best' if rank == 0 else 'among the best'}"


def _trials(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"trial {indices[0]}"
    shown = ", ".join(map(str, indices[:3]))
    return f"trials {shown}" + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")
