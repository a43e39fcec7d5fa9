"""Snapshots of one trial's stages: fetched before its program starts, and published while it runs.

    RUN_DIR/snapshots/STAGE/    there at the start: a finished stage, verified, to start from
                                renamed into place by the program: a finished stage to publish

Whatever goes wrong with a snapshot, the trial goes on without it, and one line in the log says so. That one
is stored, its trial's record says by the heartbeat after the upload.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from sweeps.errors import EnvironmentFault, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.space.stages import Stages
from sweeps.storage.run_files import snapshot, stored_stages
from sweeps.storage.run_files.exchange import Deadline, OutOfTime, UploadConfig
from sweeps.storage.run_files.snapshot import Published
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun
from sweeps.worker import program, stage_runs
from sweeps.worker.snapshot_fetch import Fetched, SnapshotFetch, folder_of
from sweeps.worker.stage_folder import SNAPSHOTS, Details, clause, details
from sweeps.worker.stage_runs import Reported

log = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_S = 60.0


class Snapshots:
    """Snapshots of a claimed trial, for one attempt. Without `keys` nothing is fetched or published.

    Args:
        experiment: the worker's.
        record: the claimed trial.
        folder: the run folder of the attempt.

    Attributes:
        keys: of the end of each stage that trials share, by the stage's name, in order.
    """

    def __init__(self, experiment: Experiment, record: Trial, folder: Path) -> None:
        self._experiment, self._record, self._folder = experiment, record, folder
        self._names = tuple(stage.name for stage in experiment.space.stages)
        self._costs: Mapping[str, float] = {}
        self.keys: Mapping[str, str] = {}
        try:
            self._costs = Stages(experiment.space).costs(record.parameters) or {}
            self.keys = program.stage_keys(experiment.space, record.parameters)
        except Exception as error:  # noqa: BLE001 - no snapshot may cost its trial an attempt
            log.warning("trial %d shares no stages: %s", record.trial, clause(error))
        self._link = experiment.space.program.kind == "trainer"  # others may write into what they start from
        self._runs = {run.name: run for run in record.stages}  # never changed in place: threads share it
        self._damaged: Mapping[str, str] = {}
        self._deadline = Deadline(UploadConfig())
        self._thread = threading.Thread(target=self._watch, name=f"publish {record.trial}", daemon=True)
        self._next_try = dict.fromkeys(self.keys, 0.0)
        self._errors: dict[str, str] = {}
        self._last_end: float | None = None

    @property
    def ended(self) -> tuple[StageRun, ...]:
        """Return the stages that have ended so far, in order."""
        runs = self._runs
        return tuple(runs[name] for name in dict.fromkeys((*self._names, *runs)) if name in runs)

    # ---- before the program

    def fetch(self, done: int) -> None:
        """Bring the end of the latest stage that is stored into the run folder, all of it or nothing.

        Args:
            done: how many stages a checkpoint of an earlier attempt has behind it.
        """
        fetch = SnapshotFetch(
            self._experiment, self._record, self._folder, self.keys, self._names, link=self._link
        )
        fetched = fetch.run(done)
        self._damaged = fetch.damaged
        if fetched is not None:
            for name in self._names[: self._names.index(fetched.stage) + 1]:
                self._next_try.pop(name, None)
                self._take(name, fetched)

    def _take(self, name: str, fetched: Fetched) -> None:
        """Note a stage that this attempt does not compute. This trial's own earlier attempt was paid."""
        is_own, run = fetched.trial == self._record.trial, fetched.runs.get(name)
        if run is None:  # the trial's own, before it was recorded
            run = self._computed(name, fetched.details)
        self._note(
            replace(
                run,
                key=self.keys.get(name, ""),
                reused_from=None if is_own else fetched.trial,
                snapshot=is_own and (run.snapshot or name == fetched.stage),
            )
        )

    # ---- while the program runs

    def start(self, *, resumed: bool) -> None:
        """Begin to publish what the program renames into place.

        Args:
            resumed: whether it goes on from a checkpoint: then this attempt does not know a stage's seconds.
        """
        self._last_end = None if resumed else time.monotonic()
        if self.keys:
            self._thread.start()

    def close(self, timeout: float, *, leave: Callable[[], bool] | None = None, grace: float = 0.0) -> None:
        """Publish what remains, stop, and remove the snapshots from the run folder: the store has them.

        Args:
            timeout: seconds that this may take.
            leave: polled; once it returns true (the machine is preempted), at most `grace` seconds remain.
            grace: seconds.
        """
        if not self.keys:
            return
        self._deadline.join(self._thread, timeout, leave=leave, grace=grace)
        shutil.rmtree(self._folder / SNAPSHOTS, ignore_errors=True)

    def _watch(self) -> None:
        while True:
            is_last = self._deadline.is_set  # the program has ended: what is not there now will not come
            for name in list(self._next_try):
                if (self._folder / SNAPSHOTS / name).is_dir() and time.monotonic() >= self._next_try[name]:
                    self._publish(name)
            if is_last:
                return
            self._deadline.wait(POLL_S)

    def _publish(self, name: str) -> None:
        """Publish one stage's end; if that fails, the trial goes on, and in a bucket it is tried again."""
        trial, folder = self._record.trial, self._folder / SNAPSHOTS / name
        again = False
        try:
            self._end_of(name, folder)
            stored = self._store_folder(name, folder)
        except OutOfTime:
            log.warning("trial %d: its snapshot of %s is not published: there was no time left", trial, name)
        except Exception as error:  # noqa: BLE001 - no snapshot may cost its trial an attempt
            again = isinstance(error, StoreUnavailable) and self._experiment.store.is_remote
            if self._errors.get(name) != clause(error):
                log.warning("trial %d: its snapshot of %s is not published: %s", trial, name, clause(error))
            self._errors[name] = clause(error)
        else:
            if stored:
                self._note(replace(self._runs[name], snapshot=True))
                log.info("trial %d has published %s", trial, name)
        if again:
            self._next_try[name] = time.monotonic() + RETRY_S
        else:
            del self._next_try[name]

    def _end_of(self, name: str, folder: Path) -> None:
        """Note that the trial has computed a stage, unless that is known."""
        run = self._runs.get(name)
        if run is not None and run.key == self.keys[name] and run.reused_from is None:
            return
        stated = details(folder, self.keys[name])
        if stated.seconds is None and self._last_end is not None:
            stated = replace(stated, seconds=time.monotonic() - self._last_end)
        if self._last_end is not None:
            self._last_end = time.monotonic()
        self._note(self._computed(name, stated))

    def _store_folder(self, name: str, folder: Path) -> bool:
        """Return whether the snapshot is stored and this trial's record shall say so."""
        by = folder_of(self._record.trial, self._record.attempt)
        found = snapshot.publish(
            self._experiment.store,
            stored_stages.prefix(self.keys[name]),
            folder,
            by,
            link=self._link,
            deadline=self._deadline,
            replaces=self._damaged.get(name),
        )
        if found is None:
            return False
        return found.by.startswith(folder_of(self._record.trial)) or self._is_orphan(name, found)

    def _is_orphan(self, name: str, found: Published) -> bool:
        """Return whether no record says, or is about to say, that this snapshot is stored."""
        records = Experiment(self._experiment.store, self._experiment.space).trials()
        if stage_runs.publisher(records, self.keys[name], self._record.trial) is not None:
            return False
        running = (record for record in records if record.status == "running")
        return all(found.by != folder_of(record.trial, record.attempt) for record in running)

    def _computed(self, name: str, stated: Details) -> StageRun:
        cost = self._costs.get(name, stated.seconds or 0.0)
        key = self.keys.get(name, "")
        return StageRun(name=name, key=key, cost=cost, seconds=stated.seconds, usd=stated.usd)

    def _note(self, run: StageRun) -> None:
        self._runs = self._runs | {run.name: run}

    # ---- after the program

    def report(
        self, reported: tuple[Reported, ...], metrics: Mapping[str, float | None]
    ) -> tuple[StageRun, ...]:
        """Return all stages of the trial, which has completed.

        Args:
            reported: stages in the program's result.
            metrics: of the result.
        """
        known = dict(self._runs)
        for stage in reported:
            run = known.get(stage.name)
            if stage.reused and stage.key and (run is None or run.key != stage.key):  # by an earlier attempt
                known[stage.name] = StageRun(
                    name=stage.name, key=stage.key, cost=0.0, reused_from=self._origin(stage.key)
                )
        return stage_runs.finished(reported, known, self._names, self._costs, metrics)

    def _origin(self, key: str) -> int | None:
        try:
            return stage_runs.origin(self._experiment.recent_trials(), key, self._record.trial)
        except EnvironmentFault as error:
            log.warning("trial %d: who computed a stage is not known: %s", self._record.trial, error)
            return None
