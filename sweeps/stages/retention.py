"""Checkpoints that a sweep's records list as stored: who uses each, and which may be removed. Pure.

A worker asks after each trial (`transfer.removal`); `sweep snapshots` shows the answer with its reasons.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from sweeps.space.definition import Space, Value
from sweeps.space.fidelity import is_at_target
from sweeps.space.stages import Stages
from sweeps.text.counted import counted
from sweeps.trials import objectives
from sweeps.trials.objectives import within_constraints
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class SharedCheckpoint:
    """A stored checkpoint, by the records. Trials are ascending indices.

    Args:
        step: of the stage, within its trunk; None for the stage's end.
        trunk: equal for the checkpoints of one trunk, by the parameters of their publishers; None for an end.
        publishers: trials whose records say that it is stored.
        users: trials that started from it, now or before.
        needed_by: pending and running trials that have it, start from it or may do so.
        awaited: number of configurations to come, of a grid or a confirmation, that would start from it.
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
        """Return the stage, or `stage1_9@70` within a trunk, as folders of a run are named."""
        return self.stage if self.step is None else f"{self.stage}@{self.step}"

    @property
    def unit(self) -> Hashable:
        """Return what counts as one against the limit and is ranked: its trunk, or the end itself."""
        return self.key if self.trunk is None else self.trunk


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Decision on a checkpoint, with its reason in a few words."""

    checkpoint: SharedCheckpoint
    kept: bool
    why: str


def stored_checkpoints(
    space: Space, records: Sequence[Trial], to_come: Iterable[Mapping[str, Value]] = ()
) -> list[SharedCheckpoint]:
    """Return the checkpoints that are stored by the records, in the order of their publishers.

    An unfinished trial needs a checkpoint of its own, the one that it started from, and every one that its
    parameters lead to: between its claim and its first report, only they show what it is about to fetch. On
    its trunk that is the latest before its decay. So does a configuration `to_come`.
    """
    by_key: defaultdict[str, list[tuple[Trial, StageRun]]] = defaultdict(list)
    users: defaultdict[str, list[int]] = defaultdict(list)
    order = {stage.name: position for position, stage in enumerate(space.stages)}
    for record in records:
        runs = (*record.stages, *record.points)
        for run in runs:
            if run.snapshot:
                by_key[run.key].append((record, run))
        # A trial starts from one checkpoint, the furthest: of the stages before, it fetches nothing.
        if reused := [run for run in runs if run.reused_from is not None]:
            furthest = max(
                reused, key=lambda run: (order.get(run.name, -1), math.inf if run.step is None else run.step)
            )
            users[furthest.key].append(record.trial)
    if not by_key:
        return []
    model = _Model(space)
    steps: defaultdict[Hashable, set[int]] = defaultdict(set)  # stored ones, by trunk
    for record, run in (found[0] for found in by_key.values()):
        if run.step is not None:
            steps[model.trunk(record, run.name)].add(run.step)

    planned_ends: Counter[Hashable] = Counter()
    planned_steps: Counter[Hashable] = Counter()
    for parameters in to_come:
        trial = Trial(trial=0, status="pending", parameters=parameters, generator="grid")
        for stage in model.names:
            planned_ends[stage, model.end(trial, stage)] += 1
            if (trunk := model.trunk(trial, stage)) is not None:
                planned_steps[trunk, model.start_step(trial, stage, steps[trunk])] += 1

    unfinished = [record for record in records if not record.finished]
    checkpoints = []
    for key, found in by_key.items():
        record, run = found[0]
        trunk = None if run.step is None else model.trunk(record, run.name)
        ends = {model.end(each, run.name) for each, _ in found}

        needed_by = tuple(
            trial.trial
            for trial in unfinished
            if any(own.key == key for own in (*trial.stages, *trial.points))
            or (
                model.end(trial, run.name) in ends - {None}
                if run.step is None
                else trunk is not None
                and model.trunk(trial, run.name) == trunk
                and model.start_step(trial, run.name, steps[trunk]) == run.step
            )
        )
        checkpoints.append(
            SharedCheckpoint(
                key=key,
                stage=run.name,
                step=run.step,
                trunk=trunk,
                publishers=tuple(record.trial for record, _ in found),
                users=tuple(users[key]),
                needed_by=needed_by,
                awaited=(
                    sum(planned_ends[run.name, end] for end in ends)
                    if run.step is None
                    else planned_steps[trunk, run.step]
                ),
            )
        )
    return checkpoints


def judge(
    space: Space,
    records: Sequence[Trial],
    *,
    ended: bool = False,
    sizes: Mapping[str, int] = MappingProxyType({}),
    ranks: Mapping[int, float] | None = None,
    to_come: Iterable[Mapping[str, Value]] = (),
) -> list[Verdict]:
    """Return which checkpoints stay, the best first.

    What an unfinished trial needs stays. So does what configurations to come would start from, within
    `snapshots.keep_gib`. Of all others, the `snapshots.keep` best stay, as long as all take no more than that
    together; a checkpoint is as good as the best trial that used it. The checkpoints of a trunk count as one;
    those that no length can use any more are removed. Once the sweep has ended, only those of the best trials
    stay.

    Args:
        ended: whether no trial will follow.
        sizes: bytes of checkpoints by key; needed only for a limit in GiB.
        ranks: of trials by index, 0 for the best, such as by posterior mean; None: by their observed results.
        to_come: parameters of trials that are certain to follow.
    """
    found = stored_checkpoints(space, records, to_come)
    if not found:
        return []
    model = _Model(space)
    standing = _Standing(model, records, observed_ranks(space, records) if ranks is None else ranks)
    on_trunks: defaultdict[Hashable, list[SharedCheckpoint]] = defaultdict(list)
    for each in found:
        if each.trunk is not None:
            on_trunks[each.trunk].append(each)
    useless: set[str] = set()
    for group in on_trunks.values():
        steps = model.useless(group[0].stage, {each.step or 0 for each in group})
        useless |= {each.key for each in group if each.step in steps}

    verdicts, total = [], 0
    units: dict[Hashable, int] = {}  # by rank
    for each in sorted(found, key=lambda it: (it.key in useless, not it.awaited, *standing.order(it))):
        position = -1 if each.awaited else units.setdefault(each.unit, len(units))
        after = total + sizes.get(each.key, 0)
        gib = space.snapshots.keep_gib
        if each.key in useless:
            refusal = "a later point serves every length"
        elif ended and standing.rank(each) > 0:
            refusal = "the sweep has ended, others are better"
        elif position >= space.snapshots.keep:
            refusal = f"not among the {space.snapshots.keep} best"
        else:
            refusal = f"beyond {gib:g} GiB" if gib is not None and after > gib * _GIB else ""
        total = total if refusal else after
        why = refusal or standing.describe(each)
        if each.awaited and not refusal:
            why = f"for {counted(each.awaited, 'trial')} to come"
        if each.needed_by:
            why = f"needed by {_trials(each.needed_by)}"
        verdicts.append(Verdict(checkpoint=each, kept=not refusal or bool(each.needed_by), why=why))
    return verdicts


def observed_ranks(space: Space, records: Iterable[Trial]) -> dict[int, float]:
    """Return how many trials are better than each completed one, by index: 0 for the best.

    With several objectives, better means that it dominates (Fonseca and Fleming, 1993), and all of the
    front have rank 0. Trials below the target of `fidelity` come after all at the target, in the order of
    those of their level. Trials that break an outcome constraint come last. Repeats of a confirmation do not
    count: the luckiest of them would be best.
    """
    is_within = within_constraints(space)
    costs: dict[int, tuple[Hashable, tuple[float, ...]]] = {}  # behind their level, None for the target
    broken: list[int] = []
    for record in records:
        if record.status != "completed" or record.generator == "confirm":
            continue
        if (own := objectives.costs(space.objectives, record)) is None:
            continue
        if is_within(record.metrics):
            level = tuple(record.parameters.get(each.parameter) for each in space.fidelity)
            costs[record.trial] = None if is_at_target(space, record.parameters) else level, own
        else:
            broken.append(record.trial)
    distinct = Counter(costs.values())
    results = sum(level is None for level, _ in costs.values())
    better = {
        (level, mine): float(
            (0 if level is None else results)
            + sum(
                n
                for (there, other), n in distinct.items()
                if there == level and other != mine and all(map(operator.le, other, mine))
            )
        )
        for level, mine in distinct
    }
    return {index: better[mine] for index, mine in costs.items()} | dict.fromkeys(broken, float(len(costs)))


class _Model:
    """Stages of the space by their names, for whole records."""

    def __init__(self, space: Space) -> None:
        self._stages = Stages(space)
        self.names = self._stages.names

    def end(self, record: Trial, stage: str) -> Hashable:
        """Return what is equal for trials that share the end of a stage; None if there is no such stage."""
        if stage not in self.names:
            return None
        return self._stages.end_identity(record.parameters, self.names.index(stage))

    def trunk(self, record: Trial, stage: str) -> Hashable:
        """Return what is equal for trials on one trunk of the stage; None if it has none."""
        if stage not in self.names or self._stages.trunk(position := self.names.index(stage)) is None:
            return None
        return stage, self._stages.trunk_identity(record.parameters, position)

    def start_step(self, record: Trial, stage: str, steps: Iterable[int]) -> int | None:
        """Return at which of these steps of its trunk a trial would branch off; None if at none."""
        if (end := self._stages.trunk_end(record.parameters, self.names.index(stage))) is None:
            return None
        return max((step for step in steps if step <= end), default=None)

    def useless(self, stage: str, steps: Set[int]) -> Set[int]:
        """Return the steps of one trunk that no trial to come branches off at: a later one serves it.

        There are none unless the lengths, and the shares of the decay, are listed.
        """
        if (ends := self._stages.trunk_ends(self.names.index(stage))) is None:
            return frozenset()
        return steps - {max((step for step in steps if step <= end), default=0) for end in ends}


class _Standing:
    """Ranks of checkpoints: that of the best trial that used each, or that is on its trunk."""

    def __init__(self, model: _Model, records: Iterable[Trial], ranks: Mapping[int, float]) -> None:
        self._ranked: defaultdict[Hashable, list[tuple[float, int]]] = defaultdict(list)
        for record in records:
            if record.trial in ranks:
                trunks = filter(None, (model.trunk(record, stage) for stage in model.names))
                for unit in (*(run.key for run in record.stages), *trunks):
                    self._ranked[unit].append((ranks[record.trial], record.trial))

    def rank(self, checkpoint: SharedCheckpoint) -> float:
        """Return the rank of the best trial that used it; infinite if none has a result."""
        return min(self._ranked[checkpoint.unit], default=(math.inf, 0))[0]

    def order(self, checkpoint: SharedCheckpoint) -> tuple[float, int, bool, int, int]:
        """Return a key to sort by: of equal rank, those of more such trials come first, then later ones.

        Ends of stages are smaller than checkpoints within a trunk, which hold the optimizer's state;
        of these the furthest saves the most.
        """
        rank, step = self.rank(checkpoint), checkpoint.step
        alike = sum(other == rank for other, _ in self._ranked[checkpoint.unit])
        return rank, -alike, step is not None, -(step or 0), -checkpoint.publishers[-1]

    def describe(self, checkpoint: SharedCheckpoint) -> str:
        """Return why it stays though nobody needs it now."""
        ranked = self._ranked[checkpoint.unit]
        if not ranked:
            return "there is room"
        rank, trial = min(ranked)
        return f"trial {trial}, {'the best' if rank == 0 else 'among the best'}"


def _trials(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"trial {indices[0]}"
    shown = ", ".join(map(str, indices[:3]))
    return f"trials {shown}" + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")
