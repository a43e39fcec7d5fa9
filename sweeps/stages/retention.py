"""Snapshots of a sweep, by its records: who published and who uses them, and which may be removed. Pure.

A worker asks after each trial (`worker.collection`), `sweep snapshots` shows the answer with its reasons.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from sweeps.space import constraints
from sweeps.space.definition import Space, Value
from sweeps.stages.trunk_points import TrunkPoints
from sweeps.text.counted import counted
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A stored end of a stage, or point of its trunk, by the records. Trials are ascending indices.

    Args:
        key: of the stage's end, or of the point.
        stage: its name.
        step: of a point; None for the end.
        trunk: equal for the points of one trunk, by the parameters of their publishers.
        publishers: trials whose records say that it is stored.
        users: trials that started from it, now or before.
        needed_by: pending and running trials that have it, start from it or may do so.
        awaited: number of configurations to come, of a grid, that would start from it.
    """

    key: str
    stage: str
    step: int | None = None
    trunk: Hashable = field(default=None, repr=False)
    publishers: tuple[int, ...]
    users: tuple[int, ...] = ()
    needed_by: tuple[int, ...] = ()
    awaited: int = 0

    @property
    def label(self) -> str:
        """Return the stage, or `stage1_9@70` for a point, as folders of a run are named."""
        return self.stage if self.step is None else f"{self.stage}@{self.step}"

    @property
    def unit(self) -> Hashable:
        """Return the key by which snapshots are counted and ranked: the trunk of a point, else its own."""
        return self.key if self.trunk is None else self.trunk


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Decision on a snapshot, with its reason in a few words."""

    snapshot: Snapshot
    kept: bool
    why: str


def published(
    space: Space, records: Sequence[Trial], to_come: Iterable[Mapping[str, Value]] = ()
) -> list[Snapshot]:
    """Return the snapshots that are stored by the records, in the order of their publishers.

    An unfinished trial needs a snapshot of its own, the one that it started from, and every one that its
    parameters lead to: between its claim and its first report, only they show what it is about to fetch. Of
    the points on its trunk that is the latest. So does a configuration `to_come`.
    """
    by_key: defaultdict[str, list[tuple[Trial, StageRun]]] = defaultdict(list)
    users: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        for run in (*record.stages, *record.points):
            if run.snapshot:
                by_key[run.key].append((record, run))
            if run.reused_from is not None:
                users[run.key].append(record.trial)
    if not by_key:
        return []
    trunks = TrunkPoints(space)
    waiting = _Waiting(space, records, trunks, [found[0] for found in by_key.values()])
    planned = _Planned(waiting, trunks, to_come)
    return [
        Snapshot(
            key=key,
            stage=found[0][1].name,
            step=found[0][1].step,
            trunk=_trunk(trunks, *found[0]),
            publishers=tuple(record.trial for record, _ in found),
            users=tuple(users[key]),
            needed_by=waiting.for_snapshot(key, found),
            awaited=planned.count(found),
        )
        for key, found in by_key.items()
    ]


def _trunk(trunks: TrunkPoints, record: Trial, run: StageRun) -> Hashable:
    """Return the trunk of a point; None for a stage's end, or if the space has no such trunk."""
    return None if run.step is None else trunks.trunk(record, run.name)


def judge(
    space: Space,
    records: Sequence[Trial],
    *,
    ended: bool = False,
    sizes: Mapping[str, int] = MappingProxyType({}),
    ranks: Mapping[int, float] | None = None,
    to_come: Iterable[Mapping[str, Value]] = (),
) -> list[Verdict]:
    """Return which snapshots stay, the best first.

    What an unfinished trial needs stays. So does what configurations to come would start from, within
    `snapshots.keep_gib`. Of all others, the `snapshots.keep` best stay, as long as all take no more than that
    together; a snapshot is as good as the best trial that used it. The points of a trunk count as one; those
    that no length can use any more are removed. Once the sweep has ended, only those of the best trials
    stay.

    Args:
        space: of the sweep.
        records: all trials.
        ended: whether no trial will follow.
        sizes: bytes of snapshots by key; needed only for a limit in GiB.
        ranks: of trials by index, 0 for the best, such as by posterior mean; None: by their observed results.
        to_come: parameters of trials that are certain to follow.
    """
    found = published(space, records, to_come)
    if not found:
        return []
    standing = _Standing(space, records, observed_ranks(space, records) if ranks is None else ranks)
    useless = _useless(space, found)
    verdicts, taken = [], 0
    units: dict[Hashable, int] = {}
    for snapshot in sorted(
        found, key=lambda each: (each.key in useless, not each.awaited, *standing.order(each))
    ):
        position = -1 if snapshot.awaited else units.setdefault(snapshot.unit, len(units))
        after = taken + sizes.get(snapshot.key, 0)
        gib = space.snapshots.keep_gib
        inferior = ended and standing.rank(snapshot) > 0
        if snapshot.key in useless:
            refusal = "a later point serves every length"
        elif inferior:
            refusal = "the sweep has ended, others are better"
        elif position >= space.snapshots.keep:
            refusal = f"not among the {space.snapshots.keep} best"
        else:
            refusal = f"beyond {gib:g} GiB" if gib is not None and after > gib * _GIB else ""
        taken = taken if refusal else after
        why = refusal or standing.describe(snapshot)
        if snapshot.awaited and not refusal:
            why = f"for {counted(snapshot.awaited, 'trial')} to come"
        if snapshot.needed_by:
            why = f"needed by {_trials(snapshot.needed_by)}"
        verdicts.append(Verdict(snapshot=snapshot, kept=not refusal or bool(snapshot.needed_by), why=why))
    return verdicts


def _useless(space: Space, found: Iterable[Snapshot]) -> frozenset[str]:
    """Return the keys of the points that no trial to come branches off at."""
    on_trunks: defaultdict[Hashable, list[Snapshot]] = defaultdict(list)
    for snapshot in found:
        if snapshot.trunk is not None:
            on_trunks[snapshot.trunk].append(snapshot)
    if not on_trunks:
        return frozenset()
    trunks = TrunkPoints(space)
    return frozenset(
        snapshot.key
        for group in on_trunks.values()
        for snapshot in group
        if snapshot.step in trunks.useless(group[0].stage, {each.step or 0 for each in group})
    )


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
            sum(n for other, n in distinct.items() if other != mine and all(map(operator.le, other, mine)))
        )
        for mine in distinct
    }
    return {index: count[mine] for index, mine in costs.items()}


class _Waiting:
    """Unfinished trials, by what they need."""

    def __init__(
        self,
        space: Space,
        records: Iterable[Trial],
        trunks: TrunkPoints,
        stored: Iterable[tuple[Trial, StageRun]],
    ) -> None:
        from sweeps.space.stages import Stages  # imports scipy, which most commands do without

        self._stages, self._trunks = Stages(space), trunks
        self._open = [record for record in records if not record.finished]
        self.steps: defaultdict[Hashable, set[int]] = defaultdict(set)
        for record, run in stored:
            if run.step is not None:
                self.steps[trunks.trunk(record, run.name)].add(run.step)

    def for_snapshot(self, key: str, found: Sequence[tuple[Trial, StageRun]]) -> tuple[int, ...]:
        """Return the unfinished trials that have the key in their record, or parameters that lead to it."""
        publisher, run = found[0]
        leads_here = {self.end(record, run.name) for record, run in found} - {None}
        return tuple(
            record.trial
            for record in self._open
            if any(run.key == key for run in (*record.stages, *record.points))
            or (
                self.end(record, run.name) in leads_here
                if run.step is None
                else self._branches_at(record, run, _trunk(self._trunks, publisher, run))
            )
        )

    def _branches_at(self, record: Trial, point: StageRun, trunk: Hashable) -> bool:
        """Return whether a trial is on this trunk, and would begin at this point of it."""
        if trunk is None or self._trunks.trunk(record, point.name) != trunk:
            return False
        return self._trunks.starts_at(record, point.name, self.steps[trunk]) == point.step

    @property
    def stages(self) -> Sequence[str]:
        """Return the names of the stages."""
        return self._stages.names

    def end(self, record: Trial, stage: str) -> Hashable:
        """Return the trial's prefix to the end of a stage; None for a stage that the space does not have."""
        if stage not in self._stages.names:
            return None
        return self._stages.prefix(record.parameters, self._stages.names.index(stage))


class _Planned:
    """Configurations to come, by where they would start."""

    def __init__(
        self, waiting: _Waiting, trunks: TrunkPoints, to_come: Iterable[Mapping[str, Value]]
    ) -> None:
        self._waiting, self._trunks = waiting, trunks
        self._ends: Counter[Hashable] = Counter()
        self._points: Counter[Hashable] = Counter()
        for parameters in to_come:
            self._add(Trial(trial=0, status="pending", parameters=parameters, generator="grid"))

    def _add(self, trial: Trial) -> None:
        for stage in self._waiting.stages:
            self._ends[stage, self._waiting.end(trial, stage)] += 1
        for stage, trunk in self._trunks.each(trial).items():
            self._points[trunk, self._trunks.starts_at(trial, stage, self._waiting.steps[trunk])] += 1

    def count(self, found: Sequence[tuple[Trial, StageRun]]) -> int:
        """Return how many would start from what these trials have published."""
        record, run = found[0]
        if run.step is not None:
            return self._points[_trunk(self._trunks, record, run), run.step]
        return sum(
            self._ends[run.name, end] for end in {self._waiting.end(each, run.name) for each, _ in found}
        )


class _Standing:
    """Ranks of snapshots: that of the best trial that used each, or that is on its trunk."""

    def __init__(self, space: Space, records: Iterable[Trial], ranks: Mapping[int, float]) -> None:
        self._ranked: defaultdict[Hashable, list[tuple[float, int]]] = defaultdict(list)
        trunks = TrunkPoints(space)
        for record in records:
            if record.trial in ranks:
                for unit in (*(run.key for run in record.stages), *trunks.each(record).values()):
                    self._ranked[unit].append((ranks[record.trial], record.trial))

    def _of(self, snapshot: Snapshot) -> list[tuple[float, int]]:
        return self._ranked[snapshot.unit]

    def rank(self, snapshot: Snapshot) -> float:
        """Return the rank of the best trial that used it; infinite if none has a result."""
        return min(self._of(snapshot), default=(math.inf, 0))[0]

    def order(self, snapshot: Snapshot) -> tuple[float, int, bool, int, int]:
        """Return a key to sort by: of equal rank, those of more such trials come first, then later ones.

        Ends of stages are smaller than points; of these the furthest saves the most.
        """
        rank, step = self.rank(snapshot), snapshot.step
        alike = sum(other == rank for other, _ in self._of(snapshot))
        return rank, -alike, step is not None, -(step or 0), -snapshot.publishers[-1]

    def describe(self, snapshot: Snapshot) -> str:
        """Return why it stays though nobody needs it now."""
        ranked = self._of(snapshot)
        if not ranked:
            return "there is room"
        rank, trial = min(ranked)
        return f"trial {trial}, {'the best' if rank == 0 else 'among the best'}"


def _trials(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"trial {indices[0]}"
    shown = ", ".join(map(str, indices[:3]))
    return f"trials {shown}" + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")
