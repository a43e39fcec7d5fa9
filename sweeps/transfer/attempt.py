"""Checkpoints of one trial's stages: fetched before its program starts, and published while it runs.

    RUN_DIR/snapshots/STAGE/        there at the start: a finished stage, verified, to start from
                                    renamed into place by the program: a finished stage to publish
    RUN_DIR/snapshots/STAGE@STEP/   likewise, a checkpoint within the stage's trunk

If anything goes wrong with a checkpoint, the trial goes on without it, with one line in the log. The
heartbeat after an upload notes in the trial's record that it is stored.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from sweeps.errors import EnvironmentFault
from sweeps.experiment import Experiment
from sweeps.space.stages import Stages
from sweeps.stages import stage_runs
from sweeps.stages.checkpoint import SNAPSHOTS, Checkpoint, Details, SharedKeys, clause, details
from sweeps.stages.stage_runs import Branch, Reported
from sweeps.transfer.fetching import CheckpointFetch
from sweeps.transfer.publishing import Publishing
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

log = logging.getLogger(__name__)


class TrialStages:
    """Stages of a claimed trial, for one attempt. Without `shared` keys nothing is fetched or published.

    Args:
        shared: keys of the ends of stages and of the trunks that trials share with this one.

    Attributes:
        names: of all stages in order.
    """

    def __init__(self, experiment: Experiment, record: Trial, folder: Path, shared: SharedKeys) -> None:
        self._experiment, self._record, self._folder = experiment, record, folder
        self.names = tuple(stage.name for stage in experiment.space.stages)
        self.shared = shared
        self._costs: Mapping[str, float] = {}
        try:
            self._costs = Stages(experiment.space).costs(record.parameters) or {}
        except Exception as error:  # noqa: BLE001 - no checkpoint may cost its trial an attempt
            log.warning("trial %d shares no stages: %s", record.trial, clause(error))
            self.shared = SharedKeys(ends={}, trunks={})
        self._link = experiment.space.program.kind == "trainer"  # others may write into the files
        # Never changed in place: threads share them. Keys are names of stages, and of folders within them.
        self._runs = {run.name: run for run in record.stages}
        self._points = {f"{run.name}@{run.step}": run for run in record.points}
        self._branches: dict[str, Branch] = {}
        self._stage_began: float | None = None
        self._publishing = Publishing(
            experiment,
            record,
            folder / SNAPSHOTS,
            self.shared,
            link=self._link,
            ended=self._end_of,
            stored=self._mark_stored,
        )

    @property
    def ended(self) -> tuple[StageRun, ...]:
        """Return the stages that have ended so far, in order."""
        runs = self._runs
        return tuple(runs[name] for name in dict.fromkeys((*self.names, *runs)) if name in runs)

    @property
    def points(self) -> tuple[StageRun, ...]:
        """Return the checkpoints within trunks that it has published or began from, in order."""
        order = {name: position for position, name in enumerate(self.names)}
        return tuple(
            sorted(self._points.values(), key=lambda run: (order.get(run.name, len(order)), run.step or 0))
        )

    # ---- before the program

    def fetch(self, stages: int, steps: int) -> None:
        """Bring the furthest stored checkpoint into the run folder, all of it or nothing.

        Args:
            stages: how many a checkpoint of an earlier attempt has completed.
            steps: of the next stage that it has completed.
        """
        fetch = CheckpointFetch(
            self._experiment, self._record, self._folder, self.shared, self.names, link=self._link
        )
        fetched = fetch.run(stages, steps)
        self._publishing.damaged = fetch.damaged
        if fetched is None:
            return
        self._publishing.settled.add(fetched.checkpoint.name)
        checkpoint, step = fetched.checkpoint, fetched.checkpoint.step
        is_own = fetched.record.trial == self._record.trial
        # Stages that this attempt does not compute; if an earlier attempt did, this trial has paid.
        for name in self.names[: self.names.index(checkpoint.stage) + (step is None)]:
            self._publishing.settled.add(name)
            is_it, key = name == checkpoint.name, self.shared.ends.get(name, "")
            run = next((run for run in fetched.record.stages if run.name == name), None)
            if run is None:  # published by this trial, but not recorded
                run = self._computed_run(
                    Checkpoint(stage=name, key=key), fetched.details if is_it else Details()
                )
            source = None
            if not is_own:
                source = fetched.record.trial if run.reused_from is None else run.reused_from
            is_mine = source in (None, self._record.trial)
            if is_mine and not is_own:  # an earlier attempt computed it, and the other trial reused it
                run, source = self._runs.get(name, run), None
            if is_own and not is_it and not run.snapshot:  # an earlier attempt may have started after it
                source = self._origin(key)
            if not key and not run.cost:  # a stage of 0 steps: nobody has computed it
                source = None
            run = replace(run, key=key, reused_from=source)
            if is_mine and run.branched_from is not None and run.branched_at is not None:
                self._branches[name] = Branch(
                    step=run.branched_at, source=run.branched_from, at=run.branched_at, saved=run.saved
                )
            if not is_mine:  # who began where is in the record of that trial
                run = replace(run, branched_from=None, branched_at=None, saved=0.0)
            self._note(replace(run, snapshot=is_mine and (run.snapshot or is_it)))
        if step is None:
            return
        # The program goes on from a checkpoint within the trunk of the next one.
        run = fetched.run
        if run is None:  # published by this trial, but not recorded
            run = self._computed_run(checkpoint, fetched.details)
        seconds = run.seconds if run.seconds is not None else fetched.details.seconds
        if is_own:
            branch = Branch(
                step=step, seconds=seconds, source=run.branched_from, at=run.branched_at, saved=run.saved
            )
            self._note(replace(run, snapshot=True))
        else:
            cost = self._cost_until(checkpoint)
            taken = StageRun(
                name=checkpoint.stage,
                key=checkpoint.key,
                step=step,
                cost=run.cost if cost is None else cost,
                reused_from=fetched.record.trial,
                seconds=seconds,
                usd=run.usd,
            )
            branch = Branch(
                step=step, seconds=seconds, source=fetched.record.trial, at=step, saved=taken.cost
            )
            self._note(taken)
        self._branches[checkpoint.stage] = branch

    # ---- while the program runs

    def start(self, *, resumed: bool) -> None:
        """Begin to publish what the program renames into place.

        Args:
            resumed: whether it goes on from a checkpoint: then this attempt does not know a stage's seconds.
        """
        self._stage_began = None if resumed else time.monotonic()
        if self.shared:
            self._publishing.start()

    def close(self, timeout: float, *, leave: Callable[[], bool] | None = None, grace: float = 0.0) -> None:
        """Publish what remains, stop, and remove the checkpoints from the run folder: the store has them.

        Args:
            leave: polled; once it returns true (the machine is preempted), at most `grace` seconds remain.
        """
        if not self.shared:
            return
        self._publishing.close(timeout, leave=leave, grace=grace)
        shutil.rmtree(self._folder / SNAPSHOTS, ignore_errors=True)

    def _end_of(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Note that the trial has computed a stage, or its trunk until a step, unless that is known."""
        run = (self._runs if checkpoint.step is None else self._points).get(checkpoint.name)
        if run is not None and run.key == checkpoint.key and run.reused_from is None:
            return
        stated = details(folder, checkpoint)
        branch = self._branches.get(checkpoint.stage)
        if stated.seconds is None and self._stage_began is not None:
            before = 0.0 if branch is None else branch.seconds  # of the steps before it branched off
            if before is not None:
                stated = replace(stated, seconds=before + time.monotonic() - self._stage_began)
        if checkpoint.step is None and self._stage_began is not None:
            self._stage_began = time.monotonic()
        computed = self._computed_run(checkpoint, stated)
        self._note(computed if branch is None else branch.mark(computed))

    def _mark_stored(self, checkpoint: Checkpoint) -> None:
        runs = self._runs if checkpoint.step is None else self._points
        self._note(replace(runs[checkpoint.name], snapshot=True))

    def _cost_until(self, checkpoint: Checkpoint) -> float | None:
        """Return the stated cost of a stage until its checkpoint; None: it is not stated."""
        if checkpoint.step is None:
            return self._costs.get(checkpoint.stage)
        space, parameters = self._experiment.space, self._record.parameters
        return stage_runs.cost_until(space, self._costs, parameters, checkpoint.stage, checkpoint.step)

    def _computed_run(self, checkpoint: Checkpoint, stated: Details) -> StageRun:
        cost = self._cost_until(checkpoint)
        return StageRun(
            name=checkpoint.stage,
            key=checkpoint.key,
            step=checkpoint.step,
            cost=(stated.seconds or 0.0) if cost is None else cost,
            seconds=stated.seconds,
            usd=stated.usd,
        )

    def _note(self, run: StageRun) -> None:
        if run.step is None:
            self._runs = self._runs | {run.name: run}
        else:
            self._points = self._points | {f"{run.name}@{run.step}": run}

    # ---- after the program

    def report(
        self, reported: tuple[Reported, ...], metrics: Mapping[str, float | None]
    ) -> tuple[StageRun, ...]:
        """Return all stages of the trial, which has completed."""
        known, branches = dict(self._runs), dict(self._branches)
        for stage in reported:
            run = known.get(stage.name)
            if stage.reused and stage.key and (run is None or run.key != stage.key):  # by an earlier attempt
                known[stage.name] = StageRun(
                    name=stage.name, key=stage.key, cost=0.0, reused_from=self._origin(stage.key)
                )
            if not stage.reused:  # else it began where an earlier attempt has begun it
                branches.pop(stage.name, None)
            if (branch := self._reported_branch(stage)) is not None:
                branches[stage.name] = branch
        return stage_runs.finished(reported, known, self.names, self._costs, metrics, branches)

    def _reported_branch(self, stage: Reported) -> Branch | None:
        """Return where a stage began, by the program's report; None: at its beginning, or nobody knows."""
        if (step := stage.branched_at) is None:
            return None
        branch = self._branches.get(stage.name)
        if branch is None or branch.step != step:  # an earlier attempt began there
            if stage.name not in self.shared.trunks:
                return None
            checkpoint = self.shared.within(stage.name, step)
            own = self._points.get(checkpoint.name)
            if own is not None and own.key == checkpoint.key:
                return Branch(step=step, source=own.branched_from, at=own.branched_at, saved=own.saved)
            source, saved = self._origin(checkpoint.key), self._cost_until(checkpoint) or 0.0
            branch = Branch(step=step, source=source, at=step, saved=saved)
        if stage.saved is not None and branch.at == step:
            branch = replace(branch, saved=stage.saved)
        return branch

    def _origin(self, key: str) -> int | None:
        if not key:
            return None
        try:
            return stage_runs.origin(self._experiment.recent_trials(), key, self._record.trial)
        except EnvironmentFault as error:
            log.warning("trial %d: who computed a stage is not known: %s", self._record.trial, error)
            return None
